"""Defects as changes of our own text, to show that what looks for them finds them: the model, and runs under fire.

Here are the changes that both try, and how they are tried.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Change:
    """In this function of the database, or this file, this text instead of that one."""

    where: str
    was: str
    becomes: str

    def of(self, text: str) -> str:
        """The text with the defect."""
        assert text.count(self.was) == 1, f"{self.where} has no longer\n{self.was}"
        return text.replace(self.was, self.becomes)


FENCE: Final = "s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch\n      AND s.expires_at > v_now"
NO_TOKEN: Final = Change("finish_tasks", FENCE, FENCE.replace("AND s.token = u.k ", ""))
REVIVES: Final = Change("heartbeat_tasks", "\n      AND s.expires_at > v_now", "")
CANCELS_ENDED: Final = Change("cancel_tasks", "WHEN s.state <> ALL (p_live) THEN", "WHEN false THEN")
STALE_CONSUMES: Final = Change(
    "suspend_tasks", "SELECT e.epoch INTO v_epoch FROM epoch e;",
    "SELECT e.epoch INTO v_epoch FROM epoch e; UPDATE signal x SET state = 'CONSUMED' WHERE x.state = 'PENDING' "
    "AND x.task_id = ANY (p_task) AND x.name = ANY (p_signal) AND NOT EXISTS (SELECT FROM task_state s WHERE s.task_id = "
    "x.task_id AND s.token = ANY (p_token));",
)  # fmt: skip
CURSORS_OF_A_SEQUENCE: Final = Change(
    "remove_tasks", "v_last + row_number() OVER (ORDER BY d.handle_ends_at, d.task_id)", "nextval('turn')"
)
REMOVES_HELD: Final = Change("remove_tasks", " AND NOT s.held\n", "\n")


def try_each(names: Iterable[str], find: Callable[[str], str | None]) -> int:
    """Tells of each defect how long it took to find, and what told of it. Returns an exit code: 1 if one was not found."""
    missed = 0
    for name in names:
        started = time.monotonic()
        found = find(name)
        missed += found is None
        print(f"{name:45} {time.monotonic() - started:5.0f} s  {found or 'NOT FOUND'}", flush=True)
    print(f"{missed} not found")
    return min(missed, 1)
