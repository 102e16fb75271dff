"""An inbox: a case that lives for weeks, to which people write by signals.

Whoever may write to the task publishes a signal with an id of their own: TaskService.PublishSignal, or
`TaskStore.publish_signal`. A signal that comes while the case is busy is kept and read next, in the order of arrival; one
that is sent twice under the same id counts once. When nobody writes for three days, the case reminds its owner, and after
the third reminder it closes itself.

Run it beside a store: `python -m tests.examples.human_inbox.inbox 127.0.0.1:7233`.
"""

import sys
from typing import Any

from store_service.client import SignalTimeout, SyncContext, ToolError, Worker

THREE_DAYS_SECONDS = 3 * 86_400
MOST_REMINDERS = 3
MOST_LETTERS = 500  # a task keeps a bounded number of steps


def keep_case(ctx: SyncContext, arguments: dict[str, Any]) -> dict[str, Any]:
    """Keeps a case until somebody closes it. A sync function: each call blocks its thread, and waiting holds none."""
    notes: list[str] = []
    reminders = 0
    for _ in range(MOST_LETTERS):
        try:
            letter = ctx.wait_signal("letter", timeout=THREE_DAYS_SECONDS)
        except SignalTimeout:
            if reminders == MOST_REMINDERS:
                return {"closed_by": "nobody wrote", "notes": notes}
            reminders += 1
            ctx.step("remind", remind, arguments["owner"], reminders)
            continue
        reminders = 0
        match letter:
            case {"kind": "note", "text": str(text)}:
                notes.append(ctx.step("file", file_note, text))
                ctx.progress(len(notes), message=f"{len(notes)} notes")
            case {"kind": "close", "by": str(who)}:
                return {"closed_by": who, "notes": notes}
            case _:
                ctx.step("return", return_to_sender, letter)
    raise ToolError(f"The case has had {MOST_LETTERS} letters; open another one.")


def remind(owner: str, times: int) -> str:
    """Stands for a mail."""
    return f"reminder {times} to {owner}"


def file_note(text: str) -> str:
    """Stands for filing it where cases are kept."""
    return text.strip()


def return_to_sender(letter: Any) -> str:
    """Stands for a polite answer."""
    return f"not understood: {letter}"


def main(store: str) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store)
    worker.workflow("keep-case")(keep_case)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
