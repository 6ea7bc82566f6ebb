"""``python -m memory``: see cli.py."""

import sys

from memory.cli import main

if __name__ == "__main__":
    sys.exit(main())
