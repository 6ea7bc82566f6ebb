"""Where a session's turns are cut into chunks, each of which becomes an episode and one LLM call.

Pure: the same turns give the same cuts. A cut lies between two turns; only a turn that is larger than a chunk is cut
itself, at the end of a sentence if there is one in the second half of the piece, else between words.
Above: scan. Below: context.budget (what a token is), knowledge.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memory.context.budget import MESSAGE_TOKENS, TokenCounter, estimate_tokens
from memory.knowledge import ChunkSpan
from memory.knowledge_ports import ArchivedEntry, Cutter
from memory.limits import CHUNK_TOKENS_DEFAULT, CHUNK_TURNS_MAX

_SENTENCE_END = re.compile(r"[.!?؟।…]+[\"'”’»)\]]*\s+|[。！？]+[”’」』）]*|\n+")
_WORD_END = re.compile(r"\s+")
_JOINED_MAX = 32  # marks on one character: nobody writes more, and a run of nothing else must not stop the cutting
_JOINERS = "\u200d\ufe0e\ufe0f"


def cutter(
    tokens_max: int = CHUNK_TOKENS_DEFAULT, *, turns_max: int = CHUNK_TURNS_MAX, count: TokenCounter = estimate_tokens
) -> Cutter:
    """A ``Cutter`` whose chunks hold ``tokens_max`` at most, and are about equally long.

    Handed ``turns_max`` turns or more, it takes it that others follow, and leaves what would be the last chunk for the
    next time, if it has made one before it.
    """

    def cut(entries: Sequence[ArchivedEntry]) -> Sequence[ChunkSpan]:
        spans = _spans(entries, tokens_max, count)
        follows = len(entries) >= turns_max
        # A chunk that begins within a turn stays: that turn is in a chunk already, and won't be handed in again.
        return spans[:-1] if follows and len(spans) > 1 and not spans[-1].start_offset else spans

    return cut


def _spans(entries: Sequence[ArchivedEntry], tokens_max: int, count: TokenCounter) -> list[ChunkSpan]:
    costs = [count(item.entry.content) + MESSAGE_TOKENS for item in entries]
    chunks = -(-sum(costs) // tokens_max)
    enough = sum(costs) / chunks if chunks else 0  # equal shares: no last chunk of two words without their context
    spans, open_span = list[ChunkSpan](), _Open()
    for item, cost in zip(entries, costs, strict=True):
        if open_span.begun and (open_span.tokens >= enough or open_span.tokens + cost > tokens_max):
            spans.append(open_span.closed())
        if cost <= tokens_max:
            open_span.take(item.cursor, cost)
            continue
        for start, end in pieces(item.entry.content, max(1, tokens_max - MESSAGE_TOKENS), count):
            if open_span.begun:
                spans.append(open_span.closed())
            last = end == len(item.entry.content)
            tokens = count(item.entry.content[start:end]) + MESSAGE_TOKENS
            open_span.take(item.cursor, tokens, start, -1 if last else end)
    if open_span.begun:
        spans.append(open_span.closed())
    return spans


@dataclass(slots=True)
class _Open:
    """The chunk that is being filled."""

    begun: bool = False
    first: int = 0
    last: int = 0
    start: int = 0
    end: int = -1
    tokens: int = 0

    def take(self, cursor: int, tokens: int, start: int = 0, end: int = -1) -> None:
        if not self.begun:
            self.begun, self.first, self.start = True, cursor, start
        self.last, self.end = cursor, end
        self.tokens += tokens

    def closed(self) -> ChunkSpan:
        span = ChunkSpan(self.first, self.last, self.start, self.end, self.tokens)
        self.begun, self.tokens = False, 0
        return span


def pieces(text: str, tokens_max: int, count: TokenCounter = estimate_tokens) -> Iterator[tuple[int, int]]:
    """Where ``text`` is cut: offsets from and to, one after the other, that leave nothing out.

    Each holds ``tokens_max`` at most, where a single character does.
    """
    start = 0
    while start < len(text):
        longest = _longest(text, start, tokens_max, count)
        end = longest if longest == len(text) else _boundary(text, start, longest)
        yield start, end
        start = end


def _longest(text: str, start: int, tokens_max: int, count: TokenCounter) -> int:
    """The furthest end of a piece; at least one character on. Costs no more than a few times what it takes."""
    fits, step = start + 1, max(1, tokens_max)
    while fits < len(text) and count(text[start : min(fits + step, len(text))]) <= tokens_max:
        fits = min(fits + step, len(text))
        step *= 2
    too_far = min(fits + step, len(text) + 1)
    while too_far - fits > 1:
        middle = (fits + too_far) // 2
        fits, too_far = (middle, too_far) if count(text[start:middle]) <= tokens_max else (fits, middle)
    return fits


def _boundary(text: str, start: int, longest: int) -> int:
    half = start + (longest - start) // 2
    for kind in (_SENTENCE_END, _WORD_END):
        ends = [found.end() for found in kind.finditer(text, half, longest)]
        if ends and ends[-1] > start:
            return ends[-1]
    end = longest
    while end > start + 1 and longest - end < _JOINED_MAX and _joins(text[end - 1], text[end]):
        end -= 1
    return end


def _joins(before: str, after: str) -> bool:
    return unicodedata.combining(after) > 0 or after in _JOINERS or before == _JOINERS[0]
