"""Builds and runs this project's image without an engine: each stage is an overlay of this machine's root file system.

``python -m tests.support.image_build CONTEXT SCRATCH PYTHON [ARG=VALUE…] [env:NAME=VALUE…] [-- COMMAND…]``, as root in
namespaces of its own (``unshare --mount --pid --fork``), does what the Dockerfile says, then becomes COMMAND, or the
image's own, as the image's user, with everything read-only but its volume. Nothing outside SCRATCH is changed. What
differs from a real engine: the base image is this machine's system without what people keep on it, with the Python in
the directory PYTHON at /usr/local; and the network is this machine's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.dockerfile import Instruction, Stage, stages

_HIDDEN = ("/root", "/home", "/work", "/tmp", "/var/tmp", "/opt", "/srv")
_SHARED = ("/dev", "/sys")
_NETWORK = re.compile(r"(?i)(pip_(index|extra_index|cert|trusted|default|disable)|.*_proxy$|ssl_cert|requests_ca)")


@dataclass
class Layer:
    """A stage that is being built, at ``root``."""

    stage: Stage
    root: Path
    env: dict[str, str]
    workdir: str = "/"
    user: str = "0:0"
    args: dict[str, str] = field(default_factory=dict)


class Builder:
    """One build. ``python`` is the directory of the Python that the base image would have at /usr/local."""

    def __init__(self, context: Path, scratch: Path, arguments: dict[str, str], python: Path) -> None:
        self._context, self._scratch, self._arguments, self._python = context, scratch, arguments, python
        self._built: dict[str, Layer] = {}

    def build(self) -> Layer:
        """Build every stage; returns the last."""
        layer: Layer | None = None
        for number, stage in enumerate(stages((self._context / "Dockerfile").read_text())):
            layer = self._begin(stage, f"stage-{number}")
            for instruction in stage.instructions:
                _say(f"{instruction.kind} {instruction.text}")
                getattr(self, f"_do_{instruction.kind.lower()}", self._nothing)(layer, instruction)
            self._built[stage.name] = layer
        assert layer is not None
        return layer

    def _begin(self, stage: Stage, name: str) -> Layer:
        below = self._built.get(stage.base)
        home = self._scratch / name
        for directory in ("upper", "work", "root"):
            (home / directory).mkdir(parents=True)
        layer = Layer(stage, home / "root", {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"})
        if below:
            layer = Layer(stage, home / "root", dict(below.env), below.workdir, below.user, dict(below.args))
        else:
            _hide(home / "upper")
        options = f"lowerdir={below.root if below else '/'},upperdir={home / 'upper'},workdir={home / 'work'}"
        _mount("-t", "overlay", "overlay", "-o", options, layer.root)
        for shared in _SHARED:
            _mount("--rbind", shared, f"{layer.root}{shared}")
        _mount("-t", "proc", "proc", layer.root / "proc")
        _mount("--bind", self._python, layer.root / "usr/local")
        if below is None:
            _enter(layer, ["ldconfig"], layer.env)  # that Python's library is at another place now
        return layer

    def _nothing(self, _: Layer, __: Instruction) -> None:
        """LABEL, EXPOSE, VOLUME, HEALTHCHECK, …: they say how it is run."""

    def _do_arg(self, layer: Layer, instruction: Instruction) -> None:
        defaults = instruction.assignments
        layer.args |= {name: self._arguments.get(name, default) for name, default in defaults.items()}

    def _do_env(self, layer: Layer, instruction: Instruction) -> None:
        layer.env |= {
            name: re.sub(r"\$\{?(\w+)\}?", lambda match: layer.env.get(match[1], ""), value)
            for name, value in instruction.assignments.items()
        }

    def _do_workdir(self, layer: Layer, instruction: Instruction) -> None:
        layer.workdir = instruction.text
        Path(f"{layer.root}{layer.workdir}").mkdir(parents=True, exist_ok=True)

    def _do_user(self, layer: Layer, instruction: Instruction) -> None:
        layer.user = instruction.text

    def _do_copy(self, layer: Layer, instruction: Instruction) -> None:
        *sources, target = instruction.words
        origin = self._built[instruction.flags["from"]].root if "from" in instruction.flags else self._context
        where = Path(f"{layer.root}{target if target.startswith('/') else f'{layer.workdir}/{target}'}")
        for source in sources:
            path = origin / source.lstrip("/")
            if path.is_dir():
                shutil.copytree(path, where, symlinks=True, dirs_exist_ok=True, ignore=_caches(instruction))
            else:
                into = where / path.name if target.endswith("/") else where
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, into)

    def _do_run(self, layer: Layer, instruction: Instruction) -> None:
        network = {name: value for name, value in os.environ.items() if _NETWORK.match(name)}
        _enter(layer, ["/bin/sh", "-c", instruction.text], {**network, **layer.env, **layer.args})


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _hide(upper: Path) -> None:
    """Lay empty directories over what a base image would not have."""
    for hidden in _HIDDEN:
        if Path(hidden).is_dir():
            directory = Path(f"{upper}{hidden}")
            directory.mkdir(parents=True)
            directory.chmod(Path(hidden).stat().st_mode)
            os.setxattr(directory, "trusted.overlay.opaque", b"y")


def _caches(instruction: Instruction) -> Callable[[Any, list[str]], set[str]] | None:
    # From the context .dockerignore keeps them away; between stages they are wanted.
    return None if "from" in instruction.flags else shutil.ignore_patterns("__pycache__", "*.pyc")


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def _enter(layer: Layer, command: list[str], env: dict[str, str]) -> None:
    def inside() -> None:
        os.chroot(layer.root)
        os.chdir(layer.workdir)

    subprocess.run(command, check=True, env=env, preexec_fn=inside)


def run(layer: Layer, command: list[str], volume: Path, settings: dict[str, str]) -> None:
    """Become ``command`` (empty: the image's own) in the finished image, read-only but for its volume."""
    stage = layer.stage
    inside = Path(f"{layer.root}{stage.last('VOLUME').text}")
    user, group = map(int, layer.user.split(":"))
    shutil.copytree(inside, volume, dirs_exist_ok=True)  # as an engine fills a new volume
    os.chmod(volume, inside.stat().st_mode)
    os.chown(volume, inside.stat().st_uid, inside.stat().st_gid)
    _mount("--bind", volume, inside)
    _mount("-o", "remount,ro", layer.root)
    words = [*stage.last("ENTRYPOINT").words, *(command or stage.last("CMD").words)]
    os.chroot(layer.root)
    os.chdir(layer.workdir)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    env = {**layer.env, **settings}
    path = shutil.which(words[0], path=env["PATH"])
    if path is None:
        raise SystemExit(f"{words[0]} is not in the image")
    os.execve(path, words, env)


def main(arguments: list[str]) -> None:
    context, scratch, python, *rest = arguments
    split = rest.index("--") if "--" in rest else len(rest)
    given = dict(word.split("=", 1) for word in rest[:split])
    settings = {name.removeprefix("env:"): value for name, value in given.items() if name.startswith("env:")}
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    layer = Builder(Path(context), Path(scratch), given, Path(python)).build()
    _say("built")
    volume = Path(scratch) / "volume"
    run(layer, rest[split + 1 :], volume, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
