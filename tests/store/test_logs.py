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
