"""Code around the extractor: what of an LLM's extraction counts as a fact, whatever it was told.

A fact survives if the user said so themselves: in a turn of theirs that is no noise, as a statement and not as a
question, a supposition or a joke, with the same names, numbers and negation, about the same person. Everything here is
about dropping: nothing is added or reworded, and guarding twice changes nothing more. Pure.
Above: the pipeline, the evaluation. Below: assertions, extraction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from memory.ingestion import lexicon
from memory.ingestion.assertions import Clause, Joined, Sources, Vocabulary, numbers_of
from memory.ingestion.extraction import ExtractedFact, Extraction, NamedEntity
from memory.ingestion.grounding import Wording, temporal
from memory.ingestion.spoken_numbers import numbers
from memory.knowledge import ANY_KIND, USER_ENTITY_KEY, Category, TurnPart, entity_kind, name_key
from memory.limits import ENTITY_NAME_CHARS_MAX, FACT_CHARS_MAX, FACTS_PER_CHUNK_MAX

PAST_MAX = timedelta(days=366 * 120)  # a life
FUTURE_MAX = timedelta(days=366 * 5)
ENDS_MAX = timedelta(days=366 * 50)
BRIEF_WORDS = 5  # of an answer that says little without its question
RELATION_CHARS_MAX = 60

_THE_USER = frozenset(("user", "the user", "caller", "the caller", "customer", "client", "speaker", "me", "i", "self"))
_THE_AGENT = frozenset(("assistant", "the assistant", "agent", "the agent", "ai", "bot"))
_STATED_ONLY = frozenset((Category.USER_INFORMATION,))  # a request says nothing about who somebody is
_ABOUT_PEOPLE = frozenset((Category.USER_INFORMATION, Category.PREFERENCES, Category.DECISIONS))


@dataclass(frozen=True, slots=True)
class Guarded:
    """What is left, how many facts were dropped for which reason, and how many lost a time that can't be."""

    extraction: Extraction
    dropped: Counter[str]
    undated: int = 0


def guarded(
    extraction: Extraction, turns: Sequence[TurnPart], *, reference_time: datetime, user_name: str = ""
) -> Guarded:
    """``extraction`` without what the user did not say. ``turns`` are those it was made from, in the same order.

    In what is left: ``turns`` are places of the user's own turns, ascending; ``speaker`` is the user; names are
    trimmed, the user's is ``USER_ENTITY_KEY``; every other subject and object is among ``entities``, nothing else is.
    """
    guard = _Guard(Sources(turns, user_name), reference_time, user_name)
    dropped: Counter[str] = Counter()
    undated = 0
    kept: dict[tuple[str, str, str], ExtractedFact] = {}
    for raw in extraction.facts:
        fact = guard.tidied(raw)
        reason = guard.fault(fact)
        if reason is None and len(kept) >= FACTS_PER_CHUNK_MAX:
            reason = "too many"
        if reason is not None:
            dropped[reason] += 1
            continue
        dated = guard.dated(fact)
        undated += (dated.valid_at, dated.invalid_at) != (fact.valid_at, fact.invalid_at)
        key = (name_key(dated.subject), name_key(dated.object), name_key(dated.text))
        known = kept.get(key)
        kept[key] = dated if known is None else replace(known, turns=tuple(sorted({*known.turns, *dated.turns})))
    facts = tuple(kept.values())
    return Guarded(Extraction(_named(facts, extraction.entities), facts), dropped, undated)


def _named(facts: Iterable[ExtractedFact], entities: Iterable[NamedEntity]) -> tuple[NamedEntity, ...]:
    kinds = {name_key(entity.name): entity_kind(entity.kind) for entity in entities}
    names = {name_key(name): name for fact in facts for name in (fact.subject, fact.object) if name != USER_ENTITY_KEY}
    return tuple(NamedEntity(name, kinds.get(key, ANY_KIND)) for key, name in names.items())


class _Guard:
    def __init__(self, sources: Sources, reference_time: datetime, user_name: str) -> None:
        self._sources = sources
        self._now = reference_time
        self._user_name = user_name

    def tidied(self, fact: ExtractedFact) -> ExtractedFact:
        """Trimmed, with the user by their key, resting on the user's own turns alone."""
        relation = re.sub(r"\W+", "_", fact.relation.strip()).strip("_").upper()
        subject, thing = _trimmed(fact.subject), _trimmed(fact.object)
        return replace(
            fact,
            subject=USER_ENTITY_KEY if self._is_user(subject) else subject,
            object=USER_ENTITY_KEY if name_key(thing) in _THE_USER else thing,
            relation=relation,
            text=_trimmed(fact.text),
            speaker="user",
            turns=tuple(sorted(set(fact.turns) & self._sources.places)),
        )

    def _is_user(self, name: str) -> bool:
        key = name_key(name)
        return key in _THE_USER or (bool(key) and key == name_key(self._user_name))

    def fault(self, fact: ExtractedFact) -> str | None:
        """Why a tidied fact doesn't count; ``None``: it does."""
        if not fact.turns:
            return "not said by the user"
        if (reason := _form_fault(fact)) is not None:
            return reason
        told = self._sources.stated(fact.turns)
        clauses = [clause for clause in told if not (clause.request and fact.category in _STATED_ONLY)]
        if not clauses:
            return "not stated"
        wording = Wording(fact)
        best = wording.closest(clauses)
        if not best:
            return "not grounded"
        return self._ground_fault(fact, wording, told) or _meaning_fault(fact, wording, best)

    def _ground_fault(self, fact: ExtractedFact, wording: Wording, clauses: list[Clause]) -> str | None:
        earlier = [clause for place in fact.turns for clause in self._sources.before(place)]
        said = Joined([*(clause.vocabulary for clause in (*clauses, *earlier)), Vocabulary(self._user_name)])
        asked = Vocabulary(" . ".join(self._sources.answered(place) for place in fact.turns))
        counted = [numbers_of([*clauses, *earlier])]
        if wording.is_about(_vocabulary(clauses)):
            # What the user speaks of may be the order whose number the agent has just told them.
            counted.append(numbers(" . ".join(self._sources.answered(place) for place in fact.turns)))
        if not wording.numbers_in(counted):
            return "number"
        if not wording.dates_plausible(self._now, clauses, counted[0]):
            return "date"
        if not wording.names_in(said, clauses):
            return "name"
        brief = sum(len(clause.text.split()) for clause in clauses if not clause.confirmed) <= BRIEF_WORDS
        if not wording.grounded(said, asked, brief=brief):
            return "not grounded"
        return "somebody else's" if self._is_mixed_up(fact, wording, clauses, earlier) else None

    def _is_mixed_up(self, fact: ExtractedFact, wording: Wording, clauses: list[Clause], earlier: list[Clause]) -> bool:
        """Whether a fact of the user's has words that were said of somebody else alone."""
        if fact.subject != USER_ENTITY_KEY:
            return False
        mine = [_of_user(fact, wording, clause) for clause in clauses]
        own = [clause for clause, is_mine in zip(clauses, mine, strict=True) if is_mine]
        others = [clause for clause, is_mine in zip(clauses, mine, strict=True) if not is_mine]
        return wording.owed_to(_vocabulary(others), _vocabulary([*own, *earlier]))

    def dated(self, fact: ExtractedFact) -> ExtractedFact:
        """Without times that nobody said or that can't be."""
        tells = temporal(self._sources.stated(fact.turns))
        valid_at, invalid_at = fact.valid_at, fact.invalid_at
        if valid_at is not None and not (tells and _within(valid_at, self._now, PAST_MAX, FUTURE_MAX)):
            valid_at = None
        if invalid_at is not None and not (tells and _within(invalid_at, self._now, PAST_MAX, ENDS_MAX)):
            invalid_at = None
        if invalid_at is not None and invalid_at <= (valid_at or invalid_at - timedelta(1)):
            valid_at = invalid_at = None
        return replace(fact, valid_at=valid_at, invalid_at=invalid_at)


def _vocabulary(clauses: Iterable[Clause]) -> Joined:
    return Joined(clause.vocabulary for clause in clauses)


def _within(moment: datetime, now: datetime, past: timedelta, future: timedelta) -> bool:
    return now - past <= moment <= now + future


def _trimmed(text: str) -> str:
    return " ".join(text.split())


def _form_fault(fact: ExtractedFact) -> str | None:
    """What is wrong with a fact by itself."""
    names = (fact.subject, fact.object)
    if not fact.text or not fact.relation or any(name_key(name) in lexicon.EMPTY_NAMES for name in names):
        return "empty"
    if not all(re.search(r"\w", name) for name in (*names, fact.text)):
        return "empty"
    if len(fact.text) > FACT_CHARS_MAX or any(len(name) > ENTITY_NAME_CHARS_MAX for name in names):
        return "too long"
    if len(fact.relation) > RELATION_CHARS_MAX:
        return "too long"
    if name_key(fact.subject) == name_key(fact.object):
        return "about itself"
    if name_key(fact.subject) in _THE_AGENT:
        return "about the agent"
    if lexicon.MASKS.search(f"{fact.object} {fact.text}"):
        return "secret"
    return None


def _meaning_fault(fact: ExtractedFact, wording: Wording, best: list[Clause]) -> str | None:
    """Whether it says the opposite of what was said, or of somebody else."""
    denied = wording.denied
    if not denied and all(clause.negated for clause in best) and fact.category is not Category.ISSUES:
        return "negation"
    if denied and not any(clause.negated or lexicon.ENDINGS.search(clause.folded) for clause in best):
        return "negation"
    if fact.subject == USER_ENTITY_KEY:
        return None if any(_of_user(fact, wording, clause) for clause in best) else "somebody else's"
    return None if any(_of_other(wording, clause) for clause in best) else "somebody else's"


def _of_user(fact: ExtractedFact, wording: Wording, clause: Clause) -> bool:
    """Whether a clause may say something of the user: "I …", "my …", or of nobody else."""
    kin = lexicon.KIN_SUBJECT.search(clause.folded)
    if kin is not None:
        relative = kin["kin"] or kin["arabic"]
        return wording.mentions(relative) or wording.mentions_name_after(relative, clause)
    if clause.first_person:
        return True
    if fact.category in _ABOUT_PEOPLE and lexicon.THIRD_PERSON.search(clause.folded):
        return wording.mentions_somebody
    name = lexicon.NAME_SUBJECT.search(clause.text)
    if name is not None and name["name"] not in lexicon.NO_NAMES:
        return wording.mentions(name["name"])
    return True


def _of_other(wording: Wording, clause: Clause) -> bool:
    """Whether a clause may say something of somebody or something else: named in it, or "he", or not "I"."""
    if wording.subject_in(clause.vocabulary):
        return True
    return not clause.confirmed and lexicon.FIRST_SUBJECT.search(clause.folded) is None
