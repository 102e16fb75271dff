"""Files counted side by side, without services."""

from pathlib import Path

import pytest

from store_service.client.testing import WorkflowTest
from tests.examples.file_fan_out import words
from tests.examples.file_fan_out.words import count_words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("the cat\n" + "the dog " * number)
    return tmp_path


async def test_all_files_are_counted(folder: Path) -> None:
    async with WorkflowTest(count_words) as t:
        result = await t.run({"folder": str(folder)})
    assert result["structuredContent"] == {"files": 20, "words": 420, "most": {"the": 210, "dog": 190, "cat": 20}}
    assert (len(t.steps), t.progress[-1][:2]) == (21, (20, 20))


async def test_a_crash_half_way_counts_again_only_what_was_being_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    count_words_of = words.count_words_of

    def count(path: str) -> dict[str, int]:
        counted.append(path)
        return count_words_of(path)

    monkeypatch.setattr(words, "count_words_of", count)
    async with WorkflowTest(count_words) as t:
        t.crash(after=f"count {folder / '10.txt'}")
        await t.start({"folder": str(folder)})
        (folder / "later.txt").write_text("not of this task")
    assert t.result["structuredContent"]["words"] == 420
    assert t.runs == ["lease_lost", "completed"]
    assert 20 <= len(counted) <= 20 + words.AT_ONCE


async def test_a_folder_without_text_is_told_to_the_caller(tmp_path: Path) -> None:
    async with WorkflowTest(count_words) as t:
        result = await t.run({"folder": str(tmp_path)})
    assert result["isError"] is True
