"""What to type for a missing part fits the place that the installation came from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from memory.extras import PROJECT, install

ROOT = Path(__file__).parents[2]


def installed(monkeypatch: pytest.MonkeyPatch, path: Path, source: dict[str, Any] | None) -> None:
    """As installers leave it (PEP 610): ``source`` is missing where it came from an index."""
    about = path / f"{PROJECT.replace('-', '_')}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: 0.1.0\n")
    if source is not None:
        (about / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.setattr(sys, "path", [str(path)])


def test_from_an_index_it_is_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, None)
    assert install("local") == 'pip install "livekit-unified-memory[local]"'


@pytest.mark.parametrize("editable", [{}, {"editable": True}])
def test_from_a_checkout_it_is_its_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editable: dict[str, bool]
) -> None:
    checkout = tmp_path / "my own" / "checkout"
    installed(monkeypatch, tmp_path, {"url": checkout.as_uri(), "dir_info": editable})
    assert install("local") == f'pip install "{checkout}[local]"'


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "1f"}}, "git+https://host/a.git"),
        ({"url": "file:///downloads/a-0.1.0-py3-none-any.whl", "archive_info": {}}, None),
    ],
)
def test_from_a_repository_or_a_file_it_is_its_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: dict[str, Any], url: str | None
) -> None:
    installed(monkeypatch, tmp_path, source)
    requirement = Requirement(install("postgres").removeprefix('pip install "').removesuffix('"'))
    assert (requirement.name, requirement.extras, requirement.url) == (PROJECT, {"postgres"}, url or source["url"])


def test_a_checkout_on_the_module_path_is_its_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert install("ingest") == f'pip install "{ROOT}[ingest]"'


def test_nothing_else_says_how_an_extra_is_installed() -> None:
    sources = [path for package in ("agent", "memory") for path in (ROOT / package).rglob("*.py")]
    assert [path.name for path in sources if f"{PROJECT}[" in path.read_text()] == []
