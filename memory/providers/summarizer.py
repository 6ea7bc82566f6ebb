"""A summary without an LLM: the sentences of a conversation that say most, as they were said.

Above: wiring. Below: ports, models.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log, sqrt

from memory.models import MemoryEntry

SUMMARY_CHARS_MAX = 1_200
_SENTENCES_MAX = 4_000  # of the newest turns; what is older is left out, so that the time is bounded
_SENTENCE_CHARS_MAX = 300

_SENTENCE = re.compile(r"[^.!?。！？؟।…\n]+(?:[.!?。！？؟।…]+|\n|$)")
_WORD = re.compile(r"[^\W\d_]{4,}|[\u0e00-\u0fff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2}|\w*\d\w*")
_SPEAKERS = {"user": "User", "assistant": "Assistant", "system": "System"}


@dataclass(frozen=True, slots=True)
class _Sentence:
    place: int
    speaker: str
    text: str
    words: frozenset[str]


class ExtractiveSummarizer:
    """Quotes the sentences that carry most of what the conversation is about, in their order.

    At most ``chars_max`` characters. A word weighs more the rarer it is over the turns, and numbers and the user's own
    words weigh more; words that a quoted sentence has told already weigh nothing in the next choice. Runs in a thread.
    """

    def __init__(self, chars_max: int = SUMMARY_CHARS_MAX) -> None:
        self._chars_max = chars_max

    async def summarize(self, entries: Sequence[MemoryEntry]) -> str:
        """``User: … Assistant: …``, or "" where nothing is worth quoting."""
        return await asyncio.to_thread(self._summarize, entries)

    def _summarize(self, entries: Sequence[MemoryEntry]) -> str:
        sentences = _sentences(entries)
        chosen = sorted(self._choose(sentences), key=lambda sentence: sentence.place)
        by_speaker = groupby(chosen, key=lambda sentence: sentence.speaker)
        return " ".join(f"{speaker}: {' '.join(s.text for s in said)}" for speaker, said in by_speaker)

    def _choose(self, sentences: list[_Sentence]) -> list[_Sentence]:
        weights = _weights(sentences)
        scored = sorted(sentences, key=lambda s: -_score(s, s.words, weights))
        chosen: list[_Sentence] = []
        told: set[str] = set()
        left = self._chars_max
        for sentence in scored:
            cost = len(sentence.text) + len("Assistant:  ")
            new = sentence.words - told
            if cost > left or len(new) * 2 <= len(sentence.words):
                continue
            chosen.append(sentence)
            told |= sentence.words
            left -= cost
        return chosen


def _sentences(entries: Sequence[MemoryEntry]) -> list[_Sentence]:
    found: list[_Sentence] = []
    for entry in reversed(entries):
        texts = [" ".join(text.split()) for text in _SENTENCE.findall(entry.content)]
        for text in reversed(texts):
            words = frozenset(_WORD.findall(text.casefold()))
            if words and len(text) <= _SENTENCE_CHARS_MAX:
                found.append(_Sentence(-len(found), _SPEAKERS[entry.role], text, words))
            if len(found) >= _SENTENCES_MAX:
                return found
    return found


def _weights(sentences: list[_Sentence]) -> dict[str, float]:
    """Inverse sentence frequency, more for what has a digit: orders, dates and amounts are what gets asked for."""
    frequency = Counter(word for sentence in sentences for word in sentence.words)
    total = len(sentences)
    return {
        word: log(1 + total / times) * (2.0 if any(c.isdigit() for c in word) else 1.0)
        for word, times in frequency.items()
    }


def _score(sentence: _Sentence, words: frozenset[str], weights: dict[str, float]) -> float:
    own = 1.5 if sentence.speaker == "User" else 1.0
    question = 0.6 if sentence.text.endswith(("?", "؟", "？")) else 1.0
    return own * question * sum(weights[word] for word in words) / sqrt(len(words) + 2)
