"""What would be known of a user if some episodes had never been ingested, without an LLM.

A fact that others said as well stays, in the words of the first who is left; what an episode had ended lives again;
names and texts of the forgotten are nowhere left. Two facts that only the forgotten kept apart ("lives in Leeds",
York meanwhile, "lives in Leeds") are one again.
Pure. Above: upkeep, erasure. Below: renaming, temporal, wording, knowledge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from memory.ingestion import wording
from memory.ingestion.applying import by_id
from memory.ingestion.renaming import renamed
from memory.ingestion.temporal import earliest, ended_by, holds_when_said
from memory.knowledge import Episode, Knowledge, KnownFact, Statement, Wording, derived_id


def forgotten(knowledge: Knowledge, episode_ids: Collection[str], now: datetime) -> Knowledge:
    """``knowledge`` as if these episodes had never been. Ids stay; unknown episodes change nothing.

    ``now`` becomes the ``expired_at`` of facts that have an end only now.
    """
    gone = frozenset(episode_ids)
    episodes = tuple(episode for episode in knowledge.episodes if episode.id not in gone)
    if len(episodes) == len(knowledge.episodes):
        return knowledge
    order = {episode.id: place for place, episode in enumerate(episodes)}
    spoken = [mention for mention in knowledge.mentions if mention.episode not in gone]
    who = renamed(knowledge.entities, spoken, order)
    facts, wordings = _left(_between(knowledge, who.joined), gone)
    facts, wordings = _rejoined(_reckoned(facts, now), wordings, knowledge, order, now)
    return Knowledge(
        episodes=_listing(episodes, knowledge, facts, wordings),
        entities=who.entities,
        facts=by_id(facts.values()),
        wordings=by_id(wordings),
        mentions=who.mentions,
    )


def _between(knowledge: Knowledge, joined: Mapping[str, str]) -> Knowledge:
    """The facts between the entities that are left; none of somebody about themself."""
    if not joined:
        return knowledge
    facts = (
        replace(
            fact,
            subject_id=joined.get(fact.subject_id, fact.subject_id),
            object_id=joined.get(fact.object_id, fact.object_id),
        )
        for fact in knowledge.facts
    )
    return replace(knowledge, facts=tuple(fact for fact in facts if fact.subject_id != fact.object_id))


def _left(knowledge: Knowledge, gone: frozenset[str]) -> tuple[dict[str, KnownFact], list[Wording]]:
    """Facts that somebody else said too, in words of theirs, and the other wordings that are left."""
    wordings: dict[str, list[Wording]] = defaultdict(list)
    order = {episode.id: place for place, episode in enumerate(knowledge.episodes)}
    for one in sorted(knowledge.wordings, key=lambda w: (order.get(w.episode, 0), w.statement.reference_time, w.id)):
        if one.episode not in gone:
            wordings[one.fact_id].append(one)
    facts: dict[str, KnownFact] = {}
    for fact in knowledge.facts:
        said_by = tuple(episode for episode in fact.episodes if episode not in gone)
        if fact.origin not in gone:
            facts[fact.id] = replace(fact, episodes=said_by)
        elif wordings[fact.id]:
            facts[fact.id] = _reworded(fact, wordings[fact.id].pop(0), said_by)
    return facts, [one for fact_id in facts for one in wordings[fact_id]]


def _reworded(fact: KnownFact, first: Wording, said_by: tuple[str, ...]) -> KnownFact:
    return replace(fact, statement=first.statement, origin=first.episode, created_at=first.created_at, episodes=said_by)


def _reckoned(facts: Mapping[str, KnownFact], now: datetime) -> dict[str, KnownFact]:
    """The facts with their endings made anew from what is left."""
    found: dict[str, KnownFact] = {}
    for fact in facts.values():
        against = [facts[id_] for id_ in fact.conflicts if id_ in facts]
        ends = [ended_by(fact.statement, other.statement, certain=wording.certain(fact, other)) for other in against]
        invalid_at = earliest(fact.statement.said_invalid_at, *ends)
        found[fact.id] = replace(
            fact,
            conflicts=tuple(other.id for other in against),
            invalid_at=invalid_at,
            expired_at=None if invalid_at is None else fact.expired_at or now,
        )
    return found


# -- facts that only the forgotten kept apart


def _rejoined(
    facts: dict[str, KnownFact],
    wordings: list[Wording],
    knowledge: Knowledge,
    order: Mapping[str, int],
    now: datetime,
) -> tuple[dict[str, KnownFact], list[Wording]]:
    before = {fact.id: fact for fact in knowledge.facts}

    def age(fact: KnownFact) -> tuple[int, datetime, str]:
        return order.get(fact.origin, 0), fact.statement.reference_time, fact.id

    for ends in dict.fromkeys(_ends(fact) for fact in facts.values() if _revived(fact, before)):
        between = sorted((fact for fact in facts.values() if _ends(fact) == ends), key=age)
        for place, fact in enumerate(between):
            for other in between[place + 1 :]:
                if fact.id in facts and other.id in facts and _apart(facts, wordings, fact.id, other.id, before):
                    facts, wordings = _joined(facts, wordings, facts[fact.id], facts[other.id], order)
                    facts = _reckoned(facts, now)
    return facts, wordings


def _ends(fact: KnownFact) -> tuple[str, str]:
    return fact.subject_id, fact.object_id


def _apart(
    facts: Mapping[str, KnownFact],
    wordings: Sequence[Wording],
    first: str,
    second: str,
    before: Mapping[str, KnownFact],
) -> bool:
    """Whether the second would have repeated the first, had that been live, or between the same two, then."""
    fact, other = facts[first], facts[second]
    return (
        (_revived(fact, before) or _moved(other, before))
        and _may_join(fact, other.statement)
        and not _texts(fact, wordings).isdisjoint(_texts(other, wordings))
    )


def _revived(fact: KnownFact, before: Mapping[str, KnownFact]) -> bool:
    """Whether it lives longer than was known, or joins others: what was told apart from it may be the same."""
    ended = before[fact.id].invalid_at
    return _moved(fact, before) or (ended is not None and (fact.invalid_at is None or fact.invalid_at > ended))


def _moved(fact: KnownFact, before: Mapping[str, KnownFact]) -> bool:
    return _ends(fact) != _ends(before[fact.id])


def _texts(fact: KnownFact, wordings: Sequence[Wording]) -> set[str]:
    said = [fact.statement, *(one.statement for one in wordings if one.fact_id == fact.id)]
    return {wording.text_key(statement.text) for statement in said}


def _may_join(fact: KnownFact, statement: Statement) -> bool:
    return fact.live(holds_when_said(statement)) and statement.said_invalid_at in (
        None,
        fact.statement.said_invalid_at,
    )


def _joined(
    facts: Mapping[str, KnownFact],
    wordings: Sequence[Wording],
    fact: KnownFact,
    again: KnownFact,
    order: Mapping[str, int],
) -> tuple[dict[str, KnownFact], list[Wording]]:
    """``again`` becomes a wording of ``fact``, as do its own wordings."""
    text = wording.text_key(again.statement.text)
    id_ = derived_id("wording", again.origin, fact.id, text)
    own = (
        [Wording(id_, fact.id, again.origin, again.created_at, again.statement)] if again.origin != fact.origin else []
    )
    moved = [replace(one, fact_id=fact.id) if one.fact_id == again.id else one for one in wordings]
    said_by = sorted({*fact.episodes, *again.episodes}, key=lambda episode: order.get(episode, 0))
    left = {id_: _renamed(one, again.id, fact.id) for id_, one in facts.items() if id_ != again.id}
    against = tuple(dict.fromkeys(id_ for id_ in (*fact.conflicts, *again.conflicts) if id_ not in (fact.id, again.id)))
    left[fact.id] = replace(fact, episodes=tuple(said_by), conflicts=against)
    return left, [*moved, *own]


def _renamed(fact: KnownFact, old: str, new: str) -> KnownFact:
    if old not in fact.conflicts:
        return fact
    return replace(fact, conflicts=tuple(dict.fromkeys(new if id_ == old else id_ for id_ in fact.conflicts)))


# -- where


def _listing(
    episodes: Sequence[Episode],
    knowledge: Knowledge,
    facts: Mapping[str, KnownFact],
    wordings: Sequence[Wording],
) -> tuple[Episode, ...]:
    """The episodes with the facts of their lists that are left; joined ones under the id they are joined to."""
    gone = {fact.id for fact in knowledge.facts} - facts.keys()
    repeated: dict[str, list[str]] = defaultdict(list)
    for one in wordings:
        repeated[one.episode].append(one.fact_id)

    def left(episode: Episode) -> tuple[str, ...]:
        joined = repeated[episode.id] if gone.intersection(episode.fact_ids) else ()
        return tuple(dict.fromkeys([*(id_ for id_ in episode.fact_ids if id_ in facts), *joined]))

    return tuple(replace(episode, fact_ids=left(episode)) for episode in episodes)
