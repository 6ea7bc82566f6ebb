"""What the LLM has answered for a chunk, as the chunk keeps it, so that a repetition pays for nothing twice.

Raw answers: guards and merging run again on them. Above: the pipeline. Below: extraction, resolution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from memory.ingestion.extraction import Extraction
from memory.ingestion.resolution import Question, Verdict
from memory.limits import CHUNK_ANSWERS_BYTES_MAX

FORMAT_VERSION = 1

_EXTRACTION = TypeAdapter(Extraction)
_VERDICT = TypeAdapter(Verdict)


@dataclass(frozen=True, slots=True)
class Answers:
    """``extraction`` ``None``: not asked yet. A verdict counts for the very question that it answered."""

    extraction: Extraction | None = None
    verdict: Verdict | None = None
    question: str = ""  # the digest of what ``verdict`` answers

    @classmethod
    def load(cls, text: str) -> Answers:
        """What ``dump`` made; nothing of what can't be read, or is of another version: it is asked for again."""
        try:
            data = json.loads(text) if text else {}
            if not isinstance(data, dict) or data.get("v") != FORMAT_VERSION:
                return cls()
            extraction, verdict = data.get("extraction"), data.get("verdict")
            return cls(
                None if extraction is None else _EXTRACTION.validate_python(extraction, strict=False),
                None if verdict is None else _VERDICT.validate_python(verdict, strict=False),
                str(data.get("question", "")),
            )
        except (ValueError, ValidationError, RecursionError):
            return cls()

    def dump(self) -> str:
        """JSON of at most ``CHUNK_ANSWERS_BYTES_MAX``; "" where it would be more, so that it is asked for again."""
        data: dict[str, Any] = {"v": FORMAT_VERSION, "question": self.question}
        if self.extraction is not None:
            data["extraction"] = _EXTRACTION.dump_python(self.extraction, mode="json")
        if self.verdict is not None:
            data["verdict"] = _VERDICT.dump_python(self.verdict, mode="json")
        text = json.dumps(data, ensure_ascii=False)
        return text if len(text.encode(errors="replace")) <= CHUNK_ANSWERS_BYTES_MAX else ""

    def with_extraction(self, extraction: Extraction) -> Answers:
        return Answers(extraction)

    def with_verdict(self, question: Question, verdict: Verdict) -> Answers:
        return replace(self, verdict=verdict, question=_digest(question))

    def verdict_on(self, question: Question) -> Verdict | None:
        """The verdict on exactly this question, if that was asked."""
        return self.verdict if self.verdict is not None and self.question == _digest(question) else None


def _digest(question: Question) -> str:
    parts: Sequence[Any] = [asdict(question)]
    text = json.dumps(parts, ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
