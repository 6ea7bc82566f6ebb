"""Which words were heard by a moment of the audio: against a voice whose true word times are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.spoken import STEP_S, Loudness, Piece, Spoken, heard, seconds_per_letter, split
from tests.support.voice import RATE, SpokenWord, samples_of, spoken_words

pytestmark = pytest.mark.promise("P-heard")

TEXTS = [
    "Your refund of forty euros is approved, and I have also moved you to the Gold plan.",
    "Sure. I can help you with that! Could you tell me the number of your order, please?",
    "Okay.",
    "A cat is on a mat. I am in it. So it is as it is, if I may say so.",
    "Unfortunately, internationalization of telecommunications infrastructure necessitates responsibilities.",
    "Well, let me think about it for a moment. Hmm, I believe the best option would be the family plan, because it "
    "covers up to five people and costs less than what you pay today; would you like to hear more about it?",
]


def sound_of(words: list[SpokenWord]) -> Any:
    loudness = Loudness()
    frame = samples_of(words)
    samples = np.frombuffer(frame.data, np.int16)
    for start in range(0, len(samples), 480):
        loudness.add(samples[start : start + 480], RATE)
    return loudness.steps()


def moments(words: list[SpokenWord]) -> list[float]:
    return [0.05 * number for number in range(1, math.ceil((words[-1].end_s + 0.3) / 0.05))]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("timed", [True, False])
def test_never_ahead_and_two_words_behind_at_most(text: str, seed: int, timed: bool) -> None:
    words = spoken_words(text, seed=seed)
    pieces = [Piece(word.text, word.start_s, word.end_s) for word in words] if timed else []
    spoken = Spoken(text, pieces, sound_of(words), complete=True)
    behind = []
    for position_s in moments(words):
        stored = heard(spoken, position_s)
        true = sum(word.end_s <= position_s for word in words)
        assert text.startswith(stored)
        assert len(stored.split()) <= true
        behind.append(true - len(stored.split()))
    if timed:
        assert max(behind) == 0
    else:  # in the middle of a long phrase of very short words it can be a third, for a moment
        assert max(behind) <= 3
        assert sum(words_behind > 2 for words_behind in behind) <= 0.01 * len(behind)
    assert heard(spoken, words[-1].end_s + 1) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_still_being_made_is_never_ahead(text: str, seed: int) -> None:
    """The audio so far, of a voice nobody has measured yet: behind, perhaps far, but not ahead."""
    words = spoken_words(text, seed=seed)
    sound = sound_of(words)
    for position_s in moments(words):
        made = sound[: int((position_s + 0.3) / STEP_S)]
        stored = heard(Spoken(text, (), made, complete=len(made) >= len(sound)), position_s)
        assert len(stored.split()) <= sum(word.end_s <= position_s for word in words)


def test_a_measured_voice_narrows_it() -> None:
    text = TEXTS[5]
    words = spoken_words(text)
    sound = sound_of(words)
    voice = seconds_per_letter(Spoken(text, (), sound, complete=True))
    assert voice is not None
    position_s = words[20].end_s
    made = sound[: int((position_s + 0.3) / STEP_S)]
    known, unknown = (
        len(heard(Spoken(text, (), made, complete=False, seconds_per_letter=rate), position_s).split())
        for rate in (voice * 1.1, None)
    )
    assert unknown <= known <= 21
    assert known >= 17


def test_a_voice_is_measured_on_whole_and_long_enough_texts_only() -> None:
    words = spoken_words(TEXTS[0])
    assert seconds_per_letter(Spoken(TEXTS[0], (), sound_of(words), complete=False)) is None
    assert seconds_per_letter(Spoken("Okay.", (), sound_of(spoken_words("Okay.")), complete=True)) is None
    assert seconds_per_letter(Spoken(TEXTS[0], (), Loudness().steps(), complete=True)) is None


def test_sentences_whose_beginnings_are_known() -> None:
    first, second = "One two three four. ", "Five six seven."
    pieces = [Piece(first, 0.0), Piece(second, 2.0)]
    spoken = Spoken(first + second, pieces, np.full(400, 900, np.float32), complete=True)
    assert heard(spoken, 2.0) == first.strip()
    assert heard(spoken, 4.0) == first + second
    assert heard(spoken, 0.0) == ""


def test_a_sentence_that_is_not_whole_yet_is_open() -> None:
    pieces = [Piece("One two three. ", 0.0), Piece("Four five six.", 2.0)]
    spoken = Spoken("One two three. Four five six.", pieces, np.full(210, 900, np.float32), complete=False)
    assert heard(spoken, 2.05) == "One two three."


@pytest.mark.parametrize(
    "pieces",
    [
        [Piece("something", 0.0, 0.5), Piece("else", 0.5, 1.0)],  # not the text's
        [Piece("One", 0.5, 0.9), Piece("two", 0.1, 0.4)],  # back in time: counted anew for each sentence
    ],
)
def test_times_that_do_not_fit_are_not_believed(pieces: list[Piece]) -> None:
    text = "One two three four five six."
    words = spoken_words(text)
    sound = sound_of(words)
    with_them, without = (Spoken(text, given, sound, complete=True) for given in (pieces, []))
    for position_s in moments(words):
        assert heard(with_them, position_s) == heard(without, position_s)


def test_silence_and_no_sound_at_all_let_nothing_be_heard() -> None:
    for sound in (np.zeros(0, np.float32), np.zeros(300, np.float32)):
        assert heard(Spoken(TEXTS[0], (), sound, complete=False), 2.0) == ""


def test_words_of_scripts_without_spaces_are_single_characters() -> None:
    assert [word.end for word in split("今日は、雨です。")] == [1, 2, 4, 5, 6, 8]
    assert len(split("hello 你好")) == 3


def test_a_number_is_as_long_as_it_is_read() -> None:
    seven, price, word = (split(text)[0] for text in ("7", "$1,249.99", "seven"))
    assert seven.letters == pytest.approx(word.letters, abs=2)
    assert price.letters > 40
    assert price.number
    assert not word.number


def test_marks_belong_to_the_word_before_and_pause_it() -> None:
    assert [(word.end, word.pause) for word in split("Well — let's go, now!")] == [(6, 1), (12, 0), (16, 1), (21, 2)]
    assert split("... !") == []


def test_loudness_is_the_same_however_it_is_cut() -> None:
    samples = np.frombuffer(samples_of(spoken_words(TEXTS[0])).data, np.int16)
    whole, parts = Loudness(), Loudness()
    whole.add(samples, RATE)
    for start in range(0, len(samples), 333):
        parts.add(samples[start : start + 333], RATE)
    np.testing.assert_allclose(whole.steps(), parts.steps())
    assert len(whole.steps()) == len(samples) // 240


words_of = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=80)
sounds = st.lists(st.floats(0, 30_000, width=32), max_size=400).map(lambda steps: np.array(steps, np.float32))
times = st.floats(0, 5, allow_nan=False)
pieces_of = st.lists(st.builds(Piece, words_of, times, st.none() | times), max_size=5)


@settings(max_examples=200, deadline=None)
@given(words_of, pieces_of, sounds, st.booleans(), st.none() | st.floats(0.02, 0.5), st.lists(times, min_size=2))
def test_whatever_it_is_given_it_is_a_beginning_that_grows(
    text: str, pieces: list[Piece], sound: Any, complete: bool, voice: float | None, positions: list[float]
) -> None:
    spoken = Spoken(text, pieces, sound, complete, voice)
    results = [heard(spoken, position_s) for position_s in sorted(positions)]
    assert all(text.startswith(result) for result in results)
    if not pieces:
        assert [len(result) for result in results] == sorted(len(result) for result in results)
