"""What is known, laid beside what was said: which names are whose, what may be the same, and what only an LLM can tell.

Pure. Above: merging, the pipeline. Below: planning, resolution, wording, summaries, knowledge_ports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memory.ingestion import wording
from memory.ingestion.planning import Plan, Said
from memory.ingestion.resolution import CandidateEntity, Doubt, KnownText, NewFact, Question, Verdict
from memory.ingestion.summaries import summary
from memory.ingestion.temporal import holds_when_said
from memory.knowledge import USER_ENTITY_KEY, KnownFact
from memory.knowledge_ports import GraphMatches, Related
from memory.limits import GRAPH_CANDIDATES

_ENTITY_CANDIDATES_MAX = 4
_ABOUT_CHARS_MAX = 160


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan with what was found for it. ``vectors`` by text, for all of the plan's texts."""

    plan: Plan
    vectors: Mapping[str, bytes] = field(repr=False)
    matches: GraphMatches
    related: Related


def undecided(draft: Draft) -> Question | None:
    """What an LLM has to say before ``merge``; ``None``: nothing, all is decided."""
    question = Laid(draft).question()
    return None if question.empty else question


def said_id(place: int) -> str:
    """The id of a statement within a question."""
    return f"said:{place}"


class Laid:
    """A draft, indexed."""

    def __init__(self, draft: Draft) -> None:
        self.plan = draft.plan
        self._related = draft.related
        self._by_key = {entity.key: entity.id for entity in draft.related.entities.values()}
        self._near = dict(zip(_probed(draft.plan), draft.matches.entities, strict=False))
        self._close = draft.matches.facts
        self._touching: dict[str, list[KnownFact]] = defaultdict(list)
        self._worded: dict[tuple[str, str, str], list[KnownFact]] = defaultdict(list)
        for fact in sorted(draft.related.facts.values(), key=lambda fact: (fact.created_at, fact.id), reverse=True):
            for end in dict.fromkeys((fact.subject_id, fact.object_id)):
                self._touching[end].append(fact)
            self._worded[_words(fact)].append(fact)
        self.own_names = draft.plan.own_names | self._known_own_names()

    def _known_own_names(self) -> set[str]:
        """What the user was called so far; an earlier name still means them."""
        user = self._by_key.get(USER_ENTITY_KEY, "")
        return {
            self._related.entities[fact.object_id].key
            for fact in self._touching.get(user, ())
            if fact.subject_id == user
            and fact.object_id in self._related.entities
            and wording.names_its_subject(fact.statement.text, fact.statement.relation)
            and not wording.core(fact.statement.text)[1]
        }

    def subject(self, said: Said) -> str:
        """The key that the subject really has."""
        return USER_ENTITY_KEY if said.subject in self.own_names else said.subject

    def object(self, said: Said) -> str:
        """The key that the object really has: the user's own name means them, unless it is said to be their name."""
        return USER_ENTITY_KEY if said.object in self.own_names and not said.names_subject else said.object

    def known(self, key: str) -> str | None:
        """The id of the entity that has just this name."""
        return self._by_key.get(key)

    def candidates(self, key: str) -> list[str]:
        """Entities that ``key``, which nobody has, may be another name of: near ones with the same numbers in it."""
        if key in self._by_key or key in self.own_names or key == USER_ENTITY_KEY:
            return []
        near = [self._related.entities[id_] for id_ in self._near.get(key, ()) if id_ in self._related.entities]
        digits = wording.numbers(key)
        fit = [one.id for one in near if one.key != USER_ENTITY_KEY and wording.numbers(one.key) == digits]
        return fit[:_ENTITY_CANDIDATES_MAX]

    def chosen(self, verdict: Verdict) -> dict[str, str]:
        """Ids of entities by the keys that the LLM said are theirs, of those it was asked about."""
        return {
            one.entity: one.same_as
            for one in verdict.entities
            if one.same_as is not None and one.same_as in self.candidates(one.entity)
        }

    def about_ends(self, said: Said) -> tuple[set[str], set[str]]:
        """Entities that the subject and the object are, or may be."""
        return tuple(self._may_be(key) for key in (self.subject(said), self.object(said)))  # type: ignore[return-value]

    def _may_be(self, key: str) -> set[str]:
        known = self._by_key.get(key)
        return {known} if known is not None else set(self.candidates(key))

    def of(self, entity_id: str) -> Sequence[KnownFact]:
        """All known facts that touch the entity, newest first."""
        return self._touching.get(entity_id, ())

    def repeated(self, said: Said, subject_id: str | None, object_id: str | None) -> KnownFact | None:
        """The known fact that ``said`` repeats word for word, live when it was said."""
        return next(
            (
                fact
                for fact in self.of(subject_id or "")
                if (fact.subject_id, fact.object_id) == (subject_id, object_id) and repeats(said, fact)
            ),
            None,
        )

    def alike(self, fact_id: str) -> list[KnownFact]:
        """The known facts that join the same two in the same words as this one, itself among them, newest first: it
        was said, ended, and said again. An LLM is shown the newest, and speaks of all."""
        fact = self._related.facts.get(fact_id)
        return [] if fact is None else self._worded[_words(fact)]

    def compared(self, said: Said) -> list[KnownFact]:
        """Known facts that an LLM has to compare with ``said``: near ones that share an entity, those between the same
        two, and those of the same subject and relation. Not those that wording has decided on."""
        subjects, objects = self.about_ends(said)
        ends = subjects | objects
        if not ends or self._is_repetition(said):
            return []
        facts = self._related.facts
        close = self._close[said.place] if said.place < len(self._close) else ()
        near = [facts[id_] for id_ in close if id_ in facts]
        alike = [
            fact
            for subject in sorted(subjects)
            for fact in self.of(subject)
            if _ends(fact) - {subject} <= objects
            or (fact.subject_id == subject and fact.statement.relation == said.statement.relation)
        ]
        found = [self.alike(fact.id)[0] for fact in (*near, *alike[:GRAPH_CANDIDATES]) if _ends(fact) & ends]
        unsure = [fact for fact in {fact.id: fact for fact in found}.values() if not self.certainly_against(said, fact)]
        # An LLM that names one of several that say the same had better name one that is live: only that is repeated.
        return sorted(unsure, key=lambda fact: not fact.live(holds_when_said(said.statement)))

    def _is_repetition(self, said: Said) -> bool:
        return self.repeated(said, self.known(self.subject(said)), self.known(self.object(said))) is not None

    def certainly_against(self, said: Said, fact: KnownFact) -> bool:
        """Whether wording alone tells that the two contradict each other."""
        if self.known(self.subject(said)) != fact.subject_id:
            return False
        same_object = self.known(self.object(said)) == fact.object_id
        return wording.opposed(said.statement, fact.statement, same_object=same_object)

    def peers(self, said: Said) -> list[Said]:
        """Other statements of the chunk that may say the same or the contrary."""
        return [
            other
            for other in self.plan.said
            if other.place != said.place
            and self.subject(other) == self.subject(said)
            and (other.statement.relation == said.statement.relation or self.object(other) == self.object(said))
            and wording.text_key(other.statement.text) != wording.text_key(said.statement.text)
            and not wording.denies(other.statement.text, said.statement.text)
            and not wording.replaces(other.statement.text, said.statement.text)
        ]

    def question(self) -> Question:
        """Everything that is in doubt."""
        known: dict[str, KnownFact] = {}
        asked: set[int] = set()
        comparisons: dict[int, tuple[str, ...]] = {}
        for said in self.plan.said:
            facts, peers = self.compared(said), self.peers(said)
            known.update((fact.id, fact) for fact in facts)
            if facts or peers:
                asked |= {said.place, *(peer.place for peer in peers)}
            comparisons[said.place] = (*(fact.id for fact in facts), *(said_id(peer.place) for peer in peers))
        doubts = self._doubts()
        return Question(
            new=tuple(
                NewFact(said_id(said.place), said.statement.text, comparisons[said.place])
                for said in self.plan.said
                if said.place in asked
            ),
            known=tuple(KnownText(fact.id, fact.statement.text) for fact in known.values()),
            entities=doubts,
            candidates=self._candidate_entities(doubts),
        )

    def _doubts(self) -> tuple[Doubt, ...]:
        keys = dict.fromkeys(key for said in self.plan.said for key in (self.subject(said), self.object(said)))
        found = ((key, tuple(self.candidates(key))) for key in keys)
        return tuple(Doubt(key, self.plan.names[key], ids) for key, ids in found if ids)

    def _candidate_entities(self, doubts: Iterable[Doubt]) -> tuple[CandidateEntity, ...]:
        ids = dict.fromkeys(id_ for doubt in doubts for id_ in doubt.candidates)
        now = self.plan.episode.created_at
        return tuple(
            CandidateEntity(
                id_,
                self._related.entities[id_].name,
                summary(id_, self._touching.get(id_, ()), now=now)[:_ABOUT_CHARS_MAX],
            )
            for id_ in ids
        )


def repeats(said: Said, fact: KnownFact) -> bool:
    """Whether ``said`` puts a fact that is live when it is said in the same words, with no end that is new."""
    statement = said.statement
    return (
        fact.live(holds_when_said(statement))
        and statement.said_invalid_at in (None, fact.statement.said_invalid_at)
        and wording.text_key(statement.text) == wording.text_key(fact.statement.text)
    )


def _ends(fact: KnownFact) -> set[str]:
    return {fact.subject_id, fact.object_id}


def _words(fact: KnownFact) -> tuple[str, str, str]:
    return fact.subject_id, fact.object_id, wording.text_key(fact.statement.text)


def _probed(plan: Plan) -> list[str]:
    return [key for key in plan.names if key != USER_ENTITY_KEY]
