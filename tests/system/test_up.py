"""`make up`, as a newcomer uses it: the curl line that it prints works, and Ctrl-C stops everything."""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.pair import ROOT, free_ports
from tests.tied import TIED

START_SECONDS = 60


def test_the_printed_curl_line_works_and_ctrl_c_stops_everything(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {**os.environ, "PORT": str(port), "FOLDER": str(tmp_path / "up")}
    up = subprocess.Popen(
        [*TIED, sys.executable, "-m", "tests.examples.up"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert up.stdout is not None
        printed = ""
        while "Stop with Ctrl-C" not in printed:
            line = up.stdout.readline()
            assert line, printed
            printed += line
        words = shlex.split(next(line for line in printed.splitlines() if line.strip().startswith("curl ")))
        headers = dict(value.split(": ", 1) for flag, value in itertools.pairwise(words) if flag == "-H")
        request = urllib.request.Request(words[2], data=words[-1].encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
            answer = json.load(response)
        assert "penguins" in answer["result"]["content"][0]["text"]
        config = json.loads(re.search(r"^\s+(\{\"mcpServers.*\})$", printed, re.MULTILINE).group(1))  # type: ignore[union-attr]
        assert config["mcpServers"]["tenure"]["url"] == words[2] == f"http://127.0.0.1:{port}/mcp"
    finally:
        up.send_signal(signal.SIGINT)
        rest, _ = up.communicate(timeout=START_SECONDS)
    assert up.returncode == 0
    assert "stopping" in rest
