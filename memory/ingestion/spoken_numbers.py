"""Which numbers a text says, in digits or words: "order four four seven one", "neunundzwanzig", "twenty nineteen".

English, German, Spanish, French, Hindi (Latin script) and Arabic. Above: guards. Below: retrieval.text (folding).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from memory.retrieval.text import fold

_RUN_DIGITS_MIN = 3  # a shorter number is no part of a longer one: the 4 of "44 71" is none
_TOKENS_MAX = 20_000
_DIGITS_MAX = 15
_THOUSANDS = re.compile(r"(?<=\d)[,.'  ](?=\d{3}(?!\d))")
_TOKEN = re.compile(r"\d+|[^\W\d_]+")
_BETWEEN = frozenset(("and", "und", "y", "et", "o", "oh", "و"))  # "o" and "oh" are zeros where they stand alone
_REPEATS = {"double": 2, "triple": 3, "doppel": 2}

# From 0 on, each language's line; a word of several languages means the same in all or is left out ("do", "no").
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen",
    "null eins zwei drei vier funf sechs sieben acht neun zehn elf zwolf dreizehn vierzehn funfzehn sechzehn siebzehn"
    " achtzehn neunzehn",
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciseis diecisiete"
    " dieciocho diecinueve",
    "zero un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit"
    " dix-neuf",
    "shunya ek - teen char paanch chhe saat aath nau das gyarah barah terah chaudah pandrah solah satrah atharah unnis",
    "صفر واحد اثنين ثلاثه اربعه خمسه سته سبعه ثمانيه تسعه عشره",
    "صفر واحد اثنان ثلاث اربع خمس ست سبع ثمان تسع عشر",
)
_TENS = (
    "- - twenty thirty forty fifty sixty seventy eighty ninety",
    "- - zwanzig dreissig vierzig funfzig sechzig siebzig achtzig neunzig",
    "- - veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    "- - vingt trente quarante cinquante soixante - quatre-vingt -",
    "- - bees tees chalis pachas saath sattar assi nabbe",
    "- - عشرين ثلاثين اربعين خمسين ستين سبعين ثمانين تسعين",
    "- - عشرون ثلاثون اربعون خمسون ستون سبعون ثمانون تسعون",
)
_SCALES = {
    100: ("hundred", "hundert", "cien", "ciento", "cent", "cents", "sau", "مائه", "ميه"),
    1_000: ("thousand", "tausend", "mil", "mille", "hazar", "الف", "الاف"),
}


def _values() -> dict[str, int]:
    values = {word: number for line in _UNITS for number, word in enumerate(line.split()) if word != "-"}
    values |= {word: number * 10 for line in _TENS for number, word in enumerate(line.split()) if word != "-"}
    values |= {word: scale for scale, names in _SCALES.items() for word in names}
    units = dict(enumerate(("ein", "zwei", "drei", "vier", "funf", "sechs", "sieben", "acht", "neun"), 1))
    tens = {n * 10: word for n, word in enumerate(_TENS[1].split()) if word != "-"}
    values |= {f"{unit}und{ten}": n + m for n, unit in units.items() for m, ten in tens.items()}
    values |= {f"{unit}hundert": n * 100 for n, unit in units.items()}
    twenties = ("uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve")
    return values | {f"veinti{word}": 20 + n for n, word in enumerate(twenties, 1)}


_VALUES = _values()


@dataclass(frozen=True, slots=True)
class Numbers:
    """``single``: what was said as one number, without leading zeros; ``runs``: what was said one after the other."""

    single: frozenset[str]
    runs: tuple[str, ...]

    def has(self, digits: str) -> bool:
        """Whether a number was said, at once or figure by figure."""
        if _plain(digits) in self.single:
            return True
        return len(digits) >= _RUN_DIGITS_MIN and any(digits in run for run in self.runs)


def numbers(text: str) -> Numbers:
    """All numbers of ``text``."""
    single: set[str] = set()
    runs: list[str] = []
    for run in _said(text):
        made = _composed(run)
        single.update(_plain(digits) for digits in (*run, *made))
        if "100" in run or "1000" in run:
            single.add(str(_value([int(digits) for digits in run if len(digits) <= _DIGITS_MAX])))
        if len(run) > 1:
            runs += ["".join(run), "".join(made)]
    return Numbers(frozenset(single), tuple(dict.fromkeys(runs)))


def written(text: str) -> list[str]:
    """The numbers of ``text`` one by one, tens and units made one; without "one", which is an article as often."""
    return [digits for run in _said(text, articles=False) for digits in _composed(run)]


def _plain(digits: str) -> str:
    return digits.lstrip("0") or "0"


def _said(text: str, *, articles: bool = True) -> Iterator[list[str]]:
    """Runs of number tokens, as digits. ``articles``: words for 1, and ordinals, among them."""
    folded = fold(_THOUSANDS.sub("", text)).replace("dix-", "dix").replace("quatre-vingt", "quatrevingt")
    run: list[str] = []
    repeat, zero = 1, ""
    for match, _ in zip(_TOKEN.finditer(folded), range(_TOKENS_MAX), strict=False):
        word = match.group()
        digits = word if word.isdigit() else _digits(word)
        if digits is None and articles:
            digits = _ORDINALS.get(word)
        if digits == "1" and not articles and not word.isdigit():
            digits = None
        if digits is not None:
            run += [zero, digits * repeat] if zero else [digits * repeat]
            repeat, zero = 1, ""
        elif word in _REPEATS:
            repeat = _REPEATS[word]
        elif word in ("o", "oh"):
            zero = "0"
        elif word not in _BETWEEN:
            zero = ""
            if run:
                yield run
            run = []
    if run:
        yield run


def _digits(word: str) -> str | None:
    value = _VALUES.get(word, _VALUES.get(_JOINED.get(word, "")))
    return None if value is None else str(value)


def _ordinals() -> dict[str, str]:
    """English ones, for days: "the twelfth of May"."""
    irregular = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
    regular = {f"{word}th": value for word, value in _VALUES.items() if 3 < value < 20 and word.isascii()}
    tens = {"twentieth": 20, "thirtieth": 30}
    return {word: str(value) for word, value in (regular | irregular | tens).items()}


_ORDINALS = _ordinals()


_JOINED = {"dixsept": "dix-sept", "dixhuit": "dix-huit", "dixneuf": "dix-neuf", "quatrevingt": "quatre-vingt"}
_JOINED["quatrevingts"] = "quatre-vingt"


def _composed(run: list[str]) -> list[str]:
    """Tens and units made one: 20, 3 -> 23; 60, 12 -> 72 as French counts."""
    made: list[str] = []
    for digits in run:
        before = made[-1] if made else ""
        ten = len(before) == 2 and before[1] == "0" and before[0] > "1"
        unit = len(digits) == 1 and digits != "0"
        if digits == "100" and len(before) == 1 and before != "0":
            made[-1] = before + "00"
        elif (ten and unit) or (before in ("60", "80") and len(digits) == 2 and digits[0] == "1"):
            made[-1] = str(int(before) + int(digits))
        else:
            made.append(digits)
    return made


def _value(run: list[int]) -> int:
    """What a run means as one number: 2, 100, 30, 5 -> 235."""
    total = part = 0
    for number in run:
        if number == 1_000:
            total, part = total + (part or 1) * number, 0
        elif number == 100:
            part = (part or 1) * number
        else:
            part += number
    return total + part
