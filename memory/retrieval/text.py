"""Text as it is matched: folding, words, stems. Applied to stored turns and to queries alike, never to what is stored.

Above: bm25 (which hashes the stems), dates, index. Below: vocabulary.

Everything here takes any ``str``, lone surrogates and control characters included, and raises nothing.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

import Stemmer

from memory.retrieval.vocabulary import BASE_FORMS, STOP_WORDS

WORD_CHARS_MAX = 64  # a longer run is no word anybody asks for; its head is still findable
_MEMO_WORDS_MAX = 16_384

# Accents, Hebrew points, Arabic vowel signs and tatweel; soft hyphen, zero-width and bidi marks, variation selectors.
# Marks of other scripts (Thai and Indic vowels, say) are part of their letters and stay.
_DROPPED = re.compile(
    "[\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u08ca-\u08ff\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff]"
)
_DIGIT_ZEROS = (0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xE50, 0xED0)
_LETTERS: dict[int, str] = {
    **{zero + value: str(value) for zero in _DIGIT_ZEROS for value in range(10)},
    # What NFKD does not take apart. Hamza seats (أ إ آ ؤ ئ) it does, and the hamza is then dropped as a mark.
    **{ord(a): b for a, b in zip("ٱىیةھہکگڤپ", "اييهههكجفب", strict=True)},
    **{ord(a): b for a, b in {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe"}.items()},
    **{ord(a): b for a, b in {"ı": "i", "ħ": "h", "ŧ": "t", "_": " "}.items()},
    **{ord(quote): "'" for quote in "‘’‚‛′`´ʼ"},
}

# A mark that belongs to a letter is no \w in Python: these keep words of scripts that write vowels as marks whole.
_MARKS = (
    "\u0900-\u0963\u0980-\u0d7f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0f84\u102b-\u103e"
    "\u1056-\u1059\u17b4-\u17d3"
)
_WORD = re.compile(rf"[\w{_MARKS}]+")
_CONTRACTION = re.compile(r"n't\b|'(?:s|m|d|t|ve|ll|re)\b")
_THOUSANDS = re.compile(r"(?<=\d)[,٬](?=\d{3}(?!\d))")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")

# Scripts written without spaces (and Hangul, whose words carry their particles): pairs of characters.
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = (
    _HAN + "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u0f00-\u0fff"
)
_RUNS = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_IS_HAN = re.compile(f"[{_HAN}]")


def fold(text: str) -> str:
    """``text`` in the form in which words are compared: NFKD and case folded, marks and invisibles dropped, composed.

    Letters that people write in more than one way (accents, Arabic alef, yeh and teh marbuta, Persian forms) become
    one; digits become ASCII; curly apostrophes straight.
    """
    if text.isascii():
        return text.lower().replace("_", " ").replace("`", "'")
    decomposed = _DROPPED.sub("", unicodedata.normalize("NFKD", text).casefold())
    return unicodedata.normalize("NFC", decomposed.translate(_LETTERS))


def words(text: str) -> Iterator[str]:
    """The folded words of ``text`` in order; runs of unspaced scripts as overlapping pairs of characters."""
    return _split(fold(text))


def _split(folded: str) -> Iterator[str]:
    if "'" in folded:
        folded = _CONTRACTION.sub(" ", folded)
    if "," in folded or "٬" in folded:
        folded = _THOUSANDS.sub("", folded)
    for match in _WORD.finditer(folded):
        word = match.group()
        if word.isascii() or not _IS_UNSPACED.search(word):
            yield word[:WORD_CHARS_MAX]
        else:
            for run in _RUNS.findall(word):
                yield from _pairs(run) if _IS_UNSPACED.match(run) else (run[:WORD_CHARS_MAX],)


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
        return
    for position in range(len(run) - 1):
        yield run[position : position + 2]
    # A Chinese or Japanese word is often one ideograph: it has to be findable alone.
    yield from (character for character in run if _IS_HAN.match(character))


def stems(text: str) -> list[str]:
    """The content words of ``text`` as stems, in order and with repeats; stop words left out."""
    return stems_of(words(text))


def stems_of(folded_words: Iterable[str]) -> list[str]:
    """The same from what ``words`` gave."""
    return [stem for stem in map(_stem, folded_words) if stem]


@lru_cache(maxsize=_MEMO_WORDS_MAX)
def _stem(word: str) -> str:
    """The stem of a folded word; "" for a stop word."""
    if word in STOP_WORDS:
        return ""
    word = BASE_FORMS.get(word, word)
    ordinal = _ORDINAL.fullmatch(word)
    if ordinal:
        return ordinal.group(1)
    if word.isascii():
        return _snowball("english", word) if word.isalpha() else word
    return _stem_by_script(word)


def _stem_by_script(word: str) -> str:
    first = word[0]
    if "\u0600" <= first <= "\u06ff":
        return _light_arabic(word)
    for low, high, language in _STEMMERS:
        if low <= first <= high:
            return _snowball(language, word)
    return word


_STEMMERS = (
    ("a", "\u024f", "english"),
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u052f", "russian"),
    ("\u0900", "\u097f", "hindi"),
)
_local = threading.local()


def _snowball(language: str, word: str) -> str:
    # A Stemmer must not be shared by threads. Its own cache is off: _stem's is bounded for all of them together.
    stemmers: dict[str, Stemmer.Stemmer] = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        stemmers[language] = Stemmer.Stemmer(language, 0)
    return str(stemmers[language].stemWord(word))


_ARABIC_PREFIXES = ("وال", "بال", "كال", "فال", "لل", "ال")
_ARABIC_SUFFIXES = ("ها", "ان", "ات", "ون", "ين", "يه", "ه", "ي")


def _light_arabic(word: str) -> str:
    """Light stemming after Larkey et al.'s light10.

    Snowball's Arabic stemmer treats a word differently with and without its article (السوداني, سوداني), and with
    ة written as ه, as speech-to-text and phones often do; this one does not.
    """
    if word.startswith("و") and len(word) > 4 and not word.startswith("وال"):
        word = word[1:]
    for prefix in _ARABIC_PREFIXES:
        if word.startswith(prefix) and len(word) >= len(prefix) + 2:
            word = word[len(prefix) :]
            break
    for suffix in _ARABIC_SUFFIXES:
        if word.endswith(suffix) and len(word) >= len(suffix) + 2:
            word = word[: -len(suffix)]
    return word
