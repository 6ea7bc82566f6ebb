"""How a statement is worded: what two statements have in common that say the same, the opposite, or one value twice.

Only what wording makes certain is decided here, for any LLM forgets some of it; all else is left to the LLM. Most of it
knows English, since facts are extracted in it; negation knows the common words of other languages, which do no harm.
Pure. Above: merging, forgetting. Below: knowledge.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from memory.knowledge import KnownFact, Statement, name_key

_MEMO_MAX = 8_192  # statements, of FACT_CHARS_MAX each; turns are not kept

_WORD = re.compile(r"\w+(?:['’]\w+)*|[+\-]?\d[\d.,:/-]*")
_DIGITS = re.compile(r"\d+")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"'})
_ENDING = " .!…。؟?۔।"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NEGATORS = _set(
    "not no never cannot neither nor without non nicht kein keine keinen nie ne pas jamais nunca não nem niet geen inte"
    " ikke не ни нет nie лише لا ليس ليست لست غير نہیں نہ नहीं न değil yok"
)
# What comes and goes with a negation, or adds nothing to what is said.
_FILLERS = _set(
    "a an the is are am be been do does did really actually longer anymore more any now currently at all still just"
    " user caller customer"
)
_LIKES = _set("like love enjoy adore fancy")
_DISLIKES = _set("hate dislike loathe detest")
_IRREGULAR = {"has": "have", "having": "have", "cant": "can", "lives": "live", "living": "live"}
_CORE_WORDS_MIN = 2

_OWNER = r"(?:the\s+)?(?P<owner>\S+(?:\s+\S+){0,3}?)"
_NAMED = r"(?:full |first |last |preferred |family |middle )?name|nickname|surname"
_REACHED = (
    r"(?:primary |work |home |private |personal |business )?(?:e-?mail(?: address)?|(?:(?:tele|mobile |cell )?phone"
    r"|mobile|cell)(?: number)?|(?:postal |mailing |street |delivery |shipping |billing )?address)"
)
_OWN = r"birthday|birth ?date|date of birth|age|time ?zone|(?:job|current) title|employer|place of birth|marital status"
_CHOSEN = r"(?:favou?rite|preferred) [\w-]+(?: [\w-]+)?"
_BECOMES = r"(?:is|are|is now|was changed to|was updated to|has changed to|has been changed to|changed to)"
_HAS_VALUE = re.compile(
    rf"{_OWNER}'s\s+(?:(?:new|current|main|only|actual|correct)\s+)*(?P<slot>{_NAMED}|{_REACHED}|{_OWN}|{_CHOSEN})"
    rf"\s+{_BECOMES}\s+(?:now\s+)?(?P<value>.+)",
    re.IGNORECASE,
)
_IS_CALLED = re.compile(rf"{_OWNER}\s+(?:is|is now|was)\s+(?:called|named|known as)\s+(?P<value>.+)", re.IGNORECASE)
_LIVES = re.compile(
    rf"{_OWNER}\s+(?:(?:now|currently|has|is|just|recently)\s+)*"
    r"(?P<how>lives? in|living in|resides? in|residing in|(?:moved|relocated) (?:back )?to)\s+(?P<value>.+)",
    re.IGNORECASE,
)
_AGED = re.compile(rf"{_OWNER}\s+(?:is|turned|has turned)\s+(?P<value>\d{{1,3}})(?:\s+years?\s+old)", re.IGNORECASE)
# "moved to" the premium plan, to Friday, to sales: no home.
_NO_HOME = re.compile(
    r"^(?:the|an?|another|our|new)\b|\d|\b(?:plan|tier|package|subscription|team|department|role|position|account|slot"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day|tomorrow|next|premium|basic|pro|enterprise)\b",
    re.IGNORECASE,
)

# Talk about earlier talk: it takes back or laughs at what was said, and says nothing of its own.
_RECALLED = re.compile(
    r"\b(?:remember|recall)\b[^.!?]{0,40}\b(?:when|how|that|what)?\s*i\s+(?:once\s+)?(?:said|told|mentioned|claimed)\b"
    r"|\bwhen\s+i\s+(?:said|told you|mentioned|claimed)\b"
    r"|\bi\s+(?:only\s+|once\s+)?(?:said|claimed|told you|mentioned)\s+(?:that\s+)?i\s+(?:was|were|had|did|used)\b"
    r"|\bi\s+used\s+to\s+(?:say|claim|tell)\b"
    r"|\bi\s+was\s+(?:only\s+|just\s+)?(?:joking|kidding)\s+(?:when|about|that)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[^.!?؟。]+[.!?؟。]*")


@dataclass(frozen=True, slots=True)
class _Value:
    """That a statement gives ``slot``, of which its owner has one at a time, a value."""

    slot: tuple[str, str]
    words: frozenset[str]


def text_key(text: str) -> str:
    """What two spellings of one statement share."""
    return name_key(text.translate(_QUOTES)).rstrip(_ENDING)


def numbers(text: str) -> tuple[str, ...]:
    """The numbers of a text, in order of size as text: where they differ, two texts never mean the same."""
    return tuple(sorted(_DIGITS.findall(unicodedata.normalize("NFKC", text))))


def _words(text: str) -> tuple[str, ...]:
    folded = unicodedata.normalize("NFKC", text.translate(_QUOTES)).casefold()
    found: list[str] = []
    for word in _WORD.findall(folded):
        if word.endswith("n't"):
            found += [{"ca": "can", "wo": "will"}.get(word[:-3], word[:-3]), "not"]
        else:
            found.append(word.removesuffix("'s"))
    return tuple(found)


def _stem(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    stem = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    return "like" if stem in _LIKES or stem in _DISLIKES else stem


@lru_cache(_MEMO_MAX)
def core(text: str) -> tuple[tuple[str, ...], bool]:
    """The words that matter, and whether they are denied: "not allergic to nuts" is "allergic to nuts", denied."""
    return _core(text)


def _core(text: str) -> tuple[tuple[str, ...], bool]:
    words = _words(text)
    denials = sum(word in _NEGATORS or word.removesuffix("s").removesuffix("d") in _DISLIKES for word in words)
    kept = tuple(_stem(word) for word in words if word not in _NEGATORS and word not in _FILLERS)
    return kept, denials % 2 == 1


@lru_cache(_MEMO_MAX)
def _value(text: str) -> _Value | None:
    plain = unicodedata.normalize("NFKC", text.translate(_QUOTES)).strip().rstrip(_ENDING)
    if core(text)[1]:
        return None
    if (match := _LIVES.fullmatch(plain)) is not None:
        moved = match["how"].split()[0].casefold() in ("moved", "relocated")
        return None if moved and _NO_HOME.search(match["value"]) else _given(match["owner"], "home", match["value"])
    if (match := _AGED.fullmatch(plain)) is not None:
        return _given(match["owner"], "age", match["value"])
    if (match := _IS_CALLED.fullmatch(plain)) is not None:
        return _given(match["owner"], "name", match["value"])
    if (match := _HAS_VALUE.fullmatch(plain)) is not None:
        return _given(match["owner"], _slot_name(match["slot"]), match["value"])
    return None


def _slot_name(slot: str) -> str:
    name = slot.casefold().replace("favour", "favor").replace("-", "").replace("telephone", "phone")
    name = re.sub(r"\b(?:mobile|cell)(?: phone)?\b", "phone", name)
    return " ".join(name.split()).replace("phone number", "phone").replace("email address", "email")


def _given(owner: str, slot: str, value: str) -> _Value:
    return _Value((owner.casefold().removeprefix("the "), slot), _set(value.casefold().replace(",", " ")))


def names_its_subject(text: str, relation: str) -> bool:
    """Whether a statement says what its subject is called: then its object is a name, not somebody."""
    value = _value(text)
    named = value is not None and value.slot[1].endswith("name") and value.slot[1] != "username"
    return named or re.sub(r"[^a-z]", "", relation.casefold()) in _NAMING


_NAMING = _set(
    "hasname nameis isnamed iscalled named called name fullname hasfullname nickname hasnickname preferredname"
    " haspreferredname knownas isknownas firstname hasfirstname"
)


def denies(text: str, other: str) -> bool:
    """Whether one of the two is the other's denial, word for word: they can't both hold."""
    (words, denied), (other_words, other_denied) = core(text), core(other)
    return denied != other_denied and words == other_words and len(words) >= _CORE_WORDS_MIN


def replaces(text: str, other: str) -> bool:
    """Whether the two give different values to something of which there is one at a time: a name, a home."""
    value, other_value = _value(text), _value(other)
    if value is None or other_value is None or value.slot != other_value.slot:
        return False
    # One that only says more ("Dana Smith" after "Dana", "Leeds, England" after "Leeds") is no other one.
    return not (value.words <= other_value.words or other_value.words <= value.words)


def opposed(statement: Statement, other: Statement, *, same_object: bool) -> bool:
    """Whether wording alone makes it certain that two statements about one subject can't both hold.

    The same words with another end ("until Friday") count as well: the later one tells until when it holds.
    """
    if denies(statement.text, other.text):
        return True
    if same_object:
        ends = statement.said_invalid_at, other.said_invalid_at
        return ends[0] != ends[1] and text_key(statement.text) == text_key(other.text)
    return replaces(statement.text, other.text)


def certain(fact: KnownFact, other: KnownFact) -> bool:
    """Whether wording alone makes it certain that the two contradict each other."""
    same_object = fact.object_id == other.object_id
    return fact.subject_id == other.subject_id and opposed(fact.statement, other.statement, same_object=same_object)


def recalled(text: str, turns: Iterable[str]) -> bool:
    """Whether a statement was only spoken of as something said before: "remember when I said I was allergic? Silly."

    That is so if in each of the turns it comes from the sentence nearest to it speaks of what was said. "As I told
    you, I am allergic" says it once more and is not meant.
    """
    found = [_RECALLED.search(_nearest(text, turn)) is not None for turn in turns]
    return bool(found) and all(found)


def _nearest(text: str, turn: str) -> str:
    wanted = set(core(text)[0])
    sentences: list[str] = _SENTENCE.findall(turn.translate(_QUOTES)) or [""]
    return max(sentences, key=lambda sentence: len(wanted & set(_core(sentence)[0])))
