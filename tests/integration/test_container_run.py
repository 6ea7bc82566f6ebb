"""The image's own command, run for real: with nothing to write to but its volume, and as somebody who is not root.

In the normal run it is this environment's Python in a read-only file system; in the long one it is the image, built as
the Dockerfile says.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import dockerfile, interpreters, livekit_server, redis_server

ROOT = Path(__file__).parents[2]
STAGES = dockerfile.stages((ROOT / "Dockerfile").read_text())
FINAL = STAGES[-1]
MOUNT_POINT = "/srv"  # where the volume is while the machine's own file system is the image
UP_S, BUILD_S, DOWN_S = 90.0, 600.0, 40.0

_CONFINE = """
mount --make-rprivate / && mount --bind "$1" "$2" && mount -o remount,bind,ro / || exit 125
shift 2
exec unshare --user --map-user=10001 --map-group=10001 "$@"
"""


@pytest.fixture(scope="module")
def namespaces() -> None:
    command = ["unshare", "--mount", "--pid", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root, and namespaces (unshare)")


@pytest.fixture(scope="module")
def livekit() -> Iterator[livekit_server.LiveKitServer]:
    program = livekit_server.binary()
    if isinstance(program, str):
        pytest.skip(program)
    with livekit_server.running(program) as server:
        yield server


@pytest.fixture(scope="module")
def redis() -> Iterator[redis_server.RedisServer]:
    with redis_server.running(*redis_server.DURABLE, password="p@ss/word") as server:
        yield server


@pytest.fixture
def settings(livekit: livekit_server.LiveKitServer) -> dict[str, str]:
    return {
        **livekit.environment,
        "AGENT_HEALTH_HOST": "127.0.0.1",
        "AGENT_HEALTH_PORT": str(redis_server.free_port()),
        "MEMORY_REQUIRE_DURABLE": "true",
        "MEMORY_HOST_IDLE_SECONDS": "1",
    }


@contextlib.contextmanager
def started(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process, and all that it starts, for the duration of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                child.kill()
        process.wait()


def health(settings: dict[str, str]) -> str:
    """The worker's word for how it is, "" while nobody answers."""
    url = f"http://127.0.0.1:{settings['AGENT_HEALTH_PORT']}/health"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return str(json.load(answer)["status"])
    except urllib.error.HTTPError as error:
        return str(json.load(error)["status"])
    except OSError:
        return ""


def until_healthy(process: subprocess.Popen[bytes], settings: dict[str, str], log: Path, *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while health(settings) != "healthy":
        told = f"health is {health(settings)!r}; it printed: {log.read_text(errors='replace')[-3000:]}"
        assert process.poll() is None, told
        assert time.monotonic() < deadline, told
        time.sleep(0.1)


def check_health(settings: dict[str, str]) -> int:
    command = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
    return subprocess.run(command, env=settings, capture_output=True, timeout=30, check=False).returncode


def test_the_command_needs_nothing_but_its_volume(
    namespaces: None, settings: dict[str, str], redis: redis_server.RedisServer, data_dir: Path, tmp_path: Path
) -> None:
    volume = FINAL.last("VOLUME").text
    image = {name: value for each in FINAL.of("ENV") for name, value in each.assignments.items()}
    env = {name: value.replace(volume, MOUNT_POINT) for name, value in image.items()}
    python, *words = FINAL.last("CMD").words
    assert python == "python"
    command = ["unshare", "--mount", "sh", "-c", _CONFINE, "sh", str(data_dir), MOUNT_POINT, sys.executable, *words]
    log = tmp_path / "log"

    with started(command, {"PATH": os.environ["PATH"], **env, **settings, "REDIS_URL": redis.url()}, log) as process:
        until_healthy(process, settings, log, within_s=UP_S)
        assert check_health(settings) == 0
        process.send_signal(signal.SIGTERM)
        code = process.wait(DOWN_S)

    assert code == 0, log.read_text(errors="replace")[-3000:]
    assert check_health(settings) == 1
    assert (data_dir / "FORMAT").exists()
    assert "Read-only file system" not in log.read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("with_embedded", ["0", "1"])
def test_the_image_is_built_and_takes_calls(
    with_embedded: str,
    namespaces: None,
    settings: dict[str, str],
    redis: redis_server.RedisServer,
    tmp_path: Path,
) -> None:
    python = base_python()
    scratch = Path(tempfile.mkdtemp(prefix="image-"))
    log = tmp_path / "log"
    if with_embedded == "0":
        settings["REDIS_URL"] = redis.url()
    words = [f"WITH_EMBEDDED={with_embedded}", *(f"env:{name}={value}" for name, value in settings.items())]
    builder = [sys.executable, "-m", "tests.support.image_build", str(ROOT), str(scratch), str(python), *words]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *builder]
    try:
        with started(command, dict(os.environ), log) as process:
            until_healthy(process, settings, log, within_s=BUILD_S)
            assert check_health(settings) == 0
            (first,) = psutil.Process(process.pid).children()  # the image's PID 1
            uids = {child.uids().real for child in [first, *first.children(recursive=True)]}
            assert uids == {int(FINAL.last("USER").text.split(":")[0])}
            first.send_signal(signal.SIGTERM)
            code = process.wait(DOWN_S)
        assert code == 0, log.read_text(errors="replace")[-3000:]
        assert system_libraries(scratch) <= IN_SLIM | (EMBEDDED_NEEDS if with_embedded == "1" else set())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


# What a slim image of Debian with Python has, of what the wheels may link with; and what the Dockerfile adds.
IN_SLIM = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libmvec.so.1", "libutil.so.1"),
    *("libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libssl.so.3", "libcrypto.so.3"),
}
EMBEDDED_NEEDS = {"libgomp.so.1"}


def system_libraries(scratch: Path) -> set[str]:
    """The libraries, outside the image's environment, that what is installed in it links with."""
    used = set()
    last = max(scratch.glob("stage-*/upper/opt/venv"))
    for library in last.rglob("*.so*"):
        told = subprocess.run(["ldd", library], capture_output=True, text=True, check=False).stdout
        links = [line.split() for line in told.splitlines() if "=>" in line]
        used |= {name for name, _, path, *_ in links if not path.startswith((str(last), "/opt/venv"))}
    return used


def base_python() -> Path:
    """Where a Python of the base image's version is installed on this machine."""
    names = {stage.name for stage in STAGES}
    (base,) = [stage.base for stage in STAGES if stage.base not in names]
    minor = ".".join(base.split(":")[1].split(".")[:2])
    found = interpreters.found().get(minor)
    if found is None or found.prefix == Path("/usr"):
        pytest.skip(f"needs a Python {minor} in a directory of its own (pyenv, uv)")
    return found.prefix
