"""A worker of a run: python -m tests.robustness.programs.worker STORE WORKER_ID LEDGER_PORT LEASE_SECONDS DRAIN_SECONDS

Its steps write to the ledger outside before they are saved, so that what was done can be held against what was accepted.
"""

import sys
import time
from typing import Any, Final

from store_service.client import BudgetAmounts, Context, RetryPolicy, SyncContext, ToolError, Worker
from store_service.telemetry import configure_logs
from tests.robustness.ledger import LedgerClient

CONCURRENCY: Final = 40
SCHEMA: Final = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
RETRY: Final = RetryPolicy(max_attempts=6, initial_backoff_seconds=0.05, max_backoff_seconds=0.5)


def main() -> None:
    """Works until SIGTERM."""
    store, worker_id, ledger_port, lease_seconds, drain_seconds = sys.argv[1:]
    configure_logs(level="warning")
    ledger = LedgerClient(int(ledger_port))
    worker = Worker(
        store, concurrency=CONCURRENCY, worker_id=worker_id, lease_seconds=float(lease_seconds),
        drain_seconds=float(drain_seconds),
    )  # fmt: skip

    async def effect(ctx: Context, name: str, tokens: int = 0) -> dict[str, Any]:
        async def write() -> dict[str, Any]:
            if tokens:
                ctx.use(tokens=tokens)
            done = await ledger.append(task=ctx.task_id, step=name, token=ctx.fencing_token, worker=worker_id)
            if not done:
                raise RuntimeError("the ledger has seen a later token")
            return {"step": name, "token": ctx.fencing_token}

        return await ctx.step(name, write)

    def said(args: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": args["canary"]}], "structuredContent": {"steps": steps}}

    @worker.workflow("steps", retry=RETRY)
    async def steps(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        return said(args, [await effect(ctx, f"s{number}") for number in range(args.get("n", 2))])

    @worker.workflow("nap", retry=RETRY)
    async def nap(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        first = await effect(ctx, "before")
        await ctx.sleep(args.get("seconds", 0.3))
        return said(args, [first, await effect(ctx, "after")])

    @worker.workflow("signal", retry=RETRY)
    async def signal(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        first = await effect(ctx, "before")
        message = await ctx.wait_signal("go", timeout=args.get("timeout", 4.0))
        return said(args, [first, {"signal": message}, await effect(ctx, "after")])

    @worker.workflow("ask", retry=RETRY)
    async def ask(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        first = await effect(ctx, "before")
        answer = await ctx.ask("sure", "Are you sure?", SCHEMA, timeout=args.get("timeout", 6.0))
        if not answer.accepted:
            raise ToolError("not wanted")
        return said(args, [first, await effect(ctx, "after")])

    @worker.workflow("flaky", retry=RETRY)
    async def flaky(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        first = await effect(ctx, "s0")
        if args.get("fails", 1) > ctx.attempt - 1:
            raise RuntimeError("as wished")
        return said(args, [first, await effect(ctx, "s1")])

    @worker.workflow("busy", retry=RETRY)
    def busy(ctx: SyncContext, args: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + args.get("seconds", 0.2)
        turns = 0
        while time.monotonic() < until:
            turns += 1
        return {"content": [{"type": "text", "text": args["canary"]}]}

    @worker.workflow("stubborn", retry=RETRY)
    async def stubborn(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        def spin() -> None:
            until = time.monotonic() + 3 * float(lease_seconds)
            while time.monotonic() < until:
                pass

        async def never_yield() -> None:
            spin()  # on the event loop, which belongs to the code of all tasks: leases are extended beside it

        first = await effect(ctx, "before")
        await ctx.step("loop", never_yield)
        return said(args, [first, await effect(ctx, "after")])

    @worker.workflow("spend", retry=RETRY, limits=BudgetAmounts(tokens=100))
    async def spend(ctx: Context, args: dict[str, Any]) -> dict[str, Any]:
        return said(args, [await effect(ctx, f"s{number}", tokens=20) for number in range(2)])

    worker.run()


if __name__ == "__main__":
    main()
