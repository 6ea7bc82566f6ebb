"""What Whisper writes of sentences that break off, and of those that are over."""

from __future__ import annotations

import pytest

from agent.local.unfinished import is_unfinished


@pytest.mark.parametrize(
    "text",
    [
        "I would like to be",  # all of these are what it wrote of a voice that stopped there
        "Could you send the...",
        "My appointment is on the th-",
        "I have been waiting for",
        "When I called last week...",
        "Because of the rain, we...",
        "My number is 555.",
        "The code on the box is 4.7.",
        "555-123",
        "1 2 3.",
        "I am calling about my.",
        "We need a room and",
        "I bought milk, bread,",
    ],
)
def test_a_sentence_that_breaks_off_is_unfinished(text: str) -> None:
    assert is_unfinished(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "Yes.",
        "I would love to.",
        "That is what it is.",
        "Where are you from?",
        "Is your number 555?",
        "What is it for?",
        "Stop!",
        'She said "no."',
        "It costs $50.",
        "My train leaves at 9.",
        "I was born in 1984.",
        "My code word is marmalade.",
        "My number has changed.",
    ],
)
def test_a_sentence_that_is_over_is_not(text: str) -> None:
    assert not is_unfinished(text)
