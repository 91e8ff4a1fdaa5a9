"""`python -m statetrack` is the command line."""

import sys

from statetrack.cli import main

if __name__ == "__main__":
    sys.exit(main())
