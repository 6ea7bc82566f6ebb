"""LLM call 1: from a chunk's turns to entities and facts, as the LLM understood them; ``guards`` decide what counts.

Above: the pipeline, merging, the evaluation. Below: knowledge, knowledge_ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from memory.knowledge import Category, Speaker


@dataclass(frozen=True, slots=True)
class NamedEntity:
    """Somebody or something a fact is about. ``kind``: Person, Organization, Place, Product, Order, Appointment, …"""

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
    """What an LLM found in a chunk. Facts in the order in which they were said."""

    entities: tuple[NamedEntity, ...] = ()
    facts: tuple[ExtractedFact, ...] = ()
