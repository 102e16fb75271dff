"""A report that a person approves before it is sent.

The task asks its caller's client a question and is then nobody's work: no process holds it while the person thinks, for a
minute or for a week. Workers may be stopped and replaced meanwhile. When the answer comes, a worker takes the task up after
the last thing that was saved, so the draft that is sent is the draft that was approved.

Run it beside a store: `python -m tests.examples.approved_report.report 127.0.0.1:7233`.
"""

import sys
from typing import Any

from store_service.client import Context, InputTimeout, ToolError, Worker

WEEK_SECONDS = 7 * 86_400
APPROVAL = {
    "type": "object",
    "properties": {
        "send": {"type": "boolean", "title": "Send it?"},
        "to": {"type": "string", "format": "email", "title": "To whom?"},
        "note": {"type": "string", "title": "What should change?"},
    },
    "required": ["send"],
}
MOST_DRAFTS = 3


async def approved_report(ctx: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    """Drafts a report, asks until it is approved, and sends it."""
    note = ""
    for number in range(1, MOST_DRAFTS + 1):
        # Steps and questions of the same name are told apart by their order: "draft", "draft#2" and so on.
        draft = await ctx.step("draft", write_draft, arguments["topic"], note)
        try:
            answer = await ctx.ask("approval", f"Draft {number}:\n\n{draft}", APPROVAL, timeout=WEEK_SECONDS)
        except InputTimeout:
            raise ToolError("Nobody approved the report within a week; it was not sent.") from None
        if not answer.accepted:
            return {"sent": False, "drafts": number}
        if answer.content["send"]:
            # A step may run twice, when its worker dies between the work and the saving. The key is the same then, by
            # which whoever sends knows that it was sent already.
            key = ctx.idempotency_key("send")
            receipt = await ctx.step("send", send, draft, answer.content.get("to", "all@example.com"), key)
            return {"sent": True, "drafts": number, "receipt": receipt}
        note = answer.content.get("note", "")
    raise ToolError(f"The report was not approved after {MOST_DRAFTS} drafts.")


def write_draft(topic: str, note: str) -> str:
    """Stands for hours of work."""
    return f"A report on {topic}" + (f", {note}" if note else "")


def send(draft: str, to: str, key: str) -> str:
    """Stands for a mail that goes out once for each key."""
    return f"{key[:8]} to {to}: {draft}"


def main(store: str) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store)
    worker.workflow("approved-report")(approved_report)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
