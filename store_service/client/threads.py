"""User code that blocks, in threads of its own."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """The threads of one run.

    Daemons, as a thread cannot be stopped: a process that has given its tasks back ends in spite of them.
    """

    def __init__(self, must_stop: Callable[[], bool]) -> None:
        self._must_stop = must_stop
        self._busy: set[asyncio.Future[Any]] = set()

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns or raises.

        Cancelling it waits for the thread all the same, so that nothing goes on behind the back of the code. When the
        run must stop, the thread is left to itself; see `idle`.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._busy.add(done)
        done.add_done_callback(self._forget)
        context = contextvars.copy_context()

        def settle(result: T | None, error: BaseException | None) -> None:
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]  # None where T is None
            else:
                done.set_exception(error)

        def body() -> None:
            result: T | None = None
            failure: BaseException | None = None
            try:
                result = context.run(function, *args, **kwargs)
            except (StopIteration, SystemExit, KeyboardInterrupt) as error:
                # What a future cannot carry, or would end the process.
                failure = RuntimeError(f"the code raised {type(error).__name__}")
                failure.__cause__ = error
            except BaseException as error:  # noqa: BLE001 (handed over as it is)
                failure = error
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        try:
            threading.Thread(target=body, name="user-code", daemon=True).start()
        except RuntimeError:  # there can be no more threads
            done.cancel()
            raise
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not self._must_stop():
                await asyncio.wait({done})
            raise

    async def idle(self, *, timeout_seconds: float | None) -> bool:
        """Waits until no thread of the run is busy; says whether that came true in time."""
        if not self._busy:
            return True
        _, busy = await asyncio.wait(set(self._busy), timeout=timeout_seconds)
        return not busy

    def _forget(self, done: asyncio.Future[Any]) -> None:
        self._busy.discard(done)
        if not done.cancelled():
            done.exception()  # seen, even when nobody waits for it any more
