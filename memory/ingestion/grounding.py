"""How a fact is put, compared with what was said: its names, numbers, dates, words.

Above: guards. Below: assertions, lexicon, spoken_numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from memory.ingestion import lexicon
from memory.ingestion.assertions import Clause, Joined, Vocabulary, denies, head
from memory.ingestion.extraction import ExtractedFact
from memory.ingestion.spoken_numbers import Numbers, written
from memory.knowledge import USER_ENTITY_KEY
from memory.retrieval.text import fold, stems, words

COVERED_MIN = 0.7  # of a fact's words that were said, besides how facts are put
OBJECT_COVERED_MIN = 0.6
PARAPHRASE_COVERED_MIN = 0.85  # of the words, where the object is half the user's and half the extractor's
TELLING_DIGITS = 6
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
_WEEKDAYS = re.compile(rf"\b(?:{_DAYS})s?\b|الاثنين|الثلاثاء|الاربعاء|الخميس|الجمعه|السبت|الاحد")
_DAY_NAMES = re.compile(rf"\b(?:{_DAYS}|{_MONTHS})\b")
_RELATIVE = lexicon.whole(
    "today tonight tomorrow yesterday week weekend month next last heute morgen gestern ubermorgen woche monat hoy"
    " manana ayer semana mes aujourd'hui demain hier semaine mois غدا امس اليوم القادم kal aaj parso hafte"
)
_NUMBERS_MAX = 50  # of one fact that are looked at
# All nouns of a German sentence are capitalised: there, capitals tell no names.
_GERMAN = lexicon.whole("ist hat der die das den dem und einen eine am im nicht fur mit bei wohnt heisst mochte")
_FRAME = lexicon.FRAME | frozenset(stems(" ".join(lexicon.FRAME)))
_WORD = re.compile(r"(?<!\w)[^\W\d_][\w'’-]*")
# Two words for one relation, as stems.
_SAME = {
    "mother": ("mom", "mum", "mama"),
    "mom": ("mother", "mama"),
    "father": ("dad", "papa"),
    "dad": ("father", "papa"),
}
_POSSESSIVE = re.compile(r"['’]s\b|['’]$")


Words = Vocabulary | Joined


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
        self._numbers = written(self._timeless)[:_NUMBERS_MAX]
        self.denied = denies(fold(head(fact.text)))
        subject = set() if fact.subject == USER_ENTITY_KEY else set(content(fact.subject))
        self._subject = content(fact.subject) if fact.subject != USER_ENTITY_KEY else []
        self._object = [word for word in content(_DATE.sub(" ", fold(fact.object))) if not word.isdigit()]
        self._text = [word for word in content(self._timeless) if not word.isdigit()]
        self._key = [word for word in (*self._object, *self._text) if word not in subject]

    def closest(self, clauses: Sequence[Clause]) -> list[Clause]:
        """The clauses that share most with it; none that share nothing at all."""
        scores = [self._score(clause) for clause in clauses]
        top = max(scores, default=0.0)
        return [clause for clause, score in zip(clauses, scores, strict=True) if score == top] if top > 0 else []

    def _score(self, clause: Clause) -> float:
        share: float = sum(word in clause.vocabulary for word in dict.fromkeys(self._key))
        share += sum(word in clause.vocabulary for word in self._object)  # what it is about counts twice
        share += sum(clause.numbers.has(digits) for digits in self._numbers)
        if not share and self._dates and lexicon.TEMPORAL.search(clause.folded):
            share += 0.5
        return share

    def numbers_in(self, said: Sequence[Numbers]) -> bool:
        """Whether every number of it is in one of these; those of full dates apart, and 24-hour times for "pm"."""
        return all(
            not int(digits) or any(each.has(digits) or _said_as_pm(digits, each) for each in said)
            for digits in self._numbers
        )

    def dates_plausible(self, now: datetime, clauses: Sequence[Clause], said: Numbers) -> bool:
        """Whether its dates were spoken of at all, and are near enough to now.

        A day of the month that nobody named may stand for "Tuesday" or "tomorrow".
        """
        reckoned = any(_is_relative(clause.folded) for clause in clauses)
        return all(_plausible(date, now) and (reckoned or _day_said(date, said)) for date in self._dates)

    def names_in(self, said: Words, clauses: Sequence[Clause]) -> bool:
        """Whether every name of it was said. A day's name may stand for "tomorrow"."""
        relative = any(_is_relative(clause.folded) for clause in clauses)
        for name in self._names():
            if relative and _DAY_NAMES.fullmatch(name):
                continue
            if name not in said:
                return False
        return all(_among(word, (said,)) for word in self._subject if word not in lexicon.KIN_WORDS)

    def _names(self) -> list[str]:
        """Capitalised words, folded: in the text but at its start, anywhere in subject and object."""
        found: list[str] = []
        dateless = _without_dates(self._fact.text)
        texts = [(self._fact.subject, 0), (_without_dates(self._fact.object), 0)]
        if not _GERMAN.search(fold(dateless)):
            texts.append((dateless, 1))
        for text, first in texts:
            for match in list(_WORD.finditer(text))[first:]:
                word = _POSSESSIVE.sub("", match.group())
                if word[:1].isupper() and word.casefold() not in ("i", "user", "users"):
                    found += [part for part in words(word) if part not in _FRAME]
        return found

    def grounded(self, said: Words, asked: Words, *, brief: bool) -> bool:
        """Whether enough of it was said: of the object, and of all its words.

        ``asked``: the question that the user answered, ``brief``: in a word or two. Its words count for how a fact is
        put, and for the object's only where the answer is brief and says some of it.
        """
        if not self._object and any(len(digits) >= TELLING_DIGITS for digits in self._numbers):
            return True  # a telephone number says what it is, however it was put
        own = _share(self._object, said)
        if brief and own > 0:
            own = _share(self._object, said, asked)
        if own < OBJECT_COVERED_MIN and not (own >= 0.5 and _share(self._text, said) >= PARAPHRASE_COVERED_MIN):
            return False
        return _share(self._text, said, asked) >= COVERED_MIN

    def is_about(self, said: Words) -> bool:
        """Whether all of its object is in these words."""
        return bool(self._object) and _share(self._object, said) == 1.0

    def owed_to(self, others: Words, own: Words) -> bool:
        """Whether any of its words was said of others alone."""
        return any(word in others and word not in own for word in self._text)

    def mentions(self, word: str) -> bool:
        own = Vocabulary(f"{self._fact.text} {self._fact.object}")
        return any(_among(form, (own,)) for form in (fold(word), *stems(word)))

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

    def subject_in(self, said: Words) -> bool:
        """Whether any word of its subject is there."""
        return any(word in said for word in self._subject)


def _is_relative(folded: str) -> bool:
    return _RELATIVE.search(folded) is not None or _WEEKDAYS.search(folded) is not None


def _said_as_pm(digits: str, said: Numbers) -> bool:
    """Whether a time of a 24-hour clock was said by the 12-hour one."""
    return len(digits) <= 2 and 13 <= int(digits) <= 23 and said.has(str(int(digits) - 12))


def _day_said(date: re.Match[str], said: Numbers) -> bool:
    day = date["day"] or date["day2"] or date["day3"]
    year = date["year"] or date["year2"] or date["year3"] or date["year4"]
    return said.has(day) if day else said.has(year)


def content(text: str) -> list[str]:
    """Stems of the words that say something."""
    return [stem for stem in stems(text) if stem not in _FRAME]


def _share(mine: Sequence[str], *said: Words) -> float:
    if not mine:
        return 1.0
    return sum(_among(word, said) for word in mine) / len(mine)


def _among(word: str, said: Sequence[Words]) -> bool:
    return any(form in each for form in (word, *_SAME.get(word, ())) for each in said)


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
