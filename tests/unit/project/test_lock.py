"""The lock agrees with pyproject.toml, every file of it is hashed, and it names no place to download from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(
    r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)([^\\]*)\\?\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)", re.M
)


def pins(lock: Path) -> dict[str, Version]:
    return {canonicalize_name(match[1]): Version(match[2]) for match in PIN.finditer(lock.read_text())}


def declared() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    for line in (line for group in [*groups, *project["dependency-groups"].values()] for line in group):
        requirement = Requirement(line)
        if requirement.name != project["project"]["name"]:
            yield requirement


def test_every_declared_requirement_is_pinned_within_its_range() -> None:
    locked = pins(ROOT / "requirements" / "dev.txt")
    wrong = [
        f"{requirement}: locked {locked.get(canonicalize_name(requirement.name))}"
        for requirement in declared()
        if (version := locked.get(canonicalize_name(requirement.name))) is None or version not in requirement.specifier
    ]
    assert not wrong, "run `make lock`: " + "; ".join(wrong)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_pin_has_a_hash(lock: Path) -> None:
    found = list(PIN.finditer(lock.read_text()))
    assert found
    assert [match[1] for match in found if not match[4]] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_the_lock_names_no_download_host(lock: Path) -> None:
    assert not re.search(r"https?://|--(?:extra-)?index-url|--find-links", lock.read_text())
