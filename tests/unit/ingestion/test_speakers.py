"""Who has the phone (L05)."""

from __future__ import annotations

import pytest

from memory.ingestion.speakers import spoken_by_others
from tests.support.heard import turns


@pytest.mark.case("L05")
@pytest.mark.parametrize(
    "line",
    [
        "Hi, this is Zoe now, I take no medicines.",
        "Zoe here now.",
        "You're speaking to Zoe now.",
        "I'm his wife, he can't talk.",
        "Hier ist jetzt Zoe.",
        "Ich bin seine Frau.",
        "Ahora habla Zoe.",
        "Soy su esposa.",
        "C'est Zoe maintenant.",
        "Je suis sa femme.",
    ],
)
def test_L05_somebody_takes_over_until_the_user_is_back(line: str) -> None:
    said = turns(
        "u: I take warfarin.", "a: Ok.", f"u: {line}", "u: And I love tea.", "a: Ok.", "u: It's me again.", "u: I"
    )
    assert spoken_by_others(said) == {2, 3}


@pytest.mark.case("L05")
@pytest.mark.parametrize(
    "line",
    [
        "Let me put you on to my wife.",
        "I'll hand you over to my daughter.",
        "You'd better talk to my husband.",
        "Ich gebe Ihnen mal meine Frau.",
        "Le paso con mi madre.",
        "Je vous passe mon mari.",
    ],
)
def test_L05_who_is_announced_speaks_next(line: str) -> None:
    assert spoken_by_others(turns(f"u: {line}", "a: Thanks.", "u: Hello, I love tea.")) == {2}


def test_another_name_than_the_users_is_another_person_once_the_user_has_spoken() -> None:
    said = turns(
        "u: My name is Dana.", "a: Hi.", "u: This is Zoe, I love tea.", "a: Hi.", "u: This is Dana, back again."
    )
    assert spoken_by_others(said) == {2}
    assert spoken_by_others(turns("u: Hello.", "u: This is Dana speaking."), "Dana Scott") == frozenset()
    assert spoken_by_others(turns("u: This is Zoe."), "+44 20 7946 0000") == frozenset()


@pytest.mark.parametrize(
    "line",
    [
        "This is fine now.",
        "This is Dana.",
        "It is working now, thanks.",
        "I gave the parcel to my brother.",
        "I want to talk to my bank about it, later.",
        "My wife is called Zoe.",
    ],
)
def test_most_sentences_hand_nothing_over(line: str) -> None:
    assert spoken_by_others(turns(f"u: {line}", "a: Ok.", "u: I love tea.")) == frozenset()


def test_only_turns_with_the_users_label_count() -> None:
    assert spoken_by_others(turns("a: This is Zoe now.", "o: This is Jo now.", "u: I love tea.")) == frozenset()
