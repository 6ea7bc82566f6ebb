"""The data directory: where it is, whether it can be used, and the short-lived directory of its sockets and locks.

Above: hosting, stores, settings. Below: errors.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from memory.errors import DataDirectoryUnusable, DataTooNew

DATA_FORMAT = 1  # raised when an older version could not read what this one writes
_FORMAT_FILE = "FORMAT"
_SOCKET_DIR_CHARS_MAX = 80  # sun_path holds 108 bytes on Linux, 104 on macOS


def _resolve_data_dir() -> Path:
    """``VOICEASSIST_DATA_DIR``, or ``./data`` relative to the working directory."""
    return Path(os.environ.get("VOICEASSIST_DATA_DIR") or "./data").expanduser().absolute()


def prepare(data_dir: Path) -> Path:
    """Make the data directory (owner only) if it isn't there, and check that it can be used.

    Raises:
        DataDirectoryUnusable: it can't be made or written: not allowed, read-only, full.
        DataTooNew: a newer version of this project has written it.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_format(data_dir / _FORMAT_FILE)
        _check_writable(data_dir)
    except OSError as error:
        raise DataDirectoryUnusable(
            f"The data directory {data_dir} can't be used: {error.strerror or error}. "
            "Set VOICEASSIST_DATA_DIR to a directory that this user can write, with free space."
        ) from error
    return data_dir


def _check_format(path: Path) -> None:
    try:
        found = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        _write_durably(path, f"{DATA_FORMAT}\n")
        return
    if not (found.isascii() and found.isdigit() and len(found) < 10) or int(found) > DATA_FORMAT:
        raise DataTooNew(
            f"The data directory has format {found[:20]!r}, this version reads up to {DATA_FORMAT}. "
            "Upgrade livekit-unified-memory, or set VOICEASSIST_DATA_DIR to another directory."
        )


def _check_writable(directory: Path) -> None:
    # A real write: permission bits say nothing about a read-only mount, a quota or a full disk.
    descriptor, name = tempfile.mkstemp(prefix=".probe-", dir=directory)
    try:
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        os.unlink(name)


def _write_durably(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Have what was made, renamed or removed in a directory be so after a crash as well. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check(data_dir: Path) -> None:
    """See that the data directory can be used: that ``prepare`` and ``runtime_dir`` don't raise."""
    prepare(data_dir)
    runtime_dir(data_dir)


def runtime_dir(data_dir: Path) -> Path:
    """The owner-only directory of the data directory's sockets and locks; made if it isn't there.

    It is ``<data_dir>/run`` where a socket's path fits there, else a directory of this user below the system's
    temporary one, named by a digest of the data directory.

    Raises:
        DataDirectoryUnusable: it can't be made, or somebody else owns it.
    """
    inside = data_dir.absolute() / "run"
    directory = inside if len(os.fsencode(inside)) <= _SOCKET_DIR_CHARS_MAX else _short_dir(data_dir)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise DataDirectoryUnusable(
            f"The directory for sockets can't be made: {error.strerror or error}. "
            "Set VOICEASSIST_DATA_DIR to a directory that this user can write."
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DataDirectoryUnusable(
            "The directory for sockets must be a directory that belongs to this user alone (mode 0700)."
            " Remove it, or set VOICEASSIST_DATA_DIR to another directory."
        )
    return directory


def _short_dir(data_dir: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(data_dir.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"voicemem-{os.getuid()}-{digest}"
