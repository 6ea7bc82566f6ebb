"""``make setup``: a virtual environment from the lock, by pip or uv; nothing the second time, anew for a changed lock.

The Makefile and the script are the project's own; the lock names a wheel that is made here, so that no index is asked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SYSTEM = "/usr/local/bin:/usr/bin:/bin"


class Checkout:
    """A copy of what ``make setup`` needs, with a lock of one wheel."""

    def __init__(self, path: Path, programs: str) -> None:
        self.path = path
        self._environment = {"PATH": programs, "HOME": str(path)}
        self.written_s = 1_700_000_000.0  # make goes by times; all of these have been
        (path / "scripts").mkdir(parents=True)
        (path / "requirements").mkdir()
        shutil.copy(ROOT / "Makefile", path)
        script = shutil.copy(ROOT / "scripts" / "setup.sh", path / "scripts")
        os.utime(script, (self.written_s, self.written_s))

    def lock(self, version: str, *, digest: str | None = None) -> None:
        wheel = self.path / f"tiny_part-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            about = f"tiny_part-{version}.dist-info"
            file.writestr("tiny_part.py", f"VERSION = {version!r}\n")
            file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part\nVersion: {version}\n")
            file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            file.writestr(f"{about}/RECORD", "")
        digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.written_s += 10
        self._write("dev.txt", f"tiny-part @ {wheel.as_uri()} --hash=sha256:{digest}\n")
        self._write("models.txt", "# nothing\n")

    def _write(self, name: str, text: str) -> None:
        lock = self.path / "requirements" / name
        if not lock.exists() or lock.read_text() != text:
            lock.write_text(text)
            os.utime(lock, (self.written_s, self.written_s))

    def setup(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "setup"],
            cwd=self.path,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def installed(self) -> str:
        # -B: bytecode of two versions installed within a second would be taken for the same file's.
        command = [
            str(self.path / ".venv" / "bin" / "python"),
            "-B",
            "-c",
            "import tiny_part; print(tiny_part.VERSION)",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
        return str(done.stdout).strip()


@pytest.fixture(params=["pip", "uv"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Checkout:
    """On a machine with Python, make, and one of both."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    if request.param == "uv":
        (programs / "uv").symlink_to(Path(sys.executable).with_name("uv"))
    elif shutil.which("uv", path=SYSTEM):
        pytest.skip("needs a system without uv")
    return Checkout(tmp_path / "checkout", f"{programs}:{SYSTEM}")


def test_the_first_run_sets_up_the_second_does_nothing_and_a_changed_lock_is_followed(checkout: Checkout) -> None:
    checkout.lock("1.0")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "Setting up .venv" in done.stderr
    assert checkout.installed() == "1.0"

    synced = checkout.path / ".venv" / ".synced"
    os.utime(synced, (checkout.written_s + 1, checkout.written_s + 1))
    before = synced.stat().st_mtime_ns
    again = checkout.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert synced.stat().st_mtime_ns == before

    checkout.lock("2.0")
    assert checkout.setup().returncode == 0
    assert checkout.installed() == "2.0"


def test_a_file_of_another_hash_is_refused_and_the_next_run_tries_again(checkout: Checkout) -> None:
    checkout.lock("1.0", digest="0" * 64)
    assert checkout.setup().returncode != 0
    assert not (checkout.path / ".venv" / ".synced").exists()
    checkout.lock("1.0")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert checkout.installed() == "1.0"
