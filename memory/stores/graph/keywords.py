"""The graph's keyword leg: the words of a fact as they are indexed, and a query that finds them.

FalkorDB's own way with text loses much: a dash in a group id, a lone ``_``, a control character or some sixty words
make a query find nothing or fail, and Arabic marks, letter variants and punctuation are part of its words. So facts
carry their words in a property of their own, folded here, and are searched in that alone.
Pure. Above: rows, store, readers. Below: nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

QUERY_WORDS_MAX = 60  # more than about 63 silently find nothing in Graphiti's own query
_WORD_CHARS_MAX = 64
_WORD = re.compile(r"[^\W_]+")
# Scripts without spaces, and Hangul, whose words carry their particles: pairs of characters.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+")
_VARIANTS = str.maketrans("ٱىیةھہکگڤپ", "اييهههكجفب")


def words(text: str) -> list[str]:
    """The words of ``text``, folded: case, accents, marks, letter variants and digits of other scripts."""
    return [word[:_WORD_CHARS_MAX] for run in _WORD.findall(_fold(text)) for word in _split(run)]


def indexed(text: str) -> str:
    """What a fact of this text is found by."""
    return " ".join(words(text))


def query(text: str) -> str:
    """A query for facts with any of the words of ``text``; "" if it has none."""
    found = list(dict.fromkeys(words(text)))[:QUERY_WORDS_MAX]
    return f"@words:({'|'.join(found)})" if found else ""


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    kept = (char for char in decomposed if unicodedata.category(char) not in ("Mn", "Cf"))
    return unicodedata.normalize("NFC", "".join(map(_digit, kept)).translate(_VARIANTS))


def _digit(char: str) -> str:
    value = unicodedata.decimal(char, None)
    return char if value is None else str(value)


def _split(run: str) -> Iterator[str]:
    place = 0
    for match in _UNSPACED.finditer(run):
        if match.start() > place:
            yield run[place : match.start()]
        unspaced = match[0]
        yield from (unspaced[i : i + 2] for i in range(max(1, len(unspaced) - 1)))
        place = match.end()
    if place < len(run):
        yield run[place:]


def any_field(text: str) -> str:
    """A query for Graphiti's own search, over its own properties too, whose words are as they were written."""
    written = [word[:_WORD_CHARS_MAX] for word in _WORD.findall(text)]
    found = list(dict.fromkeys([*words(text)[: QUERY_WORDS_MAX // 2], *written]))[:QUERY_WORDS_MAX]
    return "|".join(found)
