"""What wording alone makes certain."""

from __future__ import annotations

import pytest

from memory.ingestion import wording


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User is not allergic to nuts.", "User is allergic to nuts"),
        ("The user isn't allergic to any nuts anymore", "User is allergic to nuts"),
        ("User is no longer allergic to nuts", "User is allergic to nuts."),
        ("User hates sushi", "User loves sushi"),
        ("User does not like sushi", "User likes sushi"),
        ("User doesn’t have a dog", "User has a dog"),
        ("User has no dog", "User has a dog"),
        ("User can't eat gluten", "User can eat gluten"),
        ("El usuario no vive en Málaga", "El usuario vive en Málaga"),
        ("المستخدم لا يحب القهوة", "المستخدم يحب القهوة"),
    ],
)
def test_a_denial_is_one_whichever_comes_first(text: str, other: str) -> None:
    assert wording.denies(text, other)
    assert wording.denies(other, text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User is not allergic to nuts", "User is allergic to peanuts"),
        ("User is allergic to nuts", "User is allergic to nuts"),
        ("User does not hate sushi", "User likes sushi"),
        ("User has 2 dogs", "User does not have 3 dogs"),
        ("Not Bob", "Bob"),
    ],
)
def test_what_denies_nothing(text: str, other: str) -> None:
    assert not wording.denies(text, other)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User lives in York", "User lives in Leeds"),
        ("User moved back to Leeds", "User lives in York"),
        ("User has moved to York.", "User currently lives in Leeds"),
        ("User's email is a@x.com", "User's new email address is b@x.com"),
        ("User's favourite color is red.", "User's favorite color is blue"),
        ("User's name is Dana", "User is called Zoe"),
        ("User is 34 years old", "User is 35 years old"),
        ("User's phone number is +44 1", "User's mobile is +44 2"),
        ("Omar lives in York", "Omar lives in Leeds"),
    ],
)
def test_a_value_of_which_there_is_one_replaces_another(text: str, other: str) -> None:
    assert wording.replaces(text, other)
    assert wording.replaces(other, text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("User lives in Leeds, England", "User lives in Leeds"),
        ("User's name is Dana Smith", "User's name is Dana"),
        ("User's work email is a@x.com", "User's email is b@x.com"),
        ("User moved to the premium plan", "User lives in York"),
        ("User moved to Friday", "User lives in York"),
        ("User does not live in Leeds", "User lives in York"),
        ("User lived in Leeds", "User lives in York"),
        ("User will move to Leeds", "User lives in York"),
        ("User's brother's name is Omar", "User's name is Dana"),
        ("User likes tea", "User likes coffee"),
        ("User works at Acme", "User works at Globex"),
        ("User's appointment is on Friday", "User's appointment is on Monday"),
    ],
)
def test_what_replaces_nothing(text: str, other: str) -> None:
    assert not wording.replaces(text, other)
    assert not wording.replaces(other, text)


@pytest.mark.parametrize(
    "turn",
    [
        "Remember when I said I was allergic to nuts? Silly.",
        "Do you recall how I told you I was allergic to nuts? Ha.",
        "When I said I'm allergic to nuts I was wrong. Anyway.",
        "I said I was allergic to nuts.",
        "I was just joking about being allergic to nuts!",
    ],
)
@pytest.mark.case("L30")
def test_L30_what_is_only_recalled_says_nothing(turn: str) -> None:
    assert wording.recalled("User is allergic to nuts", [turn])


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("User lives in York", ["Remember when I said I was allergic to nuts? Well, I live in York now."]),
        ("User is allergic to nuts", ["As I told you, I'm allergic to nuts."]),
        ("User's order is 1234", ["I told you my order is 1234."]),
        ("User is allergic to nuts", ["Remember when I said I was allergic to nuts?", "I am allergic to nuts"]),
        ("User is allergic to nuts", []),
        ("User is allergic to nuts", [""]),
    ],
)
def test_what_is_said_again_counts(text: str, turns: list[str]) -> None:
    assert not wording.recalled(text, turns)


def test_a_name_is_no_person() -> None:
    assert wording.names_its_subject("User's name is Dana", "IS")
    assert wording.names_its_subject("User heißt Dana", "HAS_NAME")
    assert not wording.names_its_subject("User's sister is Dana", "HAS_SISTER")
