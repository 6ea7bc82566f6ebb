"""Whether an answer shows that the fact was remembered: the criterion of ``agent demo``, and nothing else.

What was said and asked are the user's own words, so the criterion can't know the fact. It goes by content words
(stems, without stop words, as recall itself compares them; other scripts included):

- The *fact* is what call 1 was understood as, less the words of the question: an answer that only repeats the
  question shows nothing.
- Remembered means that enough words of the fact stand in the memory block of the LLM call *and* in the answer. The
  first alone could be ignored by the LLM; the second alone could be general knowledge ("peanuts make many sick").
- Enough is half of up to four words, a third of more (an answer need not tell all that was said), at least one.
- Words that were said and not understood are the listener's fault; they are reported, and the memory is measured by
  what was understood. Card numbers are nobody's fault: they are never stored.

Pure. Above: demo. Below: memory.retrieval.text, memory.privacy.redaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memory.privacy.redaction import CARD_MASK
from memory.retrieval.text import stems, words

Outcome = Literal["remembered", "nothing_stored", "masked", "misheard", "not_recalled", "not_answered"]

_ROOT_CHARS_MIN = 5
_NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million oh double first "
    "second third fourth fifth sixth seventh eighth ninth tenth"
)
_NUMBERS = frozenset(_NUMBER_WORDS.split())


@dataclass(frozen=True, slots=True)
class Verdict:
    """``fact``, ``found`` and ``lost`` are words as they were said, in order."""

    outcome: Outcome
    fact: tuple[str, ...]  # understood, and not in the question
    needed: int  # how many of them make "enough"
    found: tuple[str, ...]  # of the fact, in the answer
    lost: tuple[str, ...]  # said, and not understood

    @property
    def ok(self) -> bool:
        return self.outcome == "remembered"

    @property
    def reason(self) -> str:
        """The outcome in a sentence."""
        match self.outcome:
            case "remembered":
                return f"The answer holds what the question did not say: {', '.join(self.found)}."
            case "nothing_stored":
                return "Nothing of call 1 was stored: its words did not survive the kill."
            case "masked":
                return f"All that the question did not say is a card number. Those are never stored: {CARD_MASK}."
            case "misheard":
                return (
                    f"The listener did not understand {', '.join(self.lost) or 'the fact'}, so there was nothing to "
                    "remember. Say it in other, longer words; the local listener knows English only."
                )
            case "not_recalled":
                return "What was said is stored, but the memory block in front of the LLM call does not hold it."
            case "not_answered":
                return f"The memory block held it, but the answer lacks it: none or too few of {', '.join(self.fact)}."


def judge(*, said: str, understood: str, asked: str, block: str, answer: str) -> Verdict:
    """Judge ``answer`` to ``asked``; ``understood`` is what the memory stored of ``said`` ("" for nothing)."""
    fact = fact_words(understood, asked)
    needed = enough(len(fact))
    answered, heard = set(stems(answer)), set(stems(understood))
    found = tuple(word for stem, word in fact.items() if _among(stem, answered))
    told = fact_words(said, asked)
    masked = CARD_MASK in understood
    lost = tuple(
        word
        for stem, word in told.items()
        if not _heard(stem, word, heard) and not (masked and (word.isdigit() or word in _NUMBERS))
    )
    outcome = _outcome(understood, fact, block, found, needed)
    if outcome == "misheard" and masked:
        outcome = "masked"
    elif outcome == "not_recalled" and 2 * len(lost) > len(told):
        outcome = "misheard"  # what was stored is no longer what was said
    return Verdict(outcome, tuple(fact.values()), needed, found, lost)


def _outcome(understood: str, fact: dict[str, str], block: str, found: tuple[str, ...], needed: int) -> Outcome:
    if not understood.strip():
        return "nothing_stored"
    if not fact:
        return "misheard"
    recalled = set(stems(block))
    if sum(_among(stem, recalled) for stem in fact) < needed:
        return "not_recalled"
    return "remembered" if len(found) >= needed else "not_answered"


def _among(stem: str, stems_: set[str]) -> bool:
    # Stemming leaves "allerg(ic)" and "allergi(es)" apart; whoever reads the answer would not.
    return stem in stems_ or (
        len(stem) >= _ROOT_CHARS_MIN
        and any(
            len(other) >= _ROOT_CHARS_MIN and (other.startswith(stem) or stem.startswith(other)) for other in stems_
        )
    )


def _heard(stem: str, word: str, heard: set[str]) -> bool:
    # Listeners write numbers as digits: "nineteen ninety eight" comes back as 1998.
    as_digits = word in _NUMBERS and any(any(map(str.isdigit, other)) for other in heard)
    return as_digits or _among(stem, heard)


def fact_words(said: str, asked: str) -> dict[str, str]:
    """The content words of ``said`` that ``asked`` lacks: stem to word, in order, each stem once."""
    known = set(stems(asked))
    found: dict[str, str] = {}
    for word in words(said):
        for stem in stems(word):
            if not _among(stem, known):
                found.setdefault(stem, word)
    return found


def enough(count: int) -> int:
    """How many of ``count`` words of a fact make it recognisable."""
    return max(1, -(-count // 2)) if count <= 4 else -(-count // 3)
