"""Prints the table of trials: `python -m tests.cases`."""

import sys

from tests.cases.table import main

sys.exit(main())
