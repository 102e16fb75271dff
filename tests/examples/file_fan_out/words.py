"""A fan-out: many files are read side by side, each as a step of its own, and their counts are put together.

A worker that dies half-way costs what it was doing at that moment; the files that were counted stay counted.

Run it beside a store: `python -m tests.examples.file_fan_out.words 127.0.0.1:7233`.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from store_service.client import Context, ToolError, Worker

AT_ONCE = 8
MOST_FILES = 1_000


async def count_words(ctx: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    """Counts the words of all text files of a folder."""
    # The folder may change while the task lives. What is read here is saved, so all runs speak of the same files.
    paths = await ctx.step("list", list_files, arguments["folder"])
    done = 0

    async def count_file(path: str) -> dict[str, int]:
        nonlocal done
        counts = await ctx.step(f"count {path}", count_words_of, path)
        done += 1
        await ctx.progress(done, len(paths), f"counted {path}")
        return counts

    # At most so many at once. The results come in the order of the files, whichever was counted first.
    all_counts = await ctx.parallel(*(count_file(path) for path in paths), limit=AT_ONCE)
    total: Counter[str] = Counter()
    for counts in all_counts:
        total.update(counts)
    return {"files": len(paths), "words": total.total(), "most": dict(total.most_common(3))}


def list_files(folder: str) -> list[str]:
    """The text files, in a fixed order."""
    paths = sorted(str(path) for path in Path(folder).glob("*.txt"))
    if not 1 <= len(paths) <= MOST_FILES:
        raise ToolError(f"The folder has {len(paths)} text files; 1 to {MOST_FILES} can be counted.")
    return paths


def count_words_of(path: str) -> dict[str, int]:
    """Reads one file. A step that is a plain function runs in a thread, so files are read side by side."""
    return dict(Counter(Path(path).read_text(encoding="utf-8").lower().split()))


def main(store: str) -> None:
    """Runs a worker until it is told to stop."""
    worker = Worker(store)
    worker.workflow("count-words")(count_words)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
