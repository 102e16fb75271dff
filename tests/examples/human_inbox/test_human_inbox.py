"""A case and the people who write to it, without services."""

from store_service.client.testing import WorkflowTest
from tests.examples.human_inbox.inbox import THREE_DAYS_SECONDS, keep_case

OWNER = {"owner": "ann"}


async def test_letters_are_read_in_order_until_somebody_closes_the_case() -> None:
    async with WorkflowTest(keep_case) as t:
        await t.signal("letter", {"kind": "note", "text": " first "})  # kept until the case asks for it
        await t.signal("letter", {"kind": "note", "text": "second"})
        await t.start(OWNER)
        assert (t.waits_for, t.progress[-1]) == ("signal letter", (2, None, "2 notes"))
        t.crash(after="letter#3")
        await t.signal("letter", {"kind": "nonsense"})
        assert t.value("return") == "not understood: {'kind': 'nonsense'}"
        await t.signal("letter", {"kind": "close", "by": "bob"})
    assert t.result["structuredContent"] == {"closed_by": "bob", "notes": ["first", "second"]}


async def test_a_silent_case_reminds_and_closes_itself() -> None:
    async with WorkflowTest(keep_case) as t:
        await t.start(OWNER)
        await t.advance(THREE_DAYS_SECONDS)
        await t.signal("letter", {"kind": "note", "text": "still here"})
        for _ in range(4):
            assert t.state == "WAITING"
            await t.advance(THREE_DAYS_SECONDS)
    assert t.result["structuredContent"] == {"closed_by": "nobody wrote", "notes": ["still here"]}
    assert [t.value(step) for step in t.steps if step.startswith("remind")] == [
        "reminder 1 to ann", "reminder 1 to ann", "reminder 2 to ann", "reminder 3 to ann",
    ]  # fmt: skip
