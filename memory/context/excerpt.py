"""The part of a long text that bears most on a query. Above: block. Below: budget."""

from __future__ import annotations

import re
from collections import Counter

from memory.context.budget import ELLIPSIS, TokenCounter, cut_end, estimate_tokens

_WORD = re.compile(r"\w+")
_UNSPACED = re.compile("[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_QUERY_TERMS_MAX = 64
_STEM_CHARS = 5  # "allergic" and "allergies" meet; a ranking has already chosen the text, so this may be coarse
_LEAD_CHARS = 24  # kept before the first hit, so that it does not start in mid-thought
_CHARS_PER_TOKEN = 4

Hit = tuple[int, str]


def excerpt(text: str, query: str, tokens_max: int, count: TokenCounter = estimate_tokens) -> str:
    """``text`` if it fits into ``tokens_max``; else its stretch with most of the query's words, ``…`` where cut.

    Without a hit it is the text's start. Linear in the text's length, some milliseconds for a megabyte.
    """
    if count(text) <= tokens_max:
        return text
    start = _best_start(_hits(text, query), tokens_max * _CHARS_PER_TOKEN - 2 * _LEAD_CHARS)
    if start <= _LEAD_CHARS:
        return cut_end(text, tokens_max, count)
    start = _word_start(text, start - _LEAD_CHARS)
    if count(ELLIPSIS + text[start:]) <= tokens_max:
        start = _earliest_that_fits(text, start, tokens_max, count)
    return cut_end(ELLIPSIS + text[start:], tokens_max, count)


def stretch(text: str, query: str, chars_max: int) -> str:
    """``text`` if it has no more than ``chars_max`` characters; else its stretch with most of the query's words.

    Quick and rough, to spare what comes after it the rest of a huge text; at most two characters longer.
    """
    if len(text) <= chars_max:
        return text
    start = max(0, _best_start(_hits(text, query), chars_max - 2 * _LEAD_CHARS) - _LEAD_CHARS)
    start = min(start, len(text) - chars_max)
    end = start + chars_max
    return ELLIPSIS * (start > 0) + text[start:end] + ELLIPSIS * (end < len(text))


def _hits(text: str, query: str) -> list[Hit]:
    """Where words of the query, or words that begin alike, are in ``text``."""
    words, parts = [], []
    for word in _WORD.findall(query.lower()):
        if _UNSPACED.search(word):
            parts += [word[i : i + 2] for i in range(len(word) - 1)]
        elif len(word) > 2 or word.isdigit():
            words.append(word[:_STEM_CHARS])
    words, parts = words[:_QUERY_TERMS_MAX], parts[:_QUERY_TERMS_MAX]
    if not words and not parts:
        return []
    pattern = "|".join([rf"\b{re.escape(word)}" for word in words] + [re.escape(part) for part in parts])
    return [(hit.start(), hit.group()) for hit in re.finditer(pattern, text.lower())]


def _best_start(hits: list[Hit], width: int) -> int:
    """Where the stretch of ``width`` characters with most distinct terms starts: its first hit; 0 without one."""
    inside: Counter[str] = Counter()
    best, best_start, first = 0, 0, 0
    for place, term in hits:
        inside[term] += 1
        while place - hits[first][0] > max(width, 0):
            gone = hits[first][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if len(inside) > best:
            best, best_start = len(inside), hits[first][0]
    return best_start


def _word_start(text: str, place: int) -> int:
    """The start of the first word at or after ``place``, if one starts soon."""
    space = text.find(" ", place, place + _LEAD_CHARS)
    return space + 1 if space >= 0 else place


def _earliest_that_fits(text: str, fits: int, tokens_max: int, count: TokenCounter) -> int:
    """The stretch at the text's end leaves room before it: how early it may start."""
    too_early = -1
    while fits - too_early > 1:
        middle = (fits + too_early) // 2
        if count(ELLIPSIS + text[middle:]) <= tokens_max:
            fits = middle
        else:
            too_early = middle
    return fits
