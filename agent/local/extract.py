"""What a thinker without a language model can say: it quotes.

Questions are answered with what the user said before, in this conversation or in the memory block, word for word and
with its date; statements are acknowledged by quoting them. Nothing is made up, and nothing here waits or keeps state.
Above: thinker. Below: words, memory.context.block.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Literal

from agent.local.words import GREETING, QUESTION, SAME_MEANING, SMALL_TALK, STOP_WORDS
from memory.context.block import parse_block, strip_block

LINES_MAX = 100  # considered for one answer, newest of the conversation first
LINE_CHARS_MAX = 1_000
_SMALL_TALK_CHARS_MAX = 80
QUOTE_CHARS_MAX = 200
_WHO: dict[str | None, Literal["user", "agent", "fact"]] = {"user": "user", None: "fact"}
_LINES_QUOTED = 3  # for "what do you know about me?"

# Not after a title or an initial.
_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\bMrs)(?<!\b[A-HJ-Z])(?<![.!?…؟。！？])"
    r"[.!?…؟。！？]+[\"'”’)]*(?=\s)"
)
_TOKEN = re.compile(r"\w+(?:['’]\w+)*")
# How this thinker's own replies begin, and what of the user's they repeat.
_OWN = (
    *("Noted: ", "You told me", "I told you", "I know since ", "I know: ", "The closest I remember"),
    *("I don't know anything about that", GREETING),
)
_QUOTE = re.compile(
    r"(?:(?P<that_day>\bNoted|\byou told me (?:a moment ago|today))|\byou told me[^:\"]{,20}): \"(?P<words>[^\"]+)\"",
    re.IGNORECASE,
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\s]+")


@dataclass(frozen=True, slots=True)
class Said:
    """Something that can be quoted. ``who`` said it (a fact: nobody); ``here``: in this conversation."""

    text: str
    who: Literal["user", "agent", "fact"] = "user"
    day: date | None = None
    here: bool = False


def split_block(text: str) -> tuple[list[Said], str]:
    """The lines of the memory block before the user's own words, most relevant first, and those words.

    Where a reply of this thinker is remembered, what it quotes is told in its place, unless that is there anyway.
    """
    lines = parse_block(text)
    said = [Said(line.text, _WHO.get(line.role, "agent"), line.date) for line in lines if not line.changed]
    return _without_echoes(said, [line.text for line in lines if line.changed]), strip_block(text)


def own_words(text: str) -> bool:
    """Whether ``text`` begins as this thinker's own replies do: quoting a quote tells nobody anything."""
    return text.startswith(_OWN)


def _without_echoes(said: Sequence[Said], changed: Sequence[str]) -> list[Said]:
    known = [_plain(text) for text in (*changed, *(each.text for each in said if not _echoes(each)))]
    kept: list[Said] = []
    for each in said:
        if not _echoes(each):
            kept.append(each)
            continue
        for quoted in _quotes(each):
            # A quote is a part of what was said, or two replies quote the same.
            if not any(_plain(quoted.text) in text for text in known):
                known.append(_plain(quoted.text))
                kept.append(quoted)
    return kept


def _echoes(said: Said) -> bool:
    return said.who == "agent" and own_words(said.text)


def _quotes(echo: Said) -> Iterator[Said]:
    """What the user said, out of a reply that repeats it. The day is the reply's, or isn't known."""
    for found in _QUOTE.finditer(echo.text):
        if not own_words(found["words"]):
            yield Said(found["words"], "user", echo.day if found["that_day"] else None)


def _plain(text: str) -> str:
    return f" {' '.join(_TOKEN.findall(text.casefold()))} "


def reply(block: Sequence[Said], earlier: Sequence[Said], words: str, today: date) -> str:
    """What to say to ``words``, the user's newest. ``earlier``: this conversation before it, oldest first."""
    words = _clean(_both_ends(words))
    if not _TOKEN.search(words):
        return "I did not catch that. Please say it again."
    sentences = _sentences(words)
    questions = [sentence for sentence in sentences if is_question(sentence)]
    if questions:
        terms = [term for sentence in questions for term in _terms(sentence)]
        return _answer(block, earlier, list(dict.fromkeys(terms)), today)
    return _acknowledge(words, sentences)


def is_question(sentence: str) -> bool:
    """Whether ``sentence`` asks, with or without a question mark: speech recognition may leave it out."""
    return sentence.rstrip("\"'”’) ").endswith(("?", "؟", "？")) or QUESTION.match(sentence) is not None


def _clean(text: str) -> str:
    return _CONTROLS.sub(" ", text).strip()


def _both_ends(text: str) -> str:
    if len(text) <= 2 * LINE_CHARS_MAX:
        return text
    return text[:LINE_CHARS_MAX] + " " + text[-LINE_CHARS_MAX:]


def _sentences(text: str) -> list[str]:
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    found = (text[start:end].strip() for start, end in pairwise(cuts))
    return [sentence for sentence in found if sentence]


def _terms(text: str) -> list[str]:
    """The words of ``text`` that carry meaning, folded and stemmed."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    words = (re.sub(r"['’]\w{1,2}$", "", token) for token in _TOKEN.findall(plain))
    return [_stem(word) for word in words if word not in STOP_WORDS]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            stem = word[: -len(ending)]
            return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] and ending in ("ing", "ed") else stem.rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word


@dataclass(frozen=True, slots=True)
class _Candidate:
    said: Said
    quote: str
    terms: frozenset[str]
    prior: float
    cover: float = 0.0

    @property
    def score(self) -> float:
        return (self.cover + self.prior) * (0.6 if self.said.who == "agent" else 1.0)


def _answer(block: Sequence[Said], earlier: Sequence[Said], terms: Sequence[str], today: date) -> str:
    candidates = _candidates(block, earlier, terms)
    remembered = [candidate for candidate in candidates if not candidate.said.here]
    if not terms:
        # "What do you know about me?": what the memory found comes first.
        return _told(remembered[:_LINES_QUOTED] or candidates[:_LINES_QUOTED], today)
    ranked = sorted(_scored(candidates, terms), key=lambda candidate: -candidate.score)
    matching = [candidate for candidate in ranked if candidate.cover > 0]
    if not matching:
        # The memory ranks by meaning too: where no word is shared, its own first choice is the best there is.
        remembered.sort(key=lambda candidate: -candidate.score)
        return _closest(remembered[0], today) if remembered else _told([], today)
    best = matching[0]
    others = [c for c in matching[1:] if c.cover >= max(0.5, best.cover) and c.said.who == best.said.who]
    return _told([best, *others[:1]], today)


def _candidates(block: Sequence[Said], earlier: Sequence[Said], terms: Sequence[str]) -> list[_Candidate]:
    """What can be quoted, the newest of the conversation first, then the block in its own order; each text once."""
    found: dict[str, _Candidate] = {}
    ranked = [(said, 0.3) for said in reversed(earlier)] + [(s, 0.4 / (1 + rank)) for rank, s in enumerate(block)]
    for said, prior in ranked[:LINES_MAX]:
        quote = _quotable(_clean(said.text[:LINE_CHARS_MAX]), terms)
        words = frozenset(_terms(quote))
        if words:
            found.setdefault(quote.casefold(), _Candidate(said, quote, words, prior))
    return list(found.values())


def _quotable(text: str, terms: Sequence[str]) -> str:
    """The statements of ``text``, or the one that bears most on ``terms`` where they are too long to quote."""
    statements = [sentence for sentence in _sentences(text) if not is_question(sentence)]
    whole = " ".join(statements)
    if len(whole) <= QUOTE_CHARS_MAX:
        return whole
    return _clipped(max(statements, key=lambda sentence: len(set(terms).intersection(_terms(sentence)))))


def _clipped(text: str) -> str:
    if len(text) <= QUOTE_CHARS_MAX:
        return text
    return text[: QUOTE_CHARS_MAX - 1].rsplit(" ", 1)[0].rstrip(",;: ") + "…"


def _scored(candidates: Sequence[_Candidate], terms: Sequence[str]) -> Iterable[_Candidate]:
    """Candidates with the share of ``terms`` they hold, rare terms counting more."""
    weights = {}
    for term in terms:
        holders = sum(_holds(candidate.terms, term) > 0 for candidate in candidates)
        weights[term] = math.log(1 + (len(candidates) + 1) / (holders + 1))
    total = sum(weights.values()) or 1.0
    for each in candidates:
        cover = sum(weight * _holds(each.terms, term) for term, weight in weights.items()) / total
        yield _Candidate(each.said, each.quote, each.terms, each.prior, cover)


def _holds(words: frozenset[str], term: str) -> float:
    if term in words:
        return 1.0
    return 0.6 if SAME_MEANING.get(term, frozenset()) & words else 0.0


def _told(candidates: Sequence[_Candidate], today: date) -> str:
    if not candidates:
        return "I don't know anything about that. You have not told me."
    told = [f"{_who(each.said)}{_when(each.said, today)}: {_quoted(each.quote)}" for each in candidates]
    return told[0][0].upper() + " And ".join(told)[1:]


def _closest(candidate: _Candidate, today: date) -> str:
    said = candidate.said
    return f"The closest I remember is what {_who(said)}{_when(said, today)}: {_quoted(candidate.quote)}"


def _who(said: Said) -> str:
    return {"user": "you told me", "agent": "I told you", "fact": "I know"}[said.who]


def _when(said: Said, today: date) -> str:
    if said.here:
        return " a moment ago"
    if said.day is None:
        return ""
    ago = (today - said.day).days
    if 0 <= ago <= 1:
        day = "yesterday" if ago else "today"
    else:
        day = f"{said.day.day} {said.day:%B}" + (f" {said.day.year}" if said.day.year != today.year else "")
    if said.who == "fact":
        return f" since {day}"
    return f" {day}" if 0 <= ago <= 1 else f" on {day}"


def _quoted(text: str) -> str:
    inner = text.replace('"', "'")
    return f'"{inner}"' if inner[-1] in ".!?…" else f'"{inner}."'


def _acknowledge(words: str, sentences: Sequence[str]) -> str:
    for pattern, courtesy in SMALL_TALK:
        if len(words) <= _SMALL_TALK_CHARS_MAX and pattern.fullmatch(words):
            return courtesy
    key = max(sentences, key=lambda sentence: len(set(_terms(sentence))))
    return f"Noted: {_quoted(_clipped(key))}"
