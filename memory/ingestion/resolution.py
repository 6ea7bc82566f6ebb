"""LLM call 2: which new facts repeat or contradict others, and which new names mean somebody known.

``Question`` is what deterministic merging could not decide by itself, ``Verdict`` the LLM's answer after its guards:
only ids that were asked about, each new fact and entity at most once. Above: merging, the pipeline. Below:
knowledge_ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
