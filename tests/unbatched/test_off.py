"""What turns batching off turns it off everywhere, also in the processes that tests start."""

import json
import subprocess
import sys

import pytest

from tests.pair import ROOT
from tests.unbatched.sitecustomize import defaults

SAY = """
import json
from tests.unbatched.sitecustomize import defaults
print(json.dumps([one["batching"] for one in defaults()]))
"""


def test_batching_is_on_or_off_here_and_in_every_process(pytestconfig: pytest.Config) -> None:
    said = subprocess.run([sys.executable, "-c", SAY], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    here = [one["batching"] for one in defaults()]
    assert here == json.loads(said) == [not pytestconfig.getoption("--without-batching")] * 5
