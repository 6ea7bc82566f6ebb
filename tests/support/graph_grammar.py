"""What the test LLM understands of what people say: simple sentences, by rules, always the same.

``Reader`` reads a conversation turn by turn, as an attentive reader would: questions, hypothetical cases and jokes say
nothing, "he" is who was spoken of last, whoever takes over the phone isn't the user. ``meaning`` reads one sentence
about the user back, so that two of them can be compared. Above: graph_answers. Below: graph_sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tests.support.graph_sentences import Pattern, canonical, patterns, times

_SENTENCE = re.compile(r"[^.!?؟。]+(?:[.](?=\d)[^.!?؟。]*)*[.!?؟。]*")
_OPENINGS = (
    *(
        "hi",
        "hello",
        "hey",
        "well",
        "oh",
        "yes",
        "yeah",
        "ok",
        "okay",
        "so",
        "and",
        "but",
        "also",
        "actually",
        "please",
    ),
    *("by the way", "no", "sorry", "look", "right", "thanks", "thank you", "now", "hallo", "ja", "nein", "übrigens"),
    *("hola", "sí", "bueno", "bonjour", "oui", "نعم", "مرحبا"),
)
_OPENING = re.compile(rf"^(?:(?:{'|'.join(_OPENINGS)})\b[,!.]?\s*)+", re.IGNORECASE)
_SORRY = "(?:no,? sorry|no,? wait|sorry,? no|i mean|no,? i mean),? (?:on |at |it's |it is )?"
_SLIP = re.compile(rf"\S+?,? {_SORRY}", re.IGNORECASE)
_SLIPPED = re.compile(rf"^{_SORRY}(?P<right>.+?)[.!]*$", re.IGNORECASE)
_IDLE = re.compile(
    r"^(?:if|what if|imagine|suppose|let's say|wenn|si|remember when|when i said)\b|\b(?:joking|kidding)\b"
    r"|\bi (?:said|told you) i\b|\bwould (?:have|be|never|not|move|buy|take)\b",
    re.IGNORECASE,
)
_CLAUSES = re.compile(r",? (?:and|but) (?=(?:i|my|he|she|his|her|their)\b)|; ", re.IGNORECASE)
_JOKE = re.compile(r",?\s*\bi (?:was|am) (?:just |only )?(?:joking|kidding)\b,?\s*|\bjust kidding\b", re.IGNORECASE)
_REQUEST = re.compile(
    r"^(?:can|could|would|will) (?:you|i|we) (?:please )?(?=(?:cancel|book|move|change|reschedule)\b)", re.IGNORECASE
)
_TAKES_OVER = re.compile(r"\b(?:this is|here is|you are speaking to) [A-Z]\w+ now\b|\b[A-Z]\w+ here now\b")
_IS_BACK = re.compile(r"\bit'?s me again\b|\bi'?m back\b|\bit is me again\b", re.IGNORECASE)
_PERSON = re.compile(r"^(?:He|She|They|he|she|they)\b")

# Values of these slots replace each other; of all others many hold together.
_CHANNELS = frozenset(
    (
        "email",
        "emails",
        "e-mail",
        "phone",
        "calls",
        "call",
        "text",
        "texts",
        "sms",
        "post",
        "letter",
        "letters",
        "whatsapp",
    )
)
_FEELINGS = {"LIKES": "+", "LOVES": "+", "HATES": "-", "DISLIKES": "-"}
_DENIED = {
    "IS_NOT_ALLERGIC_TO": "IS_ALLERGIC_TO",
    "DOES_NOT_TAKE": "TAKES",
    "HAS_NO": "HAS",
    "RESOLVED_ISSUE_WITH": "HAS_ISSUE_WITH",
}
_SINGLE = frozenset(
    (
        "LIVES_IN",
        "WORKS_AT",
        "NAME_IS",
        "AGE_IS",
        "HAS_EMAIL",
        "HAS_PHONE",
        "HAS_ADDRESS",
        "HAS_BIRTHDAY",
        "HAS_ACCOUNT",
    )
)


@dataclass(frozen=True, slots=True)
class Said:
    """One statement. ``subject`` is "user" or a name; ``turns`` the numbers of the lines that say it."""

    subject: str
    object: str
    relation: str
    text: str
    category: str
    kind: str
    valid_at: str | None = None
    invalid_at: str | None = None
    turns: tuple[int, ...] = ()
    about: str = ""  # what an appointment is for


@dataclass(frozen=True, slots=True)
class Meaning:
    """Two statements of one slot contradict each other where their values differ, else they say the same."""

    subject: str
    slot: str
    value: str


class Reader:
    """Reads turns in order; what it has found is in ``said``."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self._person = ""
        self._last = -1
        self._away = False  # somebody else has the phone

    def turn(self, number: int, text: str, now: datetime) -> None:
        """One turn of the user's."""
        if _TAKES_OVER.search(text) or _IS_BACK.search(text):
            self._away = _IS_BACK.search(text) is None
        if self._away:
            return
        before = len(self.said)
        if _JOKE.search(text):
            self.said = [said for said in self.said if said.turns != (self._last,)]
            text = _JOKE.sub(" ", text)
        self._last = number
        for sentence in _SENTENCE.findall(text):
            self._sentence(number, sentence.strip(), now, before)

    def _sentence(self, number: int, sentence: str, now: datetime, before: int) -> None:
        slipped = _SLIPPED.match(sentence)
        if slipped and len(self.said) > before:
            self.said[-1] = _corrected(self.said[-1], slipped["right"])
            return
        sentence = _OPENING.sub("", sentence)
        sentence = _SLIP.sub("", sentence)
        asks = _REQUEST.match(sentence)
        if _IDLE.search(sentence) or (sentence.endswith(("?", "؟")) and not asks):
            return
        sentence = _REQUEST.sub("", sentence).rstrip(" .!?؟")
        sentence, valid_at, invalid_at = times(sentence, now)
        for clause in _CLAUSES.split(sentence):
            for said in self._clause(clause):
                if all((said.subject, said.text) != (known.subject, known.text) for known in self.said):
                    self.said.append(replace(said, valid_at=valid_at, invalid_at=invalid_at, turns=(number,)))

    def _clause(self, clause: str) -> list[Said]:
        text = canonical(clause.strip(" ,"))
        if _PERSON.match(text) and self._person:
            text = _PERSON.sub(self._person, text)
        found = read(text)
        for said in found:
            if said.kind == "Person" or said.subject != "user":
                self._person = said.object if said.kind == "Person" else said.subject
        return found


def _corrected(said: Said, right: str) -> Said:
    right = right.strip()
    wrong = said.object.split()[-1]
    return replace(said, object=said.object.replace(wrong, right), text=said.text.replace(wrong, right))


def read(text: str) -> list[Said]:
    """What a sentence in the third person says ("User lives in Leeds"); nothing where no rule fits."""
    for pattern in patterns():
        match = pattern.regex.fullmatch(text)
        if match:
            return _said(pattern, match, text)
    return []


def _said(pattern: Pattern, match: re.Match[str], text: str) -> list[Said]:
    groups = {name: value for name, value in match.groupdict().items() if value}
    subject = groups.get("name") or groups.get("name2") or "user"
    relation = pattern.relation.format(**{name: value.upper().replace(" ", "_") for name, value in groups.items()})
    thing = groups["o"].strip()
    written = pattern.text.format(**groups) if pattern.text else text
    about = groups.get("w", "")
    said = Said(subject, thing, relation, written, pattern.category, pattern.kind, about=about)
    kin = groups.get("kin")
    if not kin or subject == "user":
        return [said]
    family = Said(
        "user", subject, f"HAS_{kin.upper()}", f"User's {kin} is called {subject}", "user_information", "Person"
    )
    return [family, said]


def meaning(text: str) -> Meaning | None:
    """What a sentence about the user says, so that it can be compared; ``None`` where no rule fits."""
    found = _last(text)
    return None if found is None else _meaning(found)


def _last(text: str) -> Said | None:
    found = read(canonical(text.strip().rstrip(".!")))
    return found[-1] if found else None


def _meaning(said: Said) -> Meaning:
    subject, thing, relation = _key(said.subject), _key(said.object), said.relation
    if relation in _FEELINGS:
        return Meaning(subject, f"FEELS {thing}", _FEELINGS[relation])
    if relation in _SINGLE:
        return Meaning(subject, relation, thing)
    if relation == "PREFERS" and _CHANNELS.intersection(thing.split()):
        return Meaning(subject, "CHANNEL", thing)
    if relation == "HAS_APPOINTMENT_ON":
        return Meaning(subject, f"{relation} {_key(said.about)}", thing)
    if relation in _DENIED:
        return Meaning(subject, f"{_DENIED[relation]} {thing}", "no")
    return Meaning(subject, f"{relation} {thing}", "yes")


def _key(name: str) -> str:
    return re.sub(r"^(?:the|a|an|some|any|my) ", "", " ".join(name.casefold().split()))


def compare(new: str, others: Sequence[tuple[str, str]]) -> tuple[str | None, list[str]]:
    """Of ``others`` (id and text): which one says the same as ``new``, and which contradict it."""
    own = _last(new)
    same, against = None, []
    for other, text in others:
        theirs = _last(text)
        if text.strip().casefold() == new.strip().casefold():
            same = same or other
        elif own is None or theirs is None:
            continue
        elif _contradict(own, theirs):
            against.append(other)
        elif _meaning(own) == _meaning(theirs) and " back " not in new:  # what holds again is no repetition
            same = same or other
    return same, against


def _contradict(one: Said, other: Said) -> bool:
    if {one.relation, other.relation} == {"HAS_APPOINTMENT_ON", "CANCELLED_APPOINTMENT_ON"}:
        return _key(one.object) == _key(other.object)
    own, theirs = _meaning(one), _meaning(other)
    return (own.subject, own.slot) == (theirs.subject, theirs.slot) and own.value != theirs.value


def same_name(name: str, other: str) -> bool:
    """Whether two names mean one thing: equal, or one is part of the other, with the same numbers."""
    own, theirs = set(_key(name).split()), set(_key(other).split())
    if re.findall(r"\d+", name) != re.findall(r"\d+", other):
        return False
    return bool(own and theirs) and (own <= theirs or theirs <= own)
