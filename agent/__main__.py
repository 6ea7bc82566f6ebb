"""``python -m agent``. Nothing heavy is imported here: help and wrong usage answer at once."""

from __future__ import annotations

import sys

from agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
