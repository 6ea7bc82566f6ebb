"""What is known of a user beyond the verbatim turns: chunks of turns (episodes), entities, facts with their validity.

One user's knowledge is a value: ``Knowledge``. A chunk's ingestion makes a ``Patch`` of it; a deletion makes another
value that never heard of the chunk. SQL holds it (and is what counts), the graph is its projection on Graphiti's
layout, the recall host holds what is live of it. Above: knowledge_ports, ingestion, stores. Below: models.

Times are aware, in UTC. Vectors are the graph embedder's, float32 of unit length, little-endian bytes: 4 x dimension.
"""

from __future__ import annotations

import unicodedata
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from memory.models import Mode

# Ids derive from what they stand for, so that a repetition makes the same ones (RFC 9562, 5.5).
_NAMESPACE = uuid.UUID("0d4f1f6a-6d0b-5a1e-9a8e-1b7c1c0f7d55")

USER_ENTITY_KEY = "user"  # the key of the entity that stands for the user, whatever they are called


class Category(StrEnum):
    """The six categories that the users' format promises."""

    USER_INFORMATION = "user_information"
    PREFERENCES = "preferences"
    ISSUES = "issues_and_resolutions"
    ORDERS = "orders_and_transactions"
    APPOINTMENTS = "appointments"
    DECISIONS = "decisions_made"


class EntityKind(StrEnum):
    """What a node can be besides an Entity. Names of labels in the graph: never anything that a user said."""

    PERSON = "Person"
    ORGANIZATION = "Organization"
    PLACE = "Place"
    PRODUCT = "Product"
    ORDER = "Order"
    APPOINTMENT = "Appointment"
    ACCOUNT = "Account"
    CONDITION = "Condition"
    PREFERENCE = "Preference"
    ANIMAL = "Animal"
    DATE = "Date"
    TOPIC = "Topic"


ANY_KIND = "Entity"  # of what is none of these

_KINDS = {kind.casefold(): kind.value for kind in EntityKind}


def entity_kind(text: str) -> str:
    """The kind that ``text`` names, in whatever case; ANY_KIND where there is none."""
    return _KINDS.get(text.strip().casefold(), ANY_KIND)


def derived_id(*parts: str) -> str:
    """A UUIDv5 of the parts; different lists of parts give different ids (lengths go in as well)."""
    return str(uuid.uuid5(_NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


def name_key(name: str) -> str:
    """What two spellings of one name share: NFKC, case folded, white space as single blanks."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


Speaker = Literal["user", "assistant", "other"]


@dataclass(frozen=True, slots=True)
class TurnPart:
    """A turn, or a part of one that is too long for a chunk, as an extractor sees it.

    ``start`` and ``end`` are offsets into the turn's content, in characters; ``whole`` is that content, where this is
    a part of it. ``confidence`` is the transcript's, of 0 to 1; ``None``: unknown.
    """

    turn_id: str
    speaker: Speaker
    text: str
    said_at: datetime
    name: str = ""
    mode: Mode = "voice"
    language: str = ""
    confidence: float | None = None
    start: int = 0
    end: int = 0
    whole: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Where a chunk begins and ends: archive cursors, inclusive, and offsets into the first and last turn's content.

    ``end_offset`` -1: to the end of the turn.
    """

    first_cursor: int
    last_cursor: int
    start_offset: int = 0
    end_offset: int = -1
    tokens: int = 0


class ChunkState(StrEnum):
    WAITING = "waiting"  # to be ingested, or tried again at ``not_before``
    DONE = "done"
    DEAD = "dead"  # given up on: see ``reason``; retried or dropped by hand
    DROPPED = "dropped"  # by hand: its turns stay in the archive, its facts are not extracted


@dataclass(frozen=True, slots=True)
class Chunk:
    """An episode to be: a run of one session's turns, cut once, stored before the first LLM call.

    ``id`` derives from group, session and ``ordinal`` (from 0), hence is the episode's id. ``user`` is the archive's
    number of the user (no identity in it: safe in a task's arguments and in logs). ``answers`` holds what the LLM has
    answered already (JSON), so that a repetition pays for nothing twice.
    """

    id: str
    user: int
    session_id: str
    ordinal: int
    span: ChunkSpan
    state: ChunkState
    created_at: datetime
    attempts: int = 0
    not_before: datetime | None = None
    reason: str = ""  # why it waits or was given up on; never holds content
    answers: str = ""


@dataclass(frozen=True, slots=True)
class Entity:
    """A node. The user's own has the key ``USER_ENTITY_KEY``, the others ``name_key(name)``."""

    id: str
    key: str
    name: str
    kind: str  # of EntityKind, or ANY_KIND: Graphiti's entity type
    created_at: datetime
    vector: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Statement:
    """How a fact was put, once: its first wording makes the fact, later ones are kept as wordings of it."""

    text: str
    relation: str
    category: str  # of Category
    speaker: Speaker
    valid_at: datetime  # from when it holds: as said, or when it was said
    said_invalid_at: datetime | None  # until when, as said in the same breath
    reference_time: datetime  # when it was said
    turns: tuple[str, ...]  # ids of the turns it was said in
    vector: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class KnownFact:
    """An edge between two entities, in its present state.

    ``origin`` is the episode whose statement it shows; ``episodes`` all that said it, in the order of their ingestion.
    ``conflicts`` are the facts it was found to contradict. ``invalid_at`` follows from those and from what was said:
    the earliest later ``valid_at`` among the conflicts, or ``said_invalid_at``. It is live at a time when that is
    ``None`` or later.
    """

    id: str
    subject_id: str
    object_id: str
    statement: Statement
    origin: str
    episodes: tuple[str, ...]
    created_at: datetime
    invalid_at: datetime | None = None
    expired_at: datetime | None = None
    conflicts: tuple[str, ...] = ()

    def live(self, now: datetime) -> bool:
        return self.invalid_at is None or self.invalid_at > now


@dataclass(frozen=True, slots=True)
class Wording:
    """Another statement of a fact that was known already."""

    id: str
    fact_id: str
    episode: str
    created_at: datetime
    statement: Statement


@dataclass(frozen=True, slots=True)
class Mention:
    """That an episode speaks of an entity, and by what name."""

    id: str
    episode: str
    entity_id: str
    name: str
    created_at: datetime
    vector: bytes = field(default=b"", repr=False)  # of the name, where it is not the entity's own


@dataclass(frozen=True, slots=True)
class Episode:
    """An ingested chunk. ``name``: ``session_{id}_{timestamp}``. ``body``: "User: …" and "Assistant: …" lines."""

    id: str
    session_id: str
    ordinal: int
    name: str
    body: str = field(repr=False)
    source_description: str  # "Voice conversation", "Chat conversation" or "Voice/Chat conversation"
    reference_time: datetime  # when its first turn was said
    created_at: datetime
    fact_ids: tuple[str, ...] = ()  # facts it made, repeated or ended: Graphiti's ``entity_edges``


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that is known of one user. Order: episodes by ingestion; the rest by id."""

    episodes: tuple[Episode, ...] = ()
    entities: tuple[Entity, ...] = ()
    facts: tuple[KnownFact, ...] = ()
    wordings: tuple[Wording, ...] = ()
    mentions: tuple[Mention, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """What one episode changes. Applying it twice is applying it once.

    ``entities``, ``facts``, ``wordings`` and ``mentions`` are new; ``changed`` are facts that were known, in their new
    state; ``touched`` are the entities (new ones included) whose summary has to be made anew.
    """

    episode: Episode
    entities: tuple[Entity, ...] = ()
    facts: tuple[KnownFact, ...] = ()
    wordings: tuple[Wording, ...] = ()
    mentions: tuple[Mention, ...] = ()
    changed: tuple[KnownFact, ...] = ()
    touched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionDigest:
    """The episodic layer: a session in short. ``made_by`` is the LLM's name or "extractive"."""

    session_id: str
    summary: str = field(repr=False)
    key_moments: tuple[str, ...] = field(repr=False)
    made_by: str
    through_cursor: int
    first_at: datetime
    last_at: datetime
