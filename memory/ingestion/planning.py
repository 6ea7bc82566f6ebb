"""From what an LLM extracted to what is to be embedded and looked for: the first step of merging.

::

    planned = plan(chunk, turns, extraction, now=now)
    vectors = {text: vector for each of planned.texts}               # one embedding call, where there is any text
    matches = await graph.matches(scope, entities=planned.entity_probes(vectors), facts=planned.fact_probes(vectors), …)
    related = await knowledge.related(scope, keys=planned.keys, entity_ids=…, fact_ids=…)     # ids: those of matches
    draft = Draft(planned, vectors, matches, related)
    question = undecided(draft)                                      # None: nothing for an LLM to decide
    patch = merge(draft, verdict)

Pure. Above: merging, the pipeline. Below: extraction, temporal, wording, knowledge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from memory.ingestion import wording
from memory.ingestion.extraction import ExtractedFact, Extraction
from memory.ingestion.temporal import validity
from memory.knowledge import ANY_KIND, USER_ENTITY_KEY, Chunk, EntityKind, Episode, Statement, TurnPart, name_key
from memory.knowledge_ports import EntityProbe, FactProbe
from memory.limits import ENTITY_NAME_CHARS_MAX, FACT_CHARS_MAX, FACTS_PER_CHUNK_MAX
from memory.models import clean_text

USER_NAME = "User"  # the user's node is called so whatever they are called: their names are facts
_USER_ALIASES = frozenset((USER_ENTITY_KEY, "i", "me", "myself", "the user", "caller", "the caller", "the customer"))
_SPEAKERS = {"user": "User", "assistant": "Assistant", "other": "Other"}


@dataclass(frozen=True, slots=True)
class Said:
    """A statement of the chunk. ``subject`` and ``object`` are keys; ``names_subject``: the object is its name."""

    place: int
    subject: str
    object: str
    names_subject: bool
    statement: Statement


@dataclass(frozen=True, slots=True)
class Plan:
    """``said`` in the order in which it was said; ``names`` and ``kinds`` by key, of all that it speaks of, the user's
    kind in any case; ``own_names``: keys of names that are the user's, as far as the chunk itself tells."""

    episode: Episode
    said: tuple[Said, ...]
    names: Mapping[str, str] = field(repr=False)
    kinds: Mapping[str, str]
    own_names: frozenset[str] = field(repr=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """What to embed: names, then statements, each once. Empty: the chunk says nothing to remember."""
        return tuple(dict.fromkeys([*self.names.values(), *(said.statement.text for said in self.said)]))

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the entities to look for; the user's among them, whose names have to be known."""
        return tuple(self.names)

    def entity_probes(self, vectors: Mapping[str, bytes]) -> tuple[EntityProbe, ...]:
        """In the order of ``names``; not for the user, who is found by key alone."""
        return tuple(
            EntityProbe(key, name, vectors[name]) for key, name in self.names.items() if key != USER_ENTITY_KEY
        )

    def fact_probes(self, vectors: Mapping[str, bytes]) -> tuple[FactProbe, ...]:
        """In the order of ``said``."""
        return tuple(FactProbe(said.statement.text, vectors[said.statement.text]) for said in self.said)


def plan(chunk: Chunk, turns: Sequence[TurnPart], extraction: Extraction, *, now: datetime) -> Plan:
    """What there is to merge of ``extraction``, whose facts name their turns by their place in ``turns``.

    Left out are statements without words, subject or object, those that only recall what was said before, and what is
    beyond FACTS_PER_CHUNK_MAX; longer texts and names are cut.
    """
    cleaned = [fact for fact in map(_cleaned, extraction.facts) if fact is not None] if turns else []
    facts = [fact for fact in cleaned if not _recalled(fact, turns)][:FACTS_PER_CHUNK_MAX]
    said = _in_order(facts, turns)
    # The user's among them whenever anything is said: who is spoken of by name may turn out to be the user.
    names = {USER_ENTITY_KEY: USER_NAME} if facts else {}
    for fact in facts:
        for name in (fact.subject, fact.object):
            names.setdefault(entity_key(name), name)
    kinds = {entity_key(_name(entity.name)): entity.kind for entity in extraction.entities}
    return Plan(
        episode=episode(chunk, turns, now=now),
        said=said,
        names=names,
        kinds={key: kinds.get(key, ANY_KIND) for key in names} | {USER_ENTITY_KEY: EntityKind.PERSON.value},
        own_names=_own_names(said, turns),
    )


def episode(chunk: Chunk, turns: Sequence[TurnPart], *, now: datetime) -> Episode:
    """The chunk as an episode, in the words and names that the format's users know."""
    said_at = turns[0].said_at if turns else chunk.created_at
    modes = {turn.mode for turn in turns}
    mode = "Voice/Chat" if len(modes) > 1 else "Chat" if modes == {"text"} else "Voice"
    return Episode(
        id=chunk.id,
        session_id=chunk.session_id,
        ordinal=chunk.ordinal,
        name=f"session_{chunk.session_id}_{said_at:%Y%m%dT%H%M%SZ}",
        body="\n".join(f"{_SPEAKERS[turn.speaker]}: {turn.text}" for turn in turns),
        source_description=f"{mode} conversation",
        reference_time=said_at,
        created_at=now,
    )


def entity_key(name: str) -> str:
    """The key of what is called ``name``: the user's for every way to say "I"."""
    key = name_key(name)
    return USER_ENTITY_KEY if key in _USER_ALIASES else key


def _name(text: str) -> str:
    return " ".join(clean_text(text).split())[:ENTITY_NAME_CHARS_MAX].strip()


def _cleaned(fact: ExtractedFact) -> ExtractedFact | None:
    text = " ".join(clean_text(fact.text).split())[:FACT_CHARS_MAX].strip()
    subject, object_ = _name(fact.subject), _name(fact.object)
    if not (wording.text_key(text) and name_key(subject) and name_key(object_)):
        return None
    relation = _name(fact.relation) or "RELATES_TO"
    return replace(fact, subject=subject, object=object_, relation=relation, text=text)


def _sources(fact: ExtractedFact, turns: Sequence[TurnPart]) -> list[TurnPart]:
    return [turns[place] for place in sorted(set(fact.turns)) if 0 <= place < len(turns)]


def _recalled(fact: ExtractedFact, turns: Sequence[TurnPart]) -> bool:
    return wording.recalled(fact.text, [turn.text for turn in _sources(fact, turns)])


def _in_order(facts: Sequence[ExtractedFact], turns: Sequence[TurnPart]) -> tuple[Said, ...]:
    """Statements by when they were said. Those of one turn are a microsecond apart, in the order in which they came:
    the second of two values in one breath is the later one. From when they hold is not moved by that."""
    dated: Counter[datetime] = Counter()
    found: list[tuple[datetime, datetime, ExtractedFact, list[TurnPart]]] = []
    for fact in facts:
        sources = _sources(fact, turns)
        said_at = max(turn.said_at for turn in sources or turns)
        found.append((said_at + timedelta(microseconds=dated[said_at]), said_at, fact, sources))
        dated[said_at] += 1
    found.sort(key=lambda item: item[0])
    return tuple(_said(place, *item) for place, item in enumerate(found))


def _said(
    place: int, reference_time: datetime, said_at: datetime, fact: ExtractedFact, sources: Sequence[TurnPart]
) -> Said:
    holds = validity(fact.text, said=said_at, valid_at=fact.valid_at, invalid_at=fact.invalid_at)
    statement = Statement(
        text=fact.text,
        relation=fact.relation,
        category=fact.category,
        speaker=fact.speaker,
        valid_at=holds.valid_at,
        said_invalid_at=holds.invalid_at,
        reference_time=reference_time,
        turns=tuple(dict.fromkeys(turn.turn_id for turn in sources)),
    )
    naming = wording.names_its_subject(fact.text, fact.relation)
    return Said(place, entity_key(fact.subject), entity_key(fact.object), naming, statement)


def _own_names(said: Sequence[Said], turns: Sequence[TurnPart]) -> frozenset[str]:
    called = {name_key(turn.name) for turn in turns if turn.speaker == "user" and turn.name.strip()}
    stated = {
        one.object
        for one in said
        if one.subject == USER_ENTITY_KEY and one.names_subject and not wording.core(one.statement.text)[1]
    }
    return frozenset(called | stated) - {USER_ENTITY_KEY}
