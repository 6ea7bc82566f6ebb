"""A call of 20 turns with seven facts, four of which repeat or contradict old ones, for a user of 200 known facts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from memory.ingestion.extraction import ExtractedFact
from memory.knowledge import USER_ENTITY_KEY
from tests.support.talk import NOON, Memory, extracted, fact, judge, turn

KNOWN = [
    fact("user", "LIVES_IN", "Leeds", "User lives in Leeds"),
    fact("user", "WORKS_AT", "Acme", "User works at Acme"),
    fact("user", "ALLERGIC_TO", "nuts", "User is allergic to nuts"),
    fact("user", "HAS_EMAIL", "dana@old.example", "User's email is dana@old.example"),
    *(fact("user", "OWNS", f"book {number}", f"User owns book {number}") for number in range(195)),
    fact("Omar", "WORKS_AS", "pilot", "Omar works as a pilot"),
]
SAID = [
    "Hi, it's me.",
    "I live in York these days.",
    "As you know I work at Acme.",
    "I'm not allergic to nuts any more.",
    "My mail is dana@mid.example, no wait,",
    "it's dana@new.example.",
    "My brother Omar flies planes.",
    "I'd like window seats.",
    "We bought a dog, Rex.",
    "That's all.",
]


def turn_of(place: int) -> int:
    return 2 * place  # the agent answers each


NEW: list[ExtractedFact] = [
    fact("user", "LIVES_IN", "York", "User lives in York", turns=[turn_of(1)]),
    fact("user", "WORKS_AT", "Acme", "User works at Acme", turns=[turn_of(2)]),
    fact("user", "ALLERGIC_TO", "nuts", "User is not allergic to nuts", turns=[turn_of(3)]),
    fact("user", "HAS_EMAIL", "dana@mid.example", "User's email is dana@mid.example", turns=[turn_of(4)]),
    fact("user", "HAS_EMAIL", "dana@new.example", "User's email is dana@new.example", turns=[turn_of(5)]),
    fact("Omar", "WORKS_AS", "pilot", "Omar flies planes as a pilot", turns=[turn_of(6)]),
    fact("user", "PREFERS", "window seats", "User prefers window seats", turns=[turn_of(7)]),
]


def a_call(memory: Memory) -> None:
    turns = []
    for place, text in enumerate(SAID):
        turns += [turn(text, day=30, minute=place), turn("I see.", day=30, minute=place + 0.5, speaker="assistant")]
    assert len(turns) == 20
    says = judge(same=[("Omar works as a pilot", "Omar flies planes as a pilot")])
    memory.hear("call", turns, extracted(*NEW), says)


@pytest.fixture(scope="module")
def memory() -> Memory:
    grown = Memory()
    for start in range(0, len(KNOWN), 65):
        facts = KNOWN[start : start + 65]
        grown.hear(f"s{start}", [turn("…", day=start // 65)], extracted(*facts))
    back = [turn("I moved to Bath", day=9), turn("I moved back to Leeds", day=10)]
    for number, (one, place) in enumerate(zip(back, ("Bath", "Leeds"), strict=True)):
        said = fact("user", "LIVES_IN", place, f"User moved {'back ' * number}to {place}")
        grown.hear(f"b{number}", [one], extracted(said))
    assert len(grown.knowledge.facts) == 202
    grown.calls = 0
    a_call(grown)
    return grown


def test_it_takes_one_question_besides_the_extraction(memory: Memory) -> None:
    assert memory.calls == 1


def test_who_moved_back_lived_there_until_the_move(memory: Memory) -> None:
    homes = sorted(
        (one.statement.valid_at - NOON, one.invalid_at - NOON if one.invalid_at else None, one.statement.text)
        for one in memory.knowledge.facts
        if one.statement.relation == "LIVES_IN"
    )
    moved = timedelta(days=30, minutes=1)
    assert homes == [
        (timedelta(0), timedelta(days=9), "User lives in Leeds"),
        (timedelta(days=9), timedelta(days=10), "User moved to Bath"),
        (timedelta(days=10), moved, "User moved back to Leeds"),
        (moved, None, "User lives in York"),
    ]


def test_of_two_values_in_the_call_the_last_is_left(memory: Memory) -> None:
    emails = [text for text in memory.live() if "email" in text]
    assert emails == ["User's email is dana@new.example"]


def test_what_was_denied_is_over_and_what_was_repeated_is_there_once(memory: Memory) -> None:
    live = memory.live()
    assert "User is not allergic to nuts" in live
    assert "User is allergic to nuts" not in live
    assert live["User works at Acme"].episodes == ("ep-s0-0", "ep-call-0")
    assert live["Omar works as a pilot"].episodes == ("ep-s195-0", "ep-call-0")
    assert "Omar flies planes as a pilot" not in live
    assert {one.statement.text for one in memory.knowledge.wordings} >= {"Omar flies planes as a pilot"}


def test_new_facts_have_their_turns_and_nothing_else_changed(memory: Memory) -> None:
    patch = memory.patches[-1]
    assert [one.statement.text for one in patch.facts] == [
        "User lives in York",
        "User is not allergic to nuts",
        "User's email is dana@mid.example",
        "User's email is dana@new.example",
        "User prefers window seats",
    ]
    assert [one.statement.turns for one in patch.facts] == [(f"t30-{n}-user",) for n in (1, 3, 4, 5, 7)]
    ended = {one.statement.text for one in patch.changed if one.invalid_at is not None}
    assert {"User moved back to Leeds", "User is allergic to nuts", "User's email is dana@old.example"} <= ended
    assert len(memory.live()) == 200 - 3 + 4  # of the five new ones the first address didn't last
    users = [one for one in memory.knowledge.entities if one.key == USER_ENTITY_KEY]
    assert len(users) == 1
