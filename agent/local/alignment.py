"""When each word of a text is heard, from the times of the tokens a synthesiser really spoke.

The synthesiser reads a normalised form ("7:30 pm" as "seven thirty P.M."), so words that both forms share are
matched, and what lies between two matches shares the time between them. Pure. Above: models. Below: nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_WORD = re.compile(r"\S+\s*")
_LEADING_SPACE = re.compile(r"\s+")


class Word(NamedTuple):
    """A word with the whitespace around it, and when it is heard: seconds from the start of the audio."""

    text: str
    start_s: float
    end_s: float


class SpokenToken(NamedTuple):
    """A token as it was spoken. ``space``: whitespace follows it."""

    text: str
    space: bool
    start_s: float
    end_s: float


def split_words(text: str) -> list[str]:
    """``text`` cut before each word; joined they are ``text`` again."""
    words = _WORD.findall(text)
    leading = _LEADING_SPACE.match(text)
    if leading is None:
        return words
    return [leading[0] + words[0], *words[1:]] if words else [text]


def word_times(text: str, spoken: Sequence[SpokenToken], duration_s: float) -> tuple[Word, ...]:
    """The words of ``text`` with their times: non-decreasing, within ``0..duration_s``, joined they are ``text``.

    A word nothing was spoken for (a dash, another script) lasts no time.
    """
    words = split_words(text)
    groups = _by_whitespace(spoken)
    times: list[tuple[float, float]] = []
    matcher = SequenceMatcher(None, [_key(w) for w in words], [_key(g.text) for g in groups], autojunk=False)
    for _, first, last, group_first, group_last in matcher.get_opcodes():
        inside = groups[group_first:group_last]
        if last - first == len(inside):
            times += [(group.start_s, group.end_s) for group in inside]
        else:
            times += _shared(words[first:last], inside, times[-1][1] if times else 0.0)
    return _in_order(words, times, duration_s)


def _by_whitespace(spoken: Sequence[SpokenToken]) -> list[SpokenToken]:
    groups: list[SpokenToken] = []
    joins = False
    for token in spoken:
        if joins:
            last = groups[-1]
            groups[-1] = SpokenToken(last.text + token.text, token.space, last.start_s, token.end_s)
        else:
            groups.append(token)
        joins = not token.space
    return groups


def _key(word: str) -> str:
    bare = "".join(character for character in word.casefold() if character.isalnum())
    return bare or word.strip()


def _shared(words: Sequence[str], groups: Sequence[SpokenToken], now_s: float) -> list[tuple[float, float]]:
    """Times for words that were spoken as other words: the time of those, by length."""
    start, end = (groups[0].start_s, groups[-1].end_s) if groups else (now_s, now_s)
    lengths = [max(1, len(_key(word))) for word in words]
    total = sum(lengths)
    times: list[tuple[float, float]] = []
    before = 0
    for length in lengths:
        step = (end - start) / total
        times.append((start + before * step, start + (before + length) * step))
        before += length
    return times


def _in_order(words: Sequence[str], times: Sequence[tuple[float, float]], duration_s: float) -> tuple[Word, ...]:
    placed: list[Word] = []
    now_s = 0.0
    for word, (start, end) in zip(words, times, strict=True):
        start_s = min(max(start, now_s), duration_s)
        now_s = min(max(end, start_s), duration_s)
        placed.append(Word(word, start_s, now_s))
    return tuple(placed)
