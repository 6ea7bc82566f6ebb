"""``python -m agent start`` whose job processes don't get ready while the file that ``UNREADY`` names is there.

As where a machine has no memory left for them. What is in the file says what they do instead.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

UNREADY = "UNREADY"
DIES, HANGS = "dies", "hangs"

_HANG_S = 30.0  # longer than anybody waits


def setup(_: Any) -> None:
    """What each process does first."""
    path = Path(os.environ[UNREADY])
    if not path.exists():
        return
    if path.read_text() == HANGS:
        time.sleep(_HANG_S)
    os._exit(1)


def _main() -> int:
    from agent import job
    from agent.cli import main
    from tests.support import unready_worker

    job.setup = unready_worker.setup  # by a name that other processes can import
    return main()


if __name__ == "__main__":
    sys.exit(_main())
