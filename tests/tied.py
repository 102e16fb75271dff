"""Processes of the tests that end with who started them, SIGKILL included, as those of the embedded Postgres do."""

import shutil
from pathlib import Path
from typing import Final

_SETPRIV: Final = shutil.which("setpriv")
TIED: Final = (_SETPRIV, "--pdeathsig", "KILL") if _SETPRIV and Path(_SETPRIV).resolve().name == "setpriv" else ()
"""Words before a command: it is killed when the thread ends that started it. None where util-linux is not, as on macOS."""
