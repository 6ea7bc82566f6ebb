"""What the user states in a chunk, clause by clause: without questions, suppositions, jokes, reports of what was said,
and what others say into the same phone.

``Sources`` is made once for a chunk; ``guards`` asks it what a fact rests on. Pure. Above: guards. Below: lexicon,
speakers, speech_noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from memory.ingestion import lexicon
from memory.ingestion.speakers import spoken_by_others
from memory.ingestion.speech_noise import unheard
from memory.ingestion.spoken_numbers import Numbers, numbers
from memory.knowledge import TurnPart
from memory.retrieval.text import fold, stems, words

CONTEXT_TURNS = 12  # of the user's, before the one that states a fact: where its pronouns and numbers may come from
_PREFIX_MIN = 4  # letters that two forms of a word share at least
_PREFIX_SHARE = 0.7  # of the longer one
_CLAUSES_MAX = 2_000  # of one chunk

_SENTENCE = re.compile(
    r"(?:[^.!?…؟।\n]|(?<=\d)[.](?=\d)|(?<=\bDr)[.]|(?<=\bMr)[.]|(?<=\bMrs)[.]|(?<=\bSt)[.])+[.!?…؟।]*"
)
_CLAUSE = re.compile(
    r"[,;:،؛]\s+|\s[–—-]\s|\s(?:but|because|although|though|whereas|so that|aber|sondern|weil|denn|obwohl|pero|porque"
    r"|aunque|mais|parce que|car|لكن|لان|lekin|magar|kyunki)\s|\s(?:and|und|y|et|aur)\s(?=(?:i|i'm|i've|my|we|he|she"
    r"|they|it|ich|mein|meine|wir|er|mi|yo|je|j'|mon|ma|il|elle|main|mera|meri)\b)|\sو(?=\w)",
    re.IGNORECASE,
)
_STATES = lexicon.any_of(
    r"""
    \b(?:my|our) [\w ]+ (?:is|are|was|has)\b|\bi(?:'m| am| have|'ve| live| work| take)\b
    \b(?:meine?|unsere?) [\w ]+ (?:ist|hat)\b|\bich (?:bin|habe|wohne|heisse)\b
    \bmis? [\w ]+ (?:es|esta|son)\b|\b(?:soy|tengo|vivo)\b|\b(?:mon|ma|mes) [\w ]+ (?:est|sont)\b|\bj'(?:ai|habite)\b
    """
)


@dataclass(frozen=True)
class Clause:
    """A statement, or a request, as it was said. ``place``: of its turn. ``sentence``: numbers a turn's sentences."""

    place: int
    sentence: int
    text: str
    request: bool = False
    confirmed: bool = False  # the agent's words, to which the user said yes

    @cached_property
    def folded(self) -> str:
        return lexicon.LEADING_NO.sub("", lexicon.LEADING.sub("", fold(self.text).strip()))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.text)

    @cached_property
    def numbers(self) -> Numbers:
        return numbers(self.text)

    @cached_property
    def negated(self) -> bool:
        return denies(self.folded)

    @property
    def first_person(self) -> bool:
        return self.confirmed or lexicon.FIRST_PERSON.search(self.folded) is not None


class Vocabulary:
    """The words of a text, to be found again in another form: stems, and words that begin alike."""

    def __init__(self, text: str) -> None:
        self._words = frozenset(words(text)) | frozenset(stems(text))
        self._heads: dict[str, list[str]] = {}
        for word in self._words:
            self._heads.setdefault(word[:_PREFIX_MIN], []).append(word)

    def __contains__(self, word: str) -> bool:
        """``word``: folded, or a stem."""
        if word in self._words:
            return True
        if len(word) < _PREFIX_MIN or word.isdigit():
            return False
        return any(_alike(word, other) for other in self._heads.get(word[:_PREFIX_MIN], ()))


class Joined:
    """Several vocabularies as one, without making it."""

    def __init__(self, parts: Iterable[Vocabulary]) -> None:
        self._parts = tuple(parts)

    def __contains__(self, word: str) -> bool:
        return any(word in part for part in self._parts)


def _alike(word: str, other: str) -> bool:
    shared = 0
    for mine, theirs in zip(word, other, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared >= _PREFIX_SHARE * max(len(word), len(other))


def denies(folded: str) -> bool:
    """Whether a folded text has a word of denial."""
    return lexicon.NEGATIONS.search(folded) is not None or lexicon.NEGATED_SHORT.search(folded) is not None


class Sources:
    """A chunk's turns as sources of facts. ``places``: the turns that the user speaks."""

    def __init__(self, turns: Sequence[TurnPart], user_name: str = "") -> None:
        self._turns = turns
        silent = unheard(turns) | spoken_by_others(turns, user_name)
        own = [place for place, turn in enumerate(turns) if turn.speaker == "user" and place not in silent]
        self.places = frozenset(own)
        clauses, retracted = _clauses(turns, own)
        clauses = [clause for clause in clauses if (clause.place, clause.sentence) not in retracted]
        self._of = {place: [clause for clause in clauses if clause.place == place] for place in own}
        self._order = own

    def stated(self, places: Sequence[int]) -> list[Clause]:
        """What the user states in these turns, and what they say yes to there."""
        return [clause for place in places for clause in (*self._of.get(place, ()), *self._confirmed(place))]

    def before(self, place: int) -> list[Clause]:
        """What the user stated earlier: the newest ``CONTEXT_TURNS`` of their turns."""
        at = self._order.index(place)
        return [clause for other in self._order[max(0, at - CONTEXT_TURNS) : at] for clause in self._of[other]]

    def answered(self, place: int) -> str:
        """What the agent said right before a turn, or ""."""
        if place == 0 or self._turns[place - 1].speaker != "assistant":
            return ""
        return self._turns[place - 1].text

    def _confirmed(self, place: int) -> list[Clause]:
        if place not in self.places or not lexicon.AFFIRMATIONS.search(fold(self._turns[place].text).strip()):
            return []
        return [
            Clause(place, -1, text, confirmed=True)
            for sentence in _sentences(self.answered(place))
            if _offers(sentence)
            for text in _CLAUSE.split(sentence)
            if text and text.strip()
        ]


def head(text: str) -> str:
    """The first clause of a text."""
    return next((part for part in _CLAUSE.split(text) if part and part.strip()), text)


def _offers(sentence: str) -> bool:
    return sentence.endswith(("?", "؟")) or lexicon.OFFERS.search(fold(sentence)) is not None


def numbers_of(clauses: Sequence[Clause]) -> Numbers:
    """All numbers of these."""
    parts = [clause.numbers for clause in clauses]
    return Numbers(
        frozenset().union(*(part.single for part in parts)), tuple(run for part in parts for run in part.runs)
    )


def _sentences(text: str) -> list[str]:
    return [sentence.strip() for sentence in _SENTENCE.findall(text) if sentence.strip()]


def _clauses(turns: Sequence[TurnPart], own: Sequence[int]) -> tuple[list[Clause], set[tuple[int, int]]]:
    """All clauses that state or request something, and the sentences that were taken back as jokes."""
    clauses: list[Clause] = []
    retracted: set[tuple[int, int]] = set()
    last: list[tuple[int, int]] = []  # the sentences of the turn before
    for place in own:
        sentences = _sentences(turns[place].text)
        for number, sentence in enumerate(sentences):
            if _is_joke(sentence):
                retracted.update([(place, number - 1)] if number else last)
            clauses += _stated(place, number, sentence)
        last = [(place, number) for number in range(len(sentences))]
    return clauses[-_CLAUSES_MAX:], retracted


def _is_joke(sentence: str) -> bool:
    folded = fold(sentence)
    return lexicon.JOKES.search(folded) is not None and not lexicon.NO_JOKES.search(folded)


def _stated(place: int, number: int, sentence: str) -> Iterator[Clause]:
    folded = fold(sentence).strip()
    if lexicon.SUPPOSED.search(folded) or lexicon.REPORTED.search(folded):
        return
    request = lexicon.REQUESTS.search(folded) is not None
    asks = sentence.endswith(("?", "؟"))
    if asks and (tag := lexicon.TAGS.search(folded)) and tag.start() > 0:
        sentence, asks = _without_tag(sentence), False
    parts = [
        part.strip(" ,;:¿¡") for part in _CLAUSE.split(_without_slips(sentence)) if part and part.strip(" ,;:¿¡.?!")
    ]
    for at, part in enumerate(parts):
        said = fold(part)
        if lexicon.ASKS.search(said) and not request:
            return
        if asks and at == len(parts) - 1 and not request:
            return
        if not _is_joke(part):
            wants = lexicon.REQUESTS.search(said) is not None or (request and asks)
            yield Clause(place, number, part, request=wants and not _STATES.search(said))


def _without_tag(sentence: str) -> str:
    """Without what makes a question of it at its end: "…, right?"."""
    head, _, tail = sentence.rstrip("?؟ ").replace("،", ",").rpartition(",")
    return head if head else " ".join(tail.split()[:-1])


def _without_slips(sentence: str) -> str:
    """Without what was corrected in the same breath: "on Monday, no sorry, on Tuesday"."""
    return lexicon.SLIP.sub("", sentence) if len(sentence) < 2_000 else sentence
