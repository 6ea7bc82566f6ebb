"""The data directory: made for its owner, checked by a real write, refused with what to do."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from memory.datadir import DATA_FORMAT, _resolve_data_dir, prepare, runtime_dir
from memory.errors import DataDirectoryUnusable, DataTooNew


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", str(data_dir / "here"))
    assert _resolve_data_dir() == data_dir / "here"
    monkeypatch.setenv("VOICEASSIST_DATA_DIR", "~/voice")
    assert _resolve_data_dir() == Path.home() / "voice"
    monkeypatch.chdir(data_dir)
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("VOICEASSIST_DATA_DIR")
        else:
            monkeypatch.setenv("VOICEASSIST_DATA_DIR", unset)
        assert _resolve_data_dir() == Path.cwd() / "data"


def test_it_is_made_for_its_owner_and_may_be_prepared_again(data_dir: Path) -> None:
    path = data_dir / "a" / "b"
    assert prepare(path) == path
    assert mode_of(path) == 0o700
    assert (path / "FORMAT").read_text() == f"{DATA_FORMAT}\n"
    (path / "kept").write_text("kept")
    prepare(path)
    assert sorted(item.name for item in path.iterdir()) == ["FORMAT", "kept"]


@pytest.mark.parametrize("found", [f"{DATA_FORMAT + 1}\n", "99", "next", "", "²", "9" * 5_000, "-1"])
def test_one_of_a_newer_version_is_refused_untouched(data_dir: Path, found: str) -> None:
    (data_dir / "FORMAT").write_text(found)
    with pytest.raises(DataTooNew, match="Upgrade livekit-unified-memory"):
        prepare(data_dir)
    assert (data_dir / "FORMAT").read_text() == found


def test_a_format_that_is_no_text_is_refused(data_dir: Path) -> None:
    (data_dir / "FORMAT").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataTooNew):
        prepare(data_dir)


def test_a_file_in_its_place_is_refused(data_dir: Path) -> None:
    (data_dir / "data").write_text("a file")
    for path in (data_dir / "data", data_dir / "data" / "below"):
        with pytest.raises(DataDirectoryUnusable, match="Set VOICEASSIST_DATA_DIR"):
            prepare(path)


def test_a_place_where_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(DataDirectoryUnusable, match="Set VOICEASSIST_DATA_DIR"):
        prepare(Path("/proc/nothing/here"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["mkstemp", "write", "fsync"])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_refused_write_is_told_and_leaves_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str, fresh: bool
) -> None:
    if not fresh:
        prepare(data_dir)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("tempfile.mkstemp" if call == "mkstemp" else f"os.{call}", refuse)
    with pytest.raises(DataDirectoryUnusable, match=os.strerror(number)):
        prepare(data_dir)
    monkeypatch.undo()
    assert [item.name for item in data_dir.iterdir() if item.name != "FORMAT"] == []


# --- where the sockets are


def test_sockets_are_in_it_where_their_paths_fit(data_dir: Path) -> None:
    directory = runtime_dir(data_dir)
    assert directory == data_dir / "run"
    assert mode_of(directory) == 0o700
    assert runtime_dir(data_dir) == directory


def test_sockets_of_a_long_path_are_in_a_short_one_of_their_own(data_dir: Path) -> None:
    first, second = (runtime_dir(data_dir / name / ("x" * 100)) for name in ("a", "b"))
    try:
        assert first != second
        assert len(os.fsencode(first / "recall.sock")) < 100
        assert mode_of(first) == 0o700
        assert runtime_dir(data_dir / "a" / ("x" * 100)) == first
    finally:
        first.rmdir()
        second.rmdir()


def test_bytes_count_not_characters(data_dir: Path) -> None:
    directory = runtime_dir(data_dir / ("é" * 40))
    try:
        assert not directory.is_relative_to(data_dir)
    finally:
        directory.rmdir()


def test_a_relative_one_is_the_same_from_anywhere(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir)
    assert runtime_dir(Path("here")) == runtime_dir(Path.cwd() / "here")


@pytest.mark.parametrize("wrong", ["open", "file", "link"])
def test_a_directory_that_others_can_reach_is_refused(data_dir: Path, wrong: str) -> None:
    run = data_dir / "run"
    if wrong == "open":
        run.mkdir()
        run.chmod(0o755)
    elif wrong == "file":
        run.write_text("")
    else:
        (data_dir / "elsewhere").mkdir(mode=0o700)
        run.symlink_to(data_dir / "elsewhere")
    with pytest.raises(DataDirectoryUnusable, match="VOICEASSIST_DATA_DIR"):
        runtime_dir(data_dir)


def test_one_of_somebody_else_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_dir(data_dir)
    monkeypatch.setattr("os.getuid", lambda: 12_345)
    with pytest.raises(DataDirectoryUnusable, match="belongs to this user alone"):
        runtime_dir(data_dir)


def test_where_no_directory_for_sockets_can_be_made_says_what_to_set() -> None:
    with pytest.raises(DataDirectoryUnusable, match="Set VOICEASSIST_DATA_DIR"):
        runtime_dir(Path("/proc/nothing"))
