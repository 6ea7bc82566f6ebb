"""What stands in for the speech host where a test scripts its behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agent.local.alignment import Word
from agent.local.models import TALK_RATE, Speech, Transcript


@dataclass
class ScriptedService:
    """A speech service whose answers are given by the test: texts (or errors) in order of the calls."""

    heard: list[str | Exception] = field(default_factory=list)
    talk_error: Exception | None = None
    asked: list[int] = field(default_factory=list)  # samples of each call
    optional: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None  # awaited by each listen
    ensured: asyncio.Event = field(default_factory=asyncio.Event)

    async def ensure(self) -> None:
        self.ensured.set()

    async def listen(self, audio: NDArray[np.int16], *, optional: bool = False) -> Transcript:
        self.asked.append(len(audio))
        self.optional.append(optional)
        answer = self.heard.pop(0) if self.heard else ""
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(answer, Exception):
            raise answer
        return Transcript(answer, 0.9 if answer else 0.0)

    async def talk(self, text: str) -> AsyncGenerator[Speech]:
        """Each word lasts 0.1 s; text without letters has no audio; a sentence is up to a full stop."""
        self.texts.append(text)
        if self.talk_error is not None:
            raise self.talk_error
        for sentence in text.replace(". ", ". \0").split("\0"):
            words = sentence.split(" ")
            pieces = [word + " " for word in words[:-1]] + [words[-1]] * bool(words[-1])
            speakable = any(character.isalpha() for character in sentence)
            step = 0.1 if speakable else 0.0
            timed = tuple(Word(piece, at * step, (at + 1) * step) for at, piece in enumerate(pieces))
            yield Speech(b"\1\0" * round(TALK_RATE * step * len(pieces)), timed)
