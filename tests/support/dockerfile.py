"""Reads a Dockerfile and a .dockerignore, as far as this project uses them. Above: tests of the image, image_build."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """``kind`` in capitals; ``flags`` are its ``--name=value``s; ``text`` is the rest, on one line."""

    kind: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """Of the exec form (a JSON list), or of words as a shell splits them."""
        found: list[str] = json.loads(self.text) if self.is_exec_form else shlex.split(self.text)
        return found

    @property
    def is_exec_form(self) -> bool:
        return self.text.startswith("[")

    @property
    def assignments(self) -> dict[str, str]:
        """Of ENV, LABEL and ARG; an ARG without a default is empty."""
        return {name: value for name, _, value in (word.partition("=") for word in self.words)}


@dataclass(frozen=True, slots=True)
class Stage:
    """What begins with one FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Instruction]:
        return [each for each in self.instructions if each.kind in kinds]

    def last(self, kind: str) -> Instruction:
        return self.of(kind)[-1]


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile, in order."""
    found: list[Stage] = []
    for each in _instructions(text):
        if each.kind == "FROM":
            base, *name = re.split(r"\s+AS\s+", each.text, flags=re.IGNORECASE)
            found.append(Stage(base, name[0] if name else ""))
        else:
            found[-1].instructions.append(each)
    return found


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        kind, _, rest = line.partition(" ")
        flags = {}
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        yield Instruction(kind.upper(), flags, rest.strip())


def ignored(patterns: Iterable[str], path: str) -> bool:
    """Whether a .dockerignore keeps a file, named relative to the context, from the builder: its last match decides."""
    verdict = False
    for pattern in patterns:
        if not pattern.strip() or pattern.startswith("#"):
            continue
        keep = pattern.startswith("!")
        if _matches(pattern.lstrip("!").strip("/"), path):
            verdict = not keep
    return verdict


def _matches(pattern: str, path: str) -> bool:
    parts = Path(path).parts
    tails = [
        "/".join(parts[start:end]) for start in _starts(pattern, parts) for end in range(start + 1, len(parts) + 1)
    ]
    return any(fnmatch.fnmatchcase(tail, pattern.removeprefix("**/")) for tail in tails)


def _starts(pattern: str, parts: tuple[str, ...]) -> range:
    return range(len(parts)) if pattern.startswith("**/") else range(1)
