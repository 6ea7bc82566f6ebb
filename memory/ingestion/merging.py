"""From a draft to a patch: new facts, repetitions, endings. What ``planning`` describes, last step.

Deterministic first: the same names, the same words, a value of which there is one at a time, a denial. An LLM's verdict
counts only within guards: what it calls the same must join the same two, have the same numbers, and be live when it is
said again ("moved back to Leeds" is a new fact, not the ended one); what it calls a contradiction must share an entity.
Endings follow ``temporal``; contradictions are written down on both sides, so that an erasure can take back what
one of them ended.

Pure: the same draft and verdict give the same patch, with the same ids. Above: the pipeline. Below: drafting, planning,
temporal, wording, knowledge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from memory.ingestion import wording
from memory.ingestion.drafting import Draft, Laid, repeats, said_id, undecided
from memory.ingestion.planning import Plan, Said, plan
from memory.ingestion.resolution import FactVerdict, Verdict
from memory.ingestion.temporal import earliest, ended_by, holds_when_said
from memory.knowledge import ANY_KIND, Entity, KnownFact, Mention, Patch, Statement, Wording, derived_id

__all__ = ["Draft", "Plan", "merge", "plan", "undecided"]


def merge(draft: Draft, verdict: Verdict | None = None) -> Patch:
    """What the chunk changes. ``verdict`` answers ``undecided(draft)``; what it doesn't say is new and ends nothing."""
    return _Merge(draft, verdict or Verdict()).patch()


@dataclass(slots=True, eq=False)
class _Edge:
    """A fact while it is being merged. ``before``: as it was known; ``None``: it is new."""

    fact: KnownFact
    before: KnownFact | None
    new_wordings: dict[str, Wording] = field(default_factory=dict)

    def end(self, at: datetime | None, now: datetime) -> None:
        invalid_at = earliest(self.fact.invalid_at, at)
        if invalid_at != self.fact.invalid_at:
            self.fact = replace(self.fact, invalid_at=invalid_at, expired_at=self.fact.expired_at or now)

    def oppose(self, other: _Edge) -> None:
        if other.fact.id not in self.fact.conflicts:
            self.fact = replace(self.fact, conflicts=(*self.fact.conflicts, other.fact.id))

    @property
    def ended(self) -> bool:
        """Whether the chunk has ended what was known."""
        return self.before is not None and self.before.invalid_at != self.fact.invalid_at


class _Merge:
    def __init__(self, draft: Draft, verdict: Verdict) -> None:
        self._laid = Laid(draft)
        self._plan = draft.plan
        self._episode = draft.plan.episode
        self._now = draft.plan.episode.created_at
        self._vectors = draft.vectors
        self._entities = draft.related.entities
        self._same = self._laid.chosen(verdict)
        self._verdicts = {one.new: one for one in verdict.facts}
        self._new_entities: dict[str, Entity] = {}
        self._mentions: dict[str, Mention] = {}
        self._edges = {fact.id: _Edge(fact, fact) for fact in draft.related.facts.values()}
        self._by_subject: dict[str, list[_Edge]] = defaultdict(list)
        for edge in self._edges.values():
            self._by_subject[edge.fact.subject_id].append(edge)
        self._of_said: dict[int, _Edge] = {}
        self._opposed_peers = self._peers_opposed()
        self._alike: Counter[tuple[str, ...]] = Counter()

    def patch(self) -> Patch:
        for said in self._plan.said:
            self._take(said)
        edges = list(dict.fromkeys(self._of_said.values()))
        changed = [edge for edge in self._edges.values() if edge.before not in (None, edge.fact)]
        touched = {end for edge in [*edges, *changed] for end in (edge.fact.subject_id, edge.fact.object_id)}
        ended = [edge.fact.id for edge in changed if edge.ended]
        return Patch(
            episode=replace(self._episode, fact_ids=tuple(dict.fromkeys([*(edge.fact.id for edge in edges), *ended]))),
            entities=tuple(self._new_entities.values()),
            facts=tuple(edge.fact for edge in edges if edge.before is None),
            wordings=tuple(one for edge in edges for one in edge.new_wordings.values()),
            mentions=tuple(self._mentions.values()),
            changed=tuple(edge.fact for edge in changed),
            touched=tuple(sorted(touched)),
        )

    # -- who

    def _id_of(self, key: str) -> str:
        """The entity that ``key`` stands for: the one of that name, the one the LLM said, or a new one."""
        known = self._laid.known(key) or self._same.get(key)
        return known or derived_id("entity", self._episode.id, key)

    def _mention(self, key: str) -> None:
        id_ = self._id_of(key)
        name = self._plan.names.get(key, key)
        known = self._entities.get(id_)
        if known is None and id_ not in self._new_entities:
            self._new_entities[id_] = self._entity(id_, key, name)
        if id_ not in self._mentions:
            own = (known or self._new_entities[id_]).name == name
            vector = b"" if own else self._vectors.get(name, b"")
            mention_id = derived_id("mention", self._episode.id, id_)
            self._mentions[id_] = Mention(mention_id, self._episode.id, id_, name, self._now, vector)

    def _entity(self, id_: str, key: str, name: str) -> Entity:
        return Entity(id_, key, name, self._plan.kinds.get(key, ANY_KIND), self._now, self._vectors.get(name, b""))

    # -- what

    def _take(self, said: Said) -> None:
        subject, object_ = self._laid.subject(said), self._laid.object(said)
        ends = self._id_of(subject), self._id_of(object_)
        if ends[0] == ends[1]:
            return
        against = self._against(said, *ends)
        edge = self._known_as(said, ends, against)
        if edge is not None:
            edge = self._repeat(edge, said)
        else:
            against = list(dict.fromkeys([*against, *self._against_the_same(said, ends)]))
            edge = self._make(said, *ends)
        self._of_said[said.place] = edge
        for other in against:
            if other is not edge:
                self._oppose(edge, other)
        self._mention(subject)
        self._mention(object_)

    def _against(self, said: Said, subject_id: str, object_id: str) -> list[_Edge]:
        """What ``said`` contradicts, of what is known and of what was said before it."""
        sure = [
            edge
            for edge in self._by_subject[subject_id]
            if wording.opposed(said.statement, edge.fact.statement, same_object=edge.fact.object_id == object_id)
        ]
        told = [self._edges[fact.id] for id_ in self._verdict(said).contradicts for fact in self._laid.alike(id_)]
        peers = [self._of_said[place] for place in sorted(self._opposed_peers[said.place]) if place in self._of_said]
        ends = subject_id, object_id
        return list(dict.fromkeys([*sure, *(edge for edge in [*told, *peers] if _may_oppose(ends, edge.fact))]))

    def _against_the_same(self, said: Said, ends: tuple[str, str]) -> list[_Edge]:
        """What contradicts a fact of the same words that the chunk itself has ended before ``said`` says it again: the
        LLM was not asked, for ``said`` was a repetition then."""
        same = [edge.before for edge in self._by_subject[ends[0]] if edge.before is not None and edge.ended]
        again = [fact for fact in same if fact.object_id == ends[1] and repeats(said, fact)]
        return [self._edges[id_] for fact in again for id_ in fact.conflicts if id_ in self._edges]

    def _known_as(self, said: Said, ends: tuple[str, str], against: list[_Edge]) -> _Edge | None:
        """The fact that ``said`` repeats, if it does. What it contradicts may have ended that fact meanwhile: then not,
        for it is said to hold again."""
        for edge in self._by_subject[ends[0]]:
            if edge.fact.object_id == ends[1] and repeats(said, edge.fact) and not self._was_over(said, edge, against):
                return edge
        for edge in self._named(self._verdict(said).duplicate_of):
            if (
                edge not in against
                and _may_repeat(said.statement, ends, edge.fact)
                and not self._was_over(said, edge, against)
            ):
                return edge
        return None

    def _was_over(self, said: Said, edge: _Edge, against: Iterable[_Edge]) -> bool:
        """Whether something that ``said`` contradicts has ended ``edge`` before it was said again."""
        for other in against:
            at = ended_by(edge.fact.statement, other.fact.statement, certain=wording.certain(edge.fact, other.fact))
            if at is not None and at <= holds_when_said(said.statement):
                self._oppose(edge, other)
                return True
        return False

    def _verdict(self, said: Said) -> FactVerdict:
        return self._verdicts.get(said_id(said.place)) or FactVerdict(said_id(said.place))

    def _named(self, id_: str | None) -> list[_Edge]:
        """The edges of a known fact and those alike, or that of a statement taken before."""
        peers = [edge for place, edge in self._of_said.items() if said_id(place) == id_]
        return peers or [self._edges[fact.id] for fact in self._laid.alike(id_ or "")]

    def _peers_opposed(self) -> dict[int, set[int]]:
        """Places of statements of this chunk that the LLM says contradict each other, both ways."""
        places = {said_id(said.place): said.place for said in self._plan.said}
        found: dict[int, set[int]] = defaultdict(set)
        for one in self._verdicts.values():
            for other in one.contradicts:
                if one.new in places and other in places:
                    found[places[one.new]].add(places[other])
                    found[places[other]].add(places[one.new])
        return found

    def _make(self, said: Said, subject_id: str, object_id: str) -> _Edge:
        statement = replace(said.statement, vector=self._vectors.get(said.statement.text, b""))
        words = (subject_id, object_id, wording.text_key(statement.text))
        self._alike[words] += 1  # said, taken back, and said again in one call
        fact = KnownFact(
            id=derived_id("fact", self._episode.id, *words, str(self._alike[words])),
            subject_id=subject_id,
            object_id=object_id,
            statement=statement,
            origin=self._episode.id,
            episodes=(self._episode.id,),
            created_at=self._now,
            invalid_at=statement.said_invalid_at,
            expired_at=None if statement.said_invalid_at is None else self._now,
        )
        edge = _Edge(fact, None)
        self._edges[fact.id] = edge
        self._by_subject[subject_id].append(edge)
        return edge

    def _repeat(self, edge: _Edge, said: Said) -> _Edge:
        if edge.before is None:
            turns = (*edge.fact.statement.turns, *said.statement.turns)
            statement = replace(edge.fact.statement, turns=tuple(dict.fromkeys(turns)))
            edge.fact = replace(edge.fact, statement=statement)
            return edge
        if self._episode.id not in edge.fact.episodes:
            edge.fact = replace(edge.fact, episodes=(*edge.fact.episodes, self._episode.id))
        statement = replace(said.statement, vector=self._vectors.get(said.statement.text, b""))
        id_ = derived_id("wording", self._episode.id, edge.fact.id, wording.text_key(statement.text))
        if (earlier := edge.new_wordings.get(id_)) is not None:
            turns = (*earlier.statement.turns, *statement.turns)
            statement = replace(earlier.statement, turns=tuple(dict.fromkeys(turns)))
        edge.new_wordings[id_] = Wording(id_, edge.fact.id, self._episode.id, self._now, statement)
        return edge

    def _oppose(self, edge: _Edge, other: _Edge) -> None:
        """Write down that they contradict each other, and end the one that the other ends."""
        certain = wording.certain(edge.fact, other.fact)
        ends = (
            ended_by(edge.fact.statement, other.fact.statement, certain=certain),
            ended_by(other.fact.statement, edge.fact.statement, certain=certain),
        )
        edge.oppose(other)
        other.oppose(edge)
        edge.end(ends[0], self._now)
        other.end(ends[1], self._now)


def _may_oppose(ends: tuple[str, str], fact: KnownFact) -> bool:
    """Whether an LLM may be believed that they contradict each other: one speaks of what the other is about."""
    return fact.subject_id in ends or ends[0] in (fact.subject_id, fact.object_id)


def _may_repeat(statement: Statement, ends: tuple[str, str], fact: KnownFact) -> bool:
    """Whether an LLM may be believed that they say the same."""
    return (
        {fact.subject_id, fact.object_id} == set(ends)
        and wording.numbers(statement.text) == wording.numbers(fact.statement.text)
        and not wording.denies(statement.text, fact.statement.text)
        and statement.said_invalid_at in (None, fact.statement.said_invalid_at)
        and fact.live(holds_when_said(statement))
    )
