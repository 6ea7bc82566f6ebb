"""How a fact is put, compared with what was said: its names, numbers, dates, words.

Above: guards. Below: assertions, lexicon, spoken_numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from memory.ingestion import lexicon
from memory.ingestion.assertions import Clause, Vocabulary, denies
from memory.ingestion.extraction import ExtractedFact
from memory.ingestion.spoken_numbers import Numbers
from memory.knowledge import USER_ENTITY_KEY
from memory.retrieval.text import fold, stems, words

PAST_DAYS_MAX = 366 * 120
FUTURE_DAYS_MAX = 366 * 5

_MONTHS = (
    "january|february|march|april|may|june|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul|aug"
    "|sep|sept|oct|nov|dec|januar|februar|marz|mai|juni|juli|oktober|dezember|enero|febrero|marzo|abril|mayo|junio|julio"
    "|agosto|septiembre|octubre|noviembre|diciembre|janvier|fevrier|mars|avril|juin|juillet|aout|septembre|octobre|novembre"
    "|decembre"
)
_DAYS = (
    "monday|tuesday|wednesday|thursday|friday|saturday|sunday|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag"
    "|lunes|martes|miercoles|jueves|viernes|sabado|domingo|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche"
)
# Full dates in a folded text: what an extractor makes of "on Tuesday".
_DATE = re.compile(
    rf"(?:(?:{_DAYS}),? )?(?:(?:the |den |el |le )?(?P<day>\d\d?)(?:st|nd|rd|th|\.)?(?: of| de)? (?P<month>{_MONTHS})\b"
    rf"(?:,?(?: de| del)? (?P<year>\d{{4}}))?"
    rf"|(?P<month2>{_MONTHS}) (?P<day2>\d\d?)(?:st|nd|rd|th)?(?:,? (?P<year2>\d{{4}}))?\b"
    rf"|(?P<year3>\d{{4}})-(?P<month3>\d\d)-(?P<day3>\d\d)(?:t[\d:.]+z?)?|\b(?P<month4>{_MONTHS}),? (?P<year4>\d{{4}}))"
)
_DAY_NAMES = re.compile(rf"\b(?:{_DAYS}|{_MONTHS})\b")
_RELATIVE = lexicon.whole(
    "today tonight tomorrow yesterday week weekend month next last heute morgen gestern ubermorgen woche monat hoy"
    " manana ayer semana mes aujourd'hui demain hier semaine mois غدا امس اليوم القادم kal aaj parso hafte"
)
_DAY_OF_MONTH = re.compile(
    rf"\b\d\d?(?:st|nd|rd|th|\.)? (?:of |de )?(?:{_MONTHS})\b|\b(?:{_MONTHS}) \d\d?\b", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+")
_CLOCK_PM = re.compile(r"\b(1[3-9]|2[0-3]):?([0-5]\d)?\b")
_FRAME = lexicon.FRAME | frozenset(stems(" ".join(lexicon.FRAME)))
_WORD = re.compile(r"[^\W\d_][\w'’-]*")
_POSSESSIVE = re.compile(r"['’]s\b|['’]$")


def temporal(clauses: Iterable[Clause]) -> bool:
    """Whether any of these tells a time, by whatever word."""
    return any(lexicon.TEMPORAL.search(clause.folded) for clause in clauses)


class Wording:
    """One fact's words. "Content": besides stop words, and besides the words by which facts are put."""

    def __init__(self, fact: ExtractedFact) -> None:
        self._fact = fact
        folded = fold(fact.text)
        self._dates = list(_DATE.finditer(folded))
        self._timeless = _DATE.sub(" ", folded)
        self.denied = denies(re.sub(r"^no,? ", "", folded))
        subject = set() if fact.subject == USER_ENTITY_KEY else set(_content(fact.subject))
        self._subject = _content(fact.subject) if fact.subject != USER_ENTITY_KEY else []
        self._object = [word for word in _content(_DATE.sub(" ", fold(fact.object))) if not word.isdigit()]
        self._text = [word for word in _content(self._timeless) if not word.isdigit()]
        self._key = [word for word in (*self._object, *self._text) if word not in subject]

    def closest(self, clauses: Sequence[Clause]) -> list[Clause]:
        """The clauses that share most with it; none that share nothing at all."""
        scores = [self._score(clause) for clause in clauses]
        top = max(scores, default=0.0)
        return [clause for clause, score in zip(clauses, scores, strict=True) if score == top] if top > 0 else []

    def _score(self, clause: Clause) -> float:
        share = sum(word in clause.vocabulary for word in dict.fromkeys(self._key))
        said = set(_NUMBER.findall(clause.folded))
        share += sum(digits in said for digits in _NUMBER.findall(fold(self._fact.text)))
        if not share and self._dates and lexicon.TEMPORAL.search(clause.folded):
            share += 1
        return share

    def numbers_in(self, said: Numbers) -> bool:
        """Whether every number of it was said; those of full dates apart, and 24-hour times for "pm"."""
        text = _CLOCK_PM.sub(lambda m: f"{int(m[1]) - 12}:{m[2]}" if m[2] else m[0], self._timeless)
        plain = re.sub(r"(?<=\d)[,.'](?=\d{3}(?!\d))", "", text)
        return all(said.has(digits) or not int(digits) for digits in _NUMBER.findall(plain)[:50])

    def dates_plausible(self, now: datetime, clauses: Sequence[Clause]) -> bool:
        """Whether its dates were spoken of at all, and are near enough to now."""
        if not self._dates:
            return True
        return temporal(clauses) and all(_plausible(match, now) for match in self._dates)

    def names_in(self, said: Vocabulary, clauses: Sequence[Clause]) -> bool:
        """Whether every name of it was said. A day's name may stand for "tomorrow"."""
        relative = any(_is_relative(clause.folded) for clause in clauses)
        for name in self._names():
            if relative and _DAY_NAMES.fullmatch(name):
                continue
            if name not in said:
                return False
        return all(word in said for word in self._subject if word not in lexicon.KIN_WORDS)

    def _names(self) -> list[str]:
        """Capitalised words, folded: in the text but at its start, anywhere in subject and object."""
        found: list[str] = []
        dateless = _without_dates(self._fact.text)
        for text, first in ((dateless, 1), (self._fact.subject, 0), (_without_dates(self._fact.object), 0)):
            for match in list(_WORD.finditer(text))[first:]:
                word = _POSSESSIVE.sub("", match.group())
                if word[:1].isupper() and word not in ("I", "User", "Users"):
                    found += [part for part in words(word) if part not in _FRAME]
        return found

    def object_share(self, said: Vocabulary) -> float:
        """How much of the object was said; 1 where it is a number or a date."""
        return _share(self._object, said)

    def share(self, said: Vocabulary, asked: Vocabulary) -> float:
        """How much of it was said, by the user or in the question that they answered."""
        return _share(self._text, said, asked)

    def mentions(self, word: str) -> bool:
        return fold(word) in Vocabulary(f"{self._fact.text} {self._fact.object}")

    def mentions_name_after(self, kin: str, clause: Clause) -> bool:
        """Whether it names whom a clause names: the Omar of "my brother Omar"."""
        said = _WORD.findall(clause.text)
        places = [place for place, word in enumerate(said[:-1]) if fold(word) == kin]
        names = [_POSSESSIVE.sub("", said[place + 1]) for place in places]
        return any(name[:1].isupper() and self.mentions(name) for name in names)

    @property
    def mentions_somebody(self) -> bool:
        """Whether it speaks of a relative, or of anybody by name."""
        folded = fold(self._fact.text)
        return bool(lexicon.KIN_WORDS.intersection(words(folded))) or any(
            name not in self._object for name in self._names()
        )

    def subject_in(self, said: Vocabulary) -> bool:
        """Whether any word of its subject is there."""
        return any(word in said for word in self._subject)


def _is_relative(folded: str) -> bool:
    return _RELATIVE.search(folded) is not None


def _content(text: str) -> list[str]:
    """Stems of the words that say something."""
    return [stem for stem in stems(text) if stem not in _FRAME]


def _share(mine: Sequence[str], *said: Vocabulary) -> float:
    if not mine:
        return 1.0
    return sum(any(word in each for each in said) for word in mine) / len(mine)


def _without_dates(text: str) -> str:
    """Dates blanked out. Folding may change a text's length, so this looks for them word by word."""
    return re.sub(
        rf"(?i)\b\d{{1,2}}(?:st|nd|rd|th|\.)? (?:of |de )?(?:{_MONTHS})\b|\b(?:{_MONTHS}) \d{{1,2}}\b", " ", text
    )


def _plausible(match: re.Match[str], now: datetime) -> bool:
    year = next((match[name] for name in ("year", "year2", "year3", "year4") if match[name]), None)
    if year is None:
        return True
    try:
        date = datetime(int(year), 6, 15, tzinfo=now.tzinfo)
    except ValueError:
        return False
    return now - timedelta(days=PAST_DAYS_MAX) <= date <= now + timedelta(days=FUTURE_DAYS_MAX)
