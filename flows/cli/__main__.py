"""`python -m flows.cli`: the command `rft` where no script of that name is installed."""

import sys

from flows.cli import main

if __name__ == "__main__":
    sys.exit(main())
