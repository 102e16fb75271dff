"""Every line on standard error is one JSON object, whoever wrote it."""

import json
import subprocess
import sys

SCRIPT = """
import logging, uuid, structlog
from store_service.telemetry import configure_logs
configure_logs(level="info")
structlog.get_logger().info("ours", task_id=uuid.UUID(int=1), text="a\\nb")
structlog.get_logger().debug("too quiet")
logging.getLogger("library").warning("theirs %s", 7)
logging.getLogger("grpc._cython.cygrpc").error("ExecuteBatchError raised in core by servicer method [/a/caller/has/Left]")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger().exception("failed")
"""


def test_lines_of_ours_and_of_libraries_are_json_one_each() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("ours", "info"),
        ("theirs 7", "warning"),
        ("failed", "error"),
    ]
    assert lines[0]["task_id"] == "00000000-0000-0000-0000-000000000001"
    assert lines[0]["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in lines[2]["exception"]


CALLS = """
import asyncio, io, sys, structlog
from store_service.telemetry import configure_logs

class Raw(io.FileIO):
    writes = 0
    def write(self, data):
        self.writes += 1
        return super().write(data)

raw = Raw(2, "wb")
sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw))
configure_logs(level="info")
log = structlog.get_logger()

async def calls():
    for number in range(3):
        log.info("call", number=number)
    log.info("audit", number=3)
    log.info("call", number=4)
    await asyncio.sleep(0)
    assert raw.writes == 2, raw.writes
    log.info("call", number=5)

asyncio.run(calls())
"""


def test_calls_that_end_at_once_are_written_at_once_in_their_order_and_none_is_lost() -> None:
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line)["number"] for line in done.stderr.splitlines()] == [0, 1, 2, 3, 4, 5]
