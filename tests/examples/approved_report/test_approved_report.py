"""The report that waits for its approval, without services."""

from typing import Any

from store_service.client.testing import WorkflowTest
from tests.examples.approved_report.report import WEEK_SECONDS, approved_report

FORMS: dict[str, Any] = {"elicitation": {}}


async def test_what_is_sent_is_what_was_approved_whatever_happens_to_workers() -> None:
    async with WorkflowTest(approved_report, capabilities=FORMS) as t:
        await t.start({"topic": "penguins"})
        assert t.questions["approval"]["params"]["message"] == "Draft 1:\n\nA report on penguins"
        t.crash(after="approval")
        await t.accept("approval", send=False, note="with pictures")
        assert t.questions["approval#2"]["params"]["message"] == "Draft 2:\n\nA report on penguins, with pictures"
        t.crash(during="send")
        await t.accept("approval#2", send=True, to="ann@example.com")
    told = t.result["structuredContent"]
    assert (told["sent"], told["drafts"]) == (True, 2)
    assert told["receipt"].endswith("to ann@example.com: A report on penguins, with pictures")
    assert t.steps == ["draft", "approval", "draft#2", "approval#2", "send"]


async def test_a_person_may_decline() -> None:
    async with WorkflowTest(approved_report, capabilities=FORMS) as t:
        await t.answer("approval", {"action": "decline"})  # an answer may be there before its question
        result = await t.run({"topic": "penguins"})
    assert result["structuredContent"] == {"sent": False, "drafts": 1}


async def test_nobody_answers() -> None:
    async with WorkflowTest(approved_report, capabilities=FORMS) as t:
        await t.start({"topic": "penguins"})
        await t.advance(WEEK_SECONDS)
    assert t.result["isError"] is True
    assert "within a week" in t.result["content"][0]["text"]
