"""The README says what the code does: its settings tables are those of the settings classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_settings_tables_are_current() -> None:
    checked = subprocess.run(
        [sys.executable, "scripts/settings_table.py", "--check"], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False
    )
    assert checked.returncode == 0, "run `make settings`"
