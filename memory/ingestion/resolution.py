"""LLM call 2: which new facts repeat or contradict others, and which new names mean somebody known.

``Question`` is what deterministic merging could not decide by itself, ``Verdict`` the LLM's answer after its guards:
only ids that were asked about, each new fact and entity at most once. Above: merging, the pipeline. Below: prompts,
knowledge_ports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from memory.ingestion.prompts import RESOLUTION
from memory.knowledge_ports import LanguageModel

TASK = "resolution"


@dataclass(frozen=True, slots=True)
class NewFact:
    """``compare_with``: ids of known facts and of other new ones. An id is any text, unique within the question: the
    LLM is shown short ones of its own."""

    id: str
    text: str = field(repr=False)
    compare_with: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownText:
    id: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A name that may mean one of the ``candidates`` (ids of ``CandidateEntity``), or somebody new."""

    id: str
    name: str = field(repr=False)
    candidates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CandidateEntity:
    """``about``: some of what is known of it, in a line or two."""

    id: str
    name: str = field(repr=False)
    about: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Question:
    new: tuple[NewFact, ...] = ()
    known: tuple[KnownText, ...] = ()
    entities: tuple[Doubt, ...] = ()
    candidates: tuple[CandidateEntity, ...] = ()

    @property
    def empty(self) -> bool:
        """Nothing is in doubt: no call is needed."""
        return not self.entities and not any(fact.compare_with for fact in self.new)


@dataclass(frozen=True, slots=True)
class FactVerdict:
    """``duplicate_of``: a known fact or an earlier new one that says the same. ``contradicts``: facts that can't hold
    together with this one. All of them are among its ``compare_with``; a duplicate is not among ``contradicts``."""

    new: str
    duplicate_of: str | None = None
    contradicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntityVerdict:
    """``same_as``: one of the doubt's candidates, or ``None``: somebody new."""

    entity: str
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """In the order of the question; what the LLM left out is left out."""

    facts: tuple[FactVerdict, ...] = ()
    entities: tuple[EntityVerdict, ...] = ()


class FactVerdictAnswer(BaseModel):
    new: str
    duplicate_of: str | None
    contradicts: list[str]


class EntityVerdictAnswer(BaseModel):
    entity: str
    same_as: str | None


class ResolutionAnswer(BaseModel):
    """The shape that the LLM answers in."""

    facts: list[FactVerdictAnswer]
    entities: list[EntityVerdictAnswer]


async def resolve(llm: LanguageModel, question: Question) -> Verdict:
    """What the LLM says to ``question``, without what it was not asked; no call where nothing is in doubt.

    Raises:
        ProviderUnavailable, ProviderRefused, ProviderAnswerInvalid: from the LLM.
    """
    if question.empty:
        return Verdict()
    names = _Names(question)
    answer = await llm.answer(TASK, instructions=RESOLUTION, data=_data(question, names), shape=ResolutionAnswer)
    return _guarded(answer, question, names)


class _Names:
    """Short ids for the LLM, which garbles long ones: k1, n1, e1, c1."""

    def __init__(self, question: Question) -> None:
        self._short: dict[tuple[str, str], str] = {}
        self._long: dict[str, str] = {}
        parts: tuple[tuple[str, Sequence[KnownText | NewFact | Doubt | CandidateEntity]], ...] = (
            ("k", question.known),
            ("n", question.new),
            ("e", question.entities),
            ("c", question.candidates),
        )
        for letter, things in parts:
            for number, thing in enumerate(things, 1):
                self._short.setdefault((letter, thing.id), f"{letter}{number}")
                self._long[f"{letter}{number}"] = thing.id

    def short(self, letters: str, long: str) -> str | None:
        return next((self._short[letter, long] for letter in letters if (letter, long) in self._short), None)

    def shorts(self, letters: str, longs: Iterable[str]) -> list[str]:
        return [short for short in (self.short(letters, long) for long in longs) if short is not None]

    def long(self, short: str | None) -> str | None:
        return None if short is None else self._long.get(short.strip())


def _data(question: Question, names: _Names) -> str:
    data = {
        "known": [{"id": names.short("k", known.id), "fact": known.text} for known in question.known],
        "new": [
            {"id": names.short("n", new.id), "fact": new.text, "compare_with": names.shorts("kn", new.compare_with)}
            for new in question.new
        ],
        "entities": [
            {"id": names.short("e", doubt.id), "name": doubt.name, "candidates": names.shorts("c", doubt.candidates)}
            for doubt in question.entities
        ],
        "candidates": [
            {"id": names.short("c", candidate.id), "name": candidate.name, "about": candidate.about}
            for candidate in question.candidates
        ],
    }
    return json.dumps(data, ensure_ascii=False)


def _guarded(answer: ResolutionAnswer, question: Question, names: _Names) -> Verdict:
    """Only what was asked: ids of the fact's own ``compare_with``, duplicates of nothing later, each thing once."""
    facts: dict[str, FactVerdict] = {}
    order = {new.id: place for place, new in enumerate(question.new)}
    asked = {new.id: new for new in question.new}
    for said in answer.facts:
        new = asked.get(names.long(said.new) or "")
        if new is not None and said.new.strip().startswith("n") and new.id not in facts:
            facts[new.id] = _fact_verdict(new, said, names, order)
    _break_cycles(facts)
    doubts = {doubt.id: doubt for doubt in question.entities}
    entities: dict[str, EntityVerdict] = {}
    for told in answer.entities:
        doubt = doubts.get(names.long(told.entity) or "")
        if doubt is not None and told.entity.strip().startswith("e") and doubt.id not in entities:
            same = names.long(told.same_as)
            entities[doubt.id] = EntityVerdict(doubt.id, same if same in doubt.candidates else None)
    return Verdict(
        tuple(facts[new.id] for new in question.new if new.id in facts),
        tuple(entities[doubt.id] for doubt in question.entities if doubt.id in entities),
    )


def _fact_verdict(new: NewFact, said: FactVerdictAnswer, names: _Names, order: dict[str, int]) -> FactVerdict:
    allowed = {other for other in new.compare_with if other != new.id}
    contradicts = [long for long in map(names.long, said.contradicts) if long is not None and long in allowed]
    same = names.long(said.duplicate_of)
    # What an LLM calls both a repetition and a contradiction is neither for sure: the contradiction loses no fact.
    if same not in allowed or same in contradicts or order.get(same or "", -1) > order[new.id]:
        same = None
    return FactVerdict(new.id, same, tuple(dict.fromkeys(contradicts)))


def _break_cycles(facts: dict[str, FactVerdict]) -> None:
    """A duplicate of a fact that is itself a duplicate stands for the first of them."""
    for new, verdict in list(facts.items()):
        same = verdict.duplicate_of
        for _ in facts:
            further = facts[same].duplicate_of if same in facts else None
            if further is None:
                break
            same = further
        facts[new] = FactVerdict(new, same, tuple(c for c in verdict.contradicts if c != same))
