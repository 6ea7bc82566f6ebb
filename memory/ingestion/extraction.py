"""LLM call 1: from a chunk's turns to entities and facts, as the LLM understood them; ``guards`` decide what counts.

Above: the pipeline, merging, the evaluation. Below: prompts, speech_noise, knowledge, knowledge_ports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate

from pydantic import BaseModel

from memory.errors import ProviderAnswerInvalid
from memory.ingestion.prompts import EXTRACTION, transcript
from memory.ingestion.speech_noise import is_noise
from memory.knowledge import Category, Speaker, TurnPart
from memory.knowledge_ports import LanguageModel
from memory.limits import FACTS_PER_CHUNK_MAX

TASK = "extraction"
_HALVINGS_MAX = 2  # of a chunk whose answer was too long: 7 calls at most
_HALF_CHARS_MIN = 400  # what is shorter isn't halved: its answer is invalid for another reason
_SENTENCE_END = re.compile(r"(?<=[.!?…。！？؟।])\s+")


@dataclass(frozen=True, slots=True)
class NamedEntity:
    """Somebody or something a fact is about. ``kind``: as the LLM has it; EntityKind is asked for."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ExtractedFact:
    """One statement. ``subject`` and ``object`` are names of entities; the user is always ``USER_ENTITY_KEY``.

    ``turns``: places of the turns that say it, in the sequence that was handed in, from 0. ``speaker``: who said it.
    ``valid_at``, ``invalid_at``: as said (aware, UTC); ``None``: nothing was said of it.
    """

    subject: str
    object: str
    relation: str
    text: str = field(repr=False)
    category: Category
    speaker: Speaker
    valid_at: datetime | None
    invalid_at: datetime | None
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extraction:
    """What an LLM found in a chunk. Facts in the order in which they were said; ``summary`` and ``moments`` are the
    chunk's part of its session's digest, so that the episodic layer takes no call of its own."""

    entities: tuple[NamedEntity, ...] = ()
    facts: tuple[ExtractedFact, ...] = ()
    summary: str = field(default="", repr=False)
    moments: tuple[str, ...] = field(default=(), repr=False)


class EntityAnswer(BaseModel):
    name: str
    type: str


class FactAnswer(BaseModel):
    subject: str
    object: str
    relation: str
    fact: str
    valid_at: str | None
    invalid_at: str | None
    turns: list[int]
    speaker: str
    category: str


class ExtractionAnswer(BaseModel):
    """The shape that the LLM answers in."""

    entities: list[EntityAnswer]
    facts: list[FactAnswer]
    summary: str = ""
    key_moments: list[str] = []


Numbered = list[tuple[int, TurnPart]]


async def extract(
    llm: LanguageModel, turns: Sequence[TurnPart], *, reference_time: datetime, user_name: str = ""
) -> Extraction:
    """What the turns say, as the LLM understood them: nothing of it is checked but its form.

    No call where the user says nothing that could be a source (fillers, noise). An answer that was cut off is asked for
    again in halves; more than ``FACTS_PER_CHUNK_MAX`` facts are cut.

    Raises:
        ProviderUnavailable, ProviderRefused, ProviderAnswerInvalid: from the LLM.
    """
    heard = [(number, turn) for number, turn in enumerate(turns) if not is_noise(turn)]
    answer = await _ask(llm, heard, reference_time.astimezone(UTC), user_name, _HALVINGS_MAX)
    entities = {entity.name: NamedEntity(entity.name, entity.type) for entity in answer.entities}
    facts = [fact for fact in map(_fact, answer.facts) if fact is not None]
    return Extraction(
        tuple(entities.values())[: 2 * FACTS_PER_CHUNK_MAX],
        tuple(facts[:FACTS_PER_CHUNK_MAX]),
        answer.summary,
        tuple(answer.key_moments),
    )


async def _ask(
    llm: LanguageModel, heard: Numbered, reference_time: datetime, user_name: str, halvings: int
) -> ExtractionAnswer:
    if not any(turn.speaker == "user" for _, turn in heard):
        return ExtractionAnswer(entities=[], facts=[])
    data = transcript(heard, reference_time=reference_time, user_name=user_name)
    try:
        return await llm.answer(TASK, instructions=EXTRACTION, data=data, shape=ExtractionAnswer)
    except ProviderAnswerInvalid as error:
        halves = _halves(heard) if error.cut_off and halvings else None
        if halves is None:
            raise
    answers = [await _ask(llm, half, reference_time, user_name, halvings - 1) for half in halves]
    return ExtractionAnswer(
        entities=[entity for answer in answers for entity in answer.entities],
        facts=[fact for answer in answers for fact in answer.facts],
        summary=" ".join(answer.summary for answer in answers),
        key_moments=[moment for answer in answers for moment in answer.key_moments],
    )


def _halves(heard: Numbered) -> tuple[Numbered, Numbered] | None:
    """The turns in two runs of about as many characters; a turn as long as most of it is parted between sentences."""
    lengths = [len(turn.text) for _, turn in heard]
    total = sum(lengths)
    if total < 2 * _HALF_CHARS_MIN:
        return None
    ends = list(accumulate(lengths))
    place = min(range(len(heard)), key=lambda at: abs(ends[at] - total / 2))
    if place < len(heard) - 1 and abs(ends[place] - total / 2) <= total / 4:
        return heard[: place + 1], heard[place + 1 :]
    middle = next(at for at, end in enumerate(ends) if end >= total / 2)
    number, turn = heard[middle]
    first, second = _parted(turn.text)
    if not second:
        return None
    before = [*heard[:middle], (number, replace(turn, text=first))]
    return before, [(number, replace(turn, text=second)), *heard[middle + 1 :]]


def _parted(text: str) -> tuple[str, str]:
    """``text`` in two at the sentence end nearest to its middle, else at a blank; the second is "" if there is none."""
    middle = len(text) // 2
    text = text.strip()
    ends = [match.end() for match in _SENTENCE_END.finditer(text)] or [
        match.end() for match in re.finditer(r"\s+", text)
    ]
    if not ends:
        return text, ""
    place = min(ends, key=lambda end: abs(end - middle))
    return text[:place], text[place:]


def _fact(answer: FactAnswer) -> ExtractedFact | None:
    """``None`` for one of no known category."""
    category = category_of(answer.category)
    if category is None:
        return None
    return ExtractedFact(
        subject=answer.subject,
        object=answer.object,
        relation=answer.relation,
        text=answer.fact,
        category=category,
        speaker=_speaker(answer.speaker),
        valid_at=_time(answer.valid_at),
        invalid_at=_time(answer.invalid_at),
        turns=tuple(answer.turns),
    )


def _speaker(said: str) -> Speaker:
    word = said.strip().casefold()
    if word in ("user", "assistant"):
        return "user" if word == "user" else "assistant"
    return "other"


def _time(text: str | None) -> datetime | None:
    """``None`` for what is no time, too: that it can't be read says nothing against the fact."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


_CATEGORY_WORDS = (
    (Category.APPOINTMENTS, ("appointment", "meeting", "booking", "schedul", "reservation")),
    (Category.ORDERS, ("order", "transaction", "purchase", "payment")),
    (Category.ISSUES, ("issue", "resolution", "problem", "complaint", "support")),
    (Category.PREFERENCES, ("preference", "like", "interest")),
    (Category.DECISIONS, ("decision", "choice", "agreement")),
    (Category.USER_INFORMATION, ("user", "personal", "profile", "identity", "contact", "health", "family")),
)


def category_of(said: str) -> Category | None:
    """The category that an LLM means, also where it puts it otherwise ("Orders & Transactions"), or ``None``."""
    word = "_".join(re.findall(r"[a-z]+", said.casefold()))
    if word in set(Category):
        return Category(word)
    return next((category for category, parts in _CATEGORY_WORDS if any(part in word for part in parts)), None)
