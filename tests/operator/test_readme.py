"""What the README tells operators to type is what they can type."""

import re
import shlex
from pathlib import Path
from typing import Final

import store_service
from store_service.operator.command import EPILOG
from tests.conftest import Clock, Stubs
from tests.operator.conftest import Operator
from tests.store.builders import cancel, create

README: Final = (Path(store_service.__file__).parent / "README.md").read_text()
SECTION: Final = README.split("\n## Operators\n")[1].split("\n## ")[0]
COMMANDS: Final = [line for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL) for line in block.splitlines()]
DAY: Final = 86_400.0


async def test_the_walk_through_runs_from_the_removal_to_the_evidence(store: Stubs, clock: Clock, operator: Operator) -> None:
    task_id = (await create(store, tenant_id="acme", ttl_ms=1_000)).task_id
    await store.tasks.CancelTask(cancel(task_id, tenant_id="acme"))
    for line in COMMANDS:
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            continue  # the fixture says where store and archive are
        assert program == "tenure-store"
        if words[:2] in (["retention", "run"], ["purge", "prepare"]):
            await clock.advance(seconds=400 * DAY)
        assert await operator.does(*({"TASK": task_id}.get(word, word) for word in words)) == 0, (line, operator.trouble)
    assert operator.row["tombstones"] == 1


def test_every_command_and_every_exit_code_is_told() -> None:
    told = {tuple(line.split()[1:3]) for line in COMMANDS if line.startswith("tenure-store")}
    assert told == {
        ("task", "why"),
        ("retention", "run"), ("retention", "status"), ("tombstones", "list"), ("tombstones", "show"), ("tombstones", "verify"),
        ("holds", "place"), ("holds", "release"), ("holds", "list"), ("archive", "export"), ("archive", "verify"),
        ("purge", "prepare"), ("purge", "inbox"), ("purge", "approve"), ("purge", "execute"), ("purge", "evidence"),
        ("purge", "reject"),
    }  # fmt: skip
    codes = re.findall(r"\d+", EPILOG)
    assert re.findall(r"^\| (\d+) \|", SECTION, re.MULTILINE) == codes
