"""The wheel, built as an index would get it: it has everything, nothing else, and works without the checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_OPEN_ARCHIVE = """
import asyncio, sys, memory
from memory.stores.sql import SqlArchive

async def main():
    archive = await SqlArchive.open(sys.argv[1])
    await archive.aclose()

asyncio.run(main())
print(memory.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling (make setup)")
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return {name for name in file.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_string(file.read(name).decode())


def test_it_holds_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("agent", "memory")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = contents(wheel)
    assert found == sources
    migrations = {name for name in found if name.startswith("memory/stores/migrations/")}
    assert {"memory/stores/migrations/env.py", "memory/stores/migrations/script.py.mako"} < migrations
    assert any("/versions/" in name for name in migrations)


def test_type_checkers_may_use_it(wheel: Path) -> None:
    assert {"agent/py.typed", "memory/py.typed"} <= contents(wheel)


def test_it_says_what_it_is_and_needs(wheel: Path) -> None:
    told = metadata(wheel)
    assert (told["Name"], told["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert set(told.get_all("Provides-Extra", [])) == PROJECT["optional-dependencies"].keys()
    assert set(told.get_all("License-File", [])) == {"LICENSE", "NOTICE"}


def test_it_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """The archive's schema is made from the migrations in the wheel."""
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(installed)
    command = [sys.executable, "-c", _OPEN_ARCHIVE, f"sqlite+aiosqlite:///{tmp_path / 'memory.db'}"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)
    assert (tmp_path / "memory.db").stat().st_size > 0
