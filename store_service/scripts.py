"""`tenure-store`: starts the command, or tells what must be installed for it."""

import importlib
import sys
from typing import Final

NOT_INSTALLED: Final = 2
_OURS: Final = frozenset(("store_service", "mcp_bridge", "taskstore"))


def store() -> int:
    """The script `tenure-store`."""
    return start("tenure-store", module="store_service.__main__", extra="store")


def start(script: str, *, module: str, extra: str) -> int:
    """Runs `main` of a module and returns its exit code; where a package of the extra is missing, says so and returns 2."""
    try:
        command = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] in _OURS:
            raise
        sys.stderr.write(f"{script}: {missing.name} is not installed; run: pip install 'tenure[{extra}]'\n")
        return NOT_INSTALLED
    code: int = command.main()
    return code
