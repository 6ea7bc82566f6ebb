"""The demo's criterion: when an answer shows that something was remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.verdict import Outcome, Verdict, enough, fact_words, judge

SAID = "I am allergic to peanuts, so please keep them off my order."
ASKED = "Which food could make me sick?"
BLOCK = f"## Memory Context\n- (today, user) {SAID}"


def verdict(
    *, said: str = SAID, understood: str = SAID, asked: str = ASKED, block: str = BLOCK, answer: str = ""
) -> Verdict:
    return judge(said=said, understood=understood, asked=asked, block=block, answer=answer)


@pytest.mark.parametrize(
    "answer",
    [
        f'You told me: "{SAID}"',
        "Peanuts: you said that you are allergic to them.",
        "Your allergy to PEANUTS, I'd say.",
    ],
)
def test_an_answer_with_the_fact_is_remembered(answer: str) -> None:
    found = verdict(answer=answer)
    assert found.ok
    assert "peanuts" in found.found


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({"answer": "I don't know anything about that."}, "not_answered"),
        ({"answer": ASKED}, "not_answered"),
        ({"answer": ""}, "not_answered"),
        ({"answer": "Peanuts make many allergic people sick.", "block": ""}, "not_recalled"),
        ({"answer": "Peanuts, you are allergic.", "block": "- I live in Lyon."}, "not_recalled"),
        ({"understood": "", "answer": SAID}, "nothing_stored"),
        ({"understood": "What could make me sick?", "answer": SAID}, "misheard"),
    ],
)
def test_what_is_not_remembered_is_told_apart(changed: dict[str, str], outcome: Outcome) -> None:
    found = verdict(**changed)
    assert found.outcome == outcome
    assert not found.ok


def test_a_card_number_is_masked_rather_than_misheard() -> None:
    said, masked = "My card number is 4111 1111 1111 1111.", "My card number is [card number]"
    found = verdict(said=said, understood=masked, asked="What is my card number?", block=masked, answer=masked)
    assert (found.outcome, found.lost) == ("masked", ())
    assert "never stored" in found.reason
    paid = verdict(said=said, understood=masked, asked="How do I pay?", block=masked, answer=masked)
    assert (paid.outcome, paid.lost) == ("remembered", ())


def test_what_the_listener_made_something_else_of_is_misheard() -> None:
    said, heard = "Ich habe einen Hund namens Bello.", "It can't keep Ein and Han namans bellow."
    found = verdict(said=said, understood=heard, asked="Wie heißt mein Hund?", block="", answer="I don't know.")
    assert found.outcome == "misheard"
    assert "English only" in found.reason


def test_the_memory_is_measured_by_what_was_understood() -> None:
    heard = "I am allergic to pea notes, so please keep them off my order."
    found = verdict(understood=heard, block=f"- {heard}", answer=f"You said: {heard}")
    assert found.ok
    assert found.lost == ("peanuts",)


def test_a_number_that_is_written_in_digits_was_understood() -> None:
    said, heard = "My car is from nineteen ninety eight.", "My car is from 1998."
    assert judge(said=said, understood=heard, asked="How old is it?", block=heard, answer=heard).lost == ()
    assert judge(said=said, understood="My car.", asked="?", block="", answer="").lost == (
        "nineteen",
        "ninety",
        "eight",
    )


def test_words_of_the_question_show_nothing() -> None:
    asked = "Am I allergic to peanuts?"
    assert tuple(fact_words(SAID, asked).values()) == ("keep", "order")
    assert verdict(asked=asked, answer="Yes, you are allergic to peanuts.").outcome == "not_answered"


def test_other_scripts_count_as_words() -> None:
    said = "أحمد لديه حساسية الفول السوداني"
    found = judge(said=said, understood=said, asked="ماذا يأكل؟", block=said, answer="حساسية من الفول السوداني")
    assert found.ok


@pytest.mark.parametrize(
    ("count", "needed"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2), (9, 3), (30, 10)]
)
def test_enough_grows_with_the_fact(count: int, needed: int) -> None:
    assert enough(count) == needed


@pytest.mark.parametrize("outcome", ["remembered", "nothing_stored", "misheard", "not_recalled", "not_answered"])
def test_every_outcome_has_a_reason(outcome: Outcome) -> None:
    assert len(Verdict(outcome, ("peanuts",), 1, ("peanuts",), ()).reason) > 20


@given(said=st.text(max_size=80), asked=st.text(max_size=80), answer=st.text(max_size=80))
def test_repeating_only_the_question_never_passes(said: str, asked: str, answer: str) -> None:
    assert not judge(said=said, understood=said, asked=asked, block=said, answer=asked).ok
    found = judge(said=said, understood=said, asked=asked, block=said, answer=answer)
    assert found.ok == (found.outcome == "remembered")
    assert set(found.found) <= set(found.fact)
