"""Forgetting: what is known afterwards is what would be known had the episodes never been ingested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.ingestion.extraction import ExtractedFact
from memory.ingestion.forgetting import forgotten
from memory.ingestion.resolution import EntityVerdict, FactVerdict, Question, Verdict
from memory.knowledge import Knowledge
from tests.support.talk import NOON, Memory, extracted, fact, judge, turn

LATER = NOON + timedelta(days=100)
# Ways to say one thing of each topic; an LLM knows that they are the same, and that values of one topic exclude each
# other. "home" is a value of which wording alone knows that there is one.
_PHRASES = {
    "works": ("User works at {}", "User is employed by {}", "{} is the User's employer"),
    "home": ("User lives in {}", "User moved to {}"),
    "likes": ("User likes {}", "User is fond of {}"),
    "denies": ("User does not like {}",),
}
_VALUES = {
    "works": ("Acme Alpha", "Globex Beta"),
    "home": ("Leeds", "York", "Bath"),
    "likes": ("tea", "jam"),
    "denies": ("tea", "jam"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What one turn says. ``canary``: a word of this session's own in it."""

    topic: str
    value: str
    phrase: int
    canary: bool

    def extracted(self, session: int, place: int) -> ExtractedFact:
        # By its longer name in every third session: names within one call are not compared with each other.
        name = f"{self.value} Ltd" if session % 3 == 0 and self.topic == "works" else self.value
        phrases = _PHRASES[self.topic]
        text = phrases[self.phrase % len(phrases)].format(name)
        if self.canary:
            text = f"{text}, said canary{session}"
        return fact("user", self.topic.upper(), name, text, turns=(place,))


def meaning(text: str) -> tuple[str, str, str]:
    """What a text of ``Claim`` says: topic, value, canary."""
    plain, _, canary = text.partition(", said ")
    for topic, phrases in _PHRASES.items():
        for phrase in phrases:
            before, after = phrase.split("{}")
            if plain.startswith(before) and plain.endswith(after):
                value = plain[len(before) : len(plain) - len(after)].removesuffix(" Ltd")
                if value in _VALUES[topic]:
                    return topic, value, canary
    raise AssertionError(text)


def at_odds(one: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    if {one[0], other[0]} == {"likes", "denies"}:
        return one[1] == other[1]
    return one[0] == other[0] and one[0] in ("works", "home") and one[1] != other[1]


def knowing(question: Question) -> Verdict:
    """An LLM that makes no mistakes: it says the same of two texts whenever it is asked."""
    texts = {one.id: meaning(one.text) for one in question.known} | {one.id: meaning(one.text) for one in question.new}
    places = {one.id: place for place, one in enumerate(question.new)}
    facts = []
    for new in question.new:
        same = [id_ for id_ in new.compare_with if texts[id_] == texts[new.id]]
        same = [id_ for id_ in same if places.get(id_, -1) < places[new.id]]
        against = tuple(id_ for id_ in new.compare_with if at_odds(texts[id_], texts[new.id]))
        facts.append(FactVerdict(new.id, same[0] if same else None, against))
    names = {one.id: one.name.removesuffix(" Ltd") for one in question.candidates}
    entities = [
        EntityVerdict(
            doubt.id, next((id_ for id_ in doubt.candidates if names[id_] == doubt.name.removesuffix(" Ltd")), None)
        )
        for doubt in question.entities
    ]
    return Verdict(tuple(facts), tuple(entities))


claims = st.sampled_from(sorted(_PHRASES)).flatmap(
    lambda topic: st.builds(
        Claim,
        st.just(topic),
        st.sampled_from(_VALUES[topic]),
        st.integers(0, 2),
        st.integers(0, 5).map(lambda number: number == 0),
    )
)
histories = st.lists(st.lists(claims, max_size=4), min_size=1, max_size=6)


def heard(history: Sequence[Sequence[Claim]], *, without: frozenset[int] = frozenset()) -> Memory:
    memory = Memory()
    for session, said in enumerate(history):
        if session in without:
            continue
        turns = [turn(f"…{place}", day=session, minute=place) for place in range(len(said))] or [
            turn("hi", day=session)
        ]
        facts = [one.extracted(session, place) for place, one in enumerate(said)]
        memory.hear(f"s{session}", turns, extracted(*facts), knowing)
    return memory


Told = tuple[tuple[str, str, str], datetime, datetime | None]


def live(knowledge: Knowledge) -> set[Told]:
    """What holds, from when until when. Of a fact that was put in several ways either way is right."""
    return {
        (meaning(one.statement.text), one.statement.valid_at, one.invalid_at)
        for one in knowledge.facts
        if one.live(LATER)
    }


def names(knowledge: Knowledge) -> set[str]:
    return {one.name for one in knowledge.entities}


def whole(knowledge: Knowledge) -> None:
    """Everything that is referred to is there, and nothing is left that nobody said."""
    episodes = {one.id for one in knowledge.episodes}
    entities = {one.id for one in knowledge.entities}
    facts = {one.id for one in knowledge.facts}
    for known in knowledge.facts:
        assert {known.subject_id, known.object_id} <= entities
        assert known.origin in known.episodes
        assert set(known.episodes) <= episodes
        assert set(known.conflicts) <= facts
        assert (known.invalid_at is None) == (known.expired_at is None)
    for wording in knowledge.wordings:
        assert wording.fact_id in facts
        assert wording.episode in episodes
    assert {one.entity_id for one in knowledge.mentions} == entities
    assert {one.episode for one in knowledge.mentions} <= episodes
    assert {id_ for one in knowledge.episodes for id_ in one.fact_ids} <= facts
    assert len({one.key for one in knowledge.entities}) == len(entities)


@settings(max_examples=300)
@given(histories, st.data())
@pytest.mark.promise("P-erased")
def test_P_erased_forgetting_is_never_having_heard(history: list[list[Claim]], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(history) - 1), min_size=1))
    memory = heard(history)
    left = forgotten(memory.knowledge, {f"ep-s{session}-0" for session in chosen}, LATER)
    never = heard(history, without=frozenset(chosen)).knowledge
    whole(left)
    # Said again in other words after it had ended, a fact is a new one; that the LLM would have called it the same is
    # not known. So what only the forgotten had ended may be there twice, but nothing else and with no other dates.
    assert live(left) >= live(never)
    assert {told[0] for told in live(left)} == {told[0] for told in live(never)}
    assert names(left) == names(never)
    assert [one.id for one in left.episodes] == [one.id for one in never.episodes]
    told = repr(left)
    assert not [session for session in chosen if f"canary{session}" in told]


def test_P_erased_what_a_repeated_denial_contradicts_is_not_revived() -> None:
    """The repetition was no question for the LLM, for what it repeats ended only within the same call."""
    likes, denies = Claim("likes", "jam", 0, canary=True), Claim("denies", "jam", 0, canary=False)
    left = forgotten(heard([[], [likes], [denies], [likes, denies]]).knowledge, {"ep-s2-0"}, LATER)
    assert {told[0] for told in live(left)} == {("denies", "jam", "")}


def test_a_move_that_is_forgotten_never_happened() -> None:
    memory = Memory()
    for day, place in enumerate(("Leeds", "York", "Leeds")):
        memory.hear(
            f"s{day}",
            [turn("…", day=day)],
            extracted(fact("user", "LIVES_IN", place, f"User lives in {place}")),
        )
    left = forgotten(memory.knowledge, {"ep-s1-0"}, LATER)
    (leeds,) = left.facts
    assert (leeds.statement.valid_at, leeds.invalid_at, leeds.expired_at, leeds.conflicts) == (NOON, None, None, ())
    assert leeds.episodes == ("ep-s0-0", "ep-s2-0")
    assert [one.episode for one in left.wordings] == ["ep-s2-0"]
    assert [one.fact_ids for one in left.episodes] == [(leeds.id,), (leeds.id,)]
    assert {one.name for one in left.entities} == {"User", "Leeds"}


def test_what_others_said_too_stays_in_their_words() -> None:
    memory = Memory()
    says = judge(same=[("User likes tea", "User is fond of tea")])
    memory.hear("s0", [turn("…")], extracted(fact("user", "LIKES", "tea", "User likes tea")))
    memory.hear("s1", [turn("…", day=1)], extracted(fact("user", "LIKES", "tea", "User is fond of tea")), says)
    left = forgotten(memory.knowledge, {"ep-s0-0"}, LATER)
    (tea,) = left.facts
    assert (tea.statement.text, tea.origin, tea.episodes) == ("User is fond of tea", "ep-s1-0", ("ep-s1-0",))
    assert tea.statement.valid_at == NOON + timedelta(days=1)
    assert left.wordings == ()


def acme(memory: Memory, day: int, name: str, known_as: str = "") -> None:
    says = judge(who={name: known_as} if known_as else None)
    memory.hear(f"s{day}", [turn("…", day=day)], extracted(fact("user", "KNOWS", name, f"User knows {name}")), says)


def test_an_entity_loses_the_name_that_is_forgotten() -> None:
    memory = Memory()
    acme(memory, 0, "Acme Widgets Secret")
    acme(memory, 1, "Acme Widgets", known_as="Acme Widgets Secret")
    acme(memory, 2, "Acme Widgets Secret")
    before = memory.knowledge.entities
    left = forgotten(memory.knowledge, {"ep-s0-0", "ep-s2-0"}, LATER)
    (entity,) = (one for one in left.entities if one.key != "user")
    assert (entity.name, entity.key) == ("Acme Widgets", "acme widgets")
    assert entity.vector
    assert "Secret" in repr(before)
    assert "Secret" not in repr(left)
    again = forgotten(memory.knowledge, {"ep-s0-0"}, LATER)
    last = forgotten(again, {"ep-s1-0"}, LATER)
    (entity,) = (one for one in last.entities if one.key != "user")
    assert entity.name == "Acme Widgets Secret"
    assert entity.vector == next(one for one in before if one.name == entity.name).vector


def test_entities_that_have_one_name_then_are_one() -> None:
    memory = Memory()
    acme(memory, 0, "Acme Widgets Ltd")
    acme(memory, 1, "Acme Widgets", known_as="Acme Widgets Ltd")
    acme(memory, 2, "Acme Widgets")  # the LLM says nothing: somebody new
    assert len(memory.knowledge.entities) == 3
    left = forgotten(memory.knowledge, {"ep-s0-0"}, LATER)
    assert sorted(one.name for one in left.entities) == ["Acme Widgets", "User"]
    (known,) = left.facts
    assert known.episodes == ("ep-s1-0", "ep-s2-0")
    whole(left)


def test_forgetting_what_is_unknown_changes_nothing_and_all_leaves_nothing() -> None:
    memory = Memory()
    acme(memory, 0, "Acme")
    assert forgotten(memory.knowledge, {"ep-else"}, LATER) is memory.knowledge
    assert forgotten(memory.knowledge, {"ep-s0-0"}, LATER) == Knowledge()
