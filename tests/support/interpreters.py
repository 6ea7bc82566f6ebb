"""The Python interpreters of this machine that the project supports: one of each minor version."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
REQUIRED = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
MINORS = tuple(f"3.{minor}" for minor in range(8, 30) if f"3.{minor}.99" in REQUIRED)
_ASK = (
    "import json, sys; print(json.dumps(['.'.join(map(str, sys.version_info[:3])), sys.executable, sys.base_prefix]))"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``prefix`` is where it is installed."""

    version: str
    executable: Path
    prefix: Path


@functools.cache
def found() -> dict[str, Interpreter]:
    """By minor version ("3.12"), the newest that works: on PATH, or installed by pyenv or uv."""
    best: dict[str, Interpreter] = {}
    for minor in MINORS:
        working = [
            each for path in _candidates(minor) if (each := _asked(path)) and each.version.startswith(f"{minor}.")
        ]
        if working:
            best[minor] = max(working, key=lambda each: [int(part) for part in each.version.split(".")])
    return best


def _candidates(minor: str) -> Iterator[Path]:
    name = f"python{minor}"
    if on_path := shutil.which(name):
        yield Path(on_path)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    for root in (Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions", data / "uv" / "python"):
        yield from root.glob(f"*/bin/{name}")


def _asked(path: Path) -> Interpreter | None:
    # A shim of pyenv is there for every version that is installed, and works for the chosen one alone.
    asked = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=30, check=False)
    if asked.returncode != 0:
        return None
    version, executable, prefix = json.loads(asked.stdout)
    return Interpreter(version, Path(executable), Path(prefix))
