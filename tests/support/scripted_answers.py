"""An LLM whose answers are given beforehand. Above: tests. Below: memory.knowledge_ports."""

from __future__ import annotations

from pydantic import BaseModel

from memory.knowledge_ports import Answer, Usage


class Scripted:
    """A ``LanguageModel`` that gives ``answers`` one after the other; an exception is raised. ``data``: what it was
    shown."""

    def __init__(self, *answers: BaseModel | Exception) -> None:
        self._answers = list(answers)
        self.data: list[str] = []

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def usage(self) -> Usage:
        return Usage(len(self.data), 0, 0)

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        self.data.append(data)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, shape), task
        return answer
