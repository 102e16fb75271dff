"""The API stays usable for those who generated their stubs before: `make proto-breaking`."""

import shutil
from pathlib import Path

from tests.node_tools.buf import PROTO, breaking


async def test_a_field_that_goes_is_told(tmp_path: Path) -> None:
    shutil.copytree(PROTO / "taskstore", tmp_path / "taskstore")
    types = tmp_path / "taskstore" / "v1" / "leases.proto"
    types.write_text(types.read_text().replace("int32 limit = 5;", "reserved 5;"))
    status, said = await breaking(PROTO, now=tmp_path)
    assert status != 0
    assert 'Previously present field "5" with name "limit" on message "LeaseTasksRequest" was deleted' in said


async def test_a_field_that_comes_is_not(tmp_path: Path) -> None:
    shutil.copytree(PROTO / "taskstore", tmp_path / "taskstore")
    types = tmp_path / "taskstore" / "v1" / "leases.proto"
    types.write_text(
        types.read_text().replace("int32 limit = 5;", "int32 limit = 5;\n  // A field of the future.\n  int32 later = 99;")
    )
    assert await breaking(PROTO, now=tmp_path) == (0, "")
