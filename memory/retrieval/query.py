"""Reading a query: its words, the days it names, and what kind of asking it is. English rules, for now.

Above: index, relevance. Below: text, dates, vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from memory.retrieval.dates import Period, asks_when, named_periods
from memory.retrieval.text import fold, stems, stems_of, words
from memory.retrieval.vocabulary import SMALL_TALK

QUERY_CHARS_MAX = 8_000
LATEST_CONTENT_MAX = 2  # a query that names more than this is about that, not about what came last

# The caller speaks of themselves: then it is likelier that an answer lies in what they said before. The first words
# of other languages that share the Latin script are listed because the rule costs them nothing.
_PERSONAL = re.compile(
    r"\b(?:i|i'm|i've|i'd|i'll|im|ive|me|my|mine|myself|we|our|us|ours|yo|mi|mis|mio|je|j'ai|moi|mon|mes|ich|mir|mich"
    r"|meine?|meu|minha|eu|io)\b"
)
_LATEST = re.compile(
    r"\bjust (?:say|said|tell|told|mention|mentioned|ask|asked|talked?|talking|discuss|discussed|spoke)\b"
    r"|\blast (?:time|call|chat|conversation|session|message|thing)\b|\bleft off\b|\bwhere were we\b|\bso far\b"
    r"|\bthe usual\b|\bas (?:before|usual)\b|\b(?:a|one) (?:moment|minute|second|while) ago\b|\bearlier\b"
)
_MEMORY = re.compile(
    r"\b(?:remember|remind|recall)\b|\bwho am i\b|\bknow about me\b|\bmy name\b"
    r"|\b(?:did|have|had) (?:i|we|you) (?:just |ever |already )?(?:say|said|tell|told|mention|mentioned|ask|asked|talk"
    r"|talked|discuss|discussed|spoke|speak|agree|agreed)\b"
    r"|\b(?:i|you|we) (?:just |already )?(?:said|told|mentioned|asked|talked|discussed|spoke|agreed|recommended"
    r"|suggested)\b"
    r"|\b(?:last|previous|earlier) (?:time|call|chat|conversation|session|message|thing)s?\b"
)
_PHRASE_WORDS = frozenset(re.findall("[a-z]+", f"{_LATEST.pattern} {_MEMORY.pattern}"))  # and what is none
_SMALL_TALK_STEMS = frozenset(stems_of(sorted(SMALL_TALK)))


@dataclass(frozen=True, slots=True)
class Query:
    """What a query asks.

    ``stems``: its content words, with repeats. ``content``: those that name something; small talk has none.
    ``personal``: about the one who asks. ``memory``: about what was said before, by its own words. ``latest``: about
    whatever was said last. ``latin``: written in the script that the local embedder was trained on.
    """

    stems: tuple[str, ...]
    content: frozenset[str]
    when: bool
    periods: tuple[Period, ...]
    personal: bool
    memory: bool
    latest: bool
    latin: bool


def read(text: str, now: datetime) -> Query:
    """Read a query asked at ``now`` (aware). Takes any ``str``; its first ``QUERY_CHARS_MAX`` characters count."""
    text = text[:QUERY_CHARS_MAX]
    folded = fold(text)
    latest = _LATEST.search(folded) is not None
    content = _content(folded)
    return Query(
        stems=tuple(stems(text)),
        content=content,
        when=asks_when(text),
        periods=tuple(named_periods(text, now)),
        personal=_PERSONAL.search(folded) is not None,
        memory=latest or _MEMORY.search(folded) is not None,
        latest=latest and len(content) <= LATEST_CONTENT_MAX,
        latin=_mostly_ascii(folded),
    )


def names_something(text: str) -> bool:
    """Whether the text, read as a query, has ``content``: it isn't small talk alone."""
    folded = fold(text[:QUERY_CHARS_MAX])
    # As a rule one of the first words does, and is in no phrase that would have to be looked for and taken away.
    beside = (word for word in words(folded) if word not in _PHRASE_WORDS)
    return any(stem not in _SMALL_TALK_STEMS for stem in stems_of(beside)) or bool(_content(folded))


def _content(folded: str) -> frozenset[str]:
    # "What did I just tell you?" names nothing once the phrase that says so is taken away.
    named = stems(_MEMORY.sub(" ", _LATEST.sub(" ", folded)))
    return frozenset(stem for stem in named if stem not in _SMALL_TALK_STEMS)


def _mostly_ascii(folded: str) -> bool:
    letters = [character for character in folded if character.isalpha()]
    return 2 * sum(character.isascii() for character in letters) >= len(letters)
