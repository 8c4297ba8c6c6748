"""`python -m spass`: the command line of the client."""

import sys

from spass.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
