"""Prints the table of trials: `python -m tests.cases`."""

import sys

from tests.cases.table import main

if __name__ == "__main__":
    sys.exit(main())
