"""Word times: what is promised of them whatever was spoken, and that shared words keep their own times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.local.alignment import SpokenToken, Word, split_words, word_times

_TOKENS = st.lists(
    st.tuples(st.sampled_from(["hello", "there", ",", "seven", "thirty", "P.M.", "!", "world"]), st.booleans()),
    max_size=12,
).map(
    lambda pairs: [SpokenToken(text, space, at * 0.2, at * 0.2 + 0.15) for at, (text, space) in enumerate(pairs)],
)


@given(st.text(max_size=80), _TOKENS, st.floats(0, 5))
def test_times_never_go_back_and_no_text_is_lost(text: str, spoken: list[SpokenToken], duration_s: float) -> None:
    words = word_times(text, spoken, duration_s)
    assert "".join(word.text for word in words) == text
    edges = [edge for word in words for edge in (word.start_s, word.end_s)]
    assert edges == sorted(edges)
    assert all(0 <= edge <= duration_s for edge in edges)


@given(st.text(max_size=80))
def test_split_words_keeps_every_character(text: str) -> None:
    assert "".join(split_words(text)) == text


def _said(*timed: tuple[str, bool, float, float]) -> list[SpokenToken]:
    return [SpokenToken(*token) for token in timed]


def test_words_that_were_spoken_as_written_keep_their_times() -> None:
    spoken = _said(
        ("Hello", False, 0.1, 0.4), (",", True, 0.4, 0.5), ("world", False, 0.6, 0.9), (".", False, 0.9, 1.0)
    )
    words = word_times("Hello,  world.", spoken, 1.2)
    assert [(word.text, word.start_s, word.end_s) for word in words] == [("Hello,  ", 0.1, 0.5), ("world.", 0.6, 1.0)]


def test_words_that_were_spoken_as_others_share_their_time() -> None:
    spoken = _said(("at", True, 0, 0.2), ("seven", True, 0.2, 0.6), ("thirty", True, 0.6, 1.0), ("PM", False, 1.0, 1.4))
    words = word_times("at 7:30 pm", spoken, 1.4)
    assert words[0] == Word("at ", 0.0, 0.2)
    assert (words[1].start_s, words[1].end_s) == (0.2, 1.0)
    assert (words[2].start_s, words[2].end_s) == (1.0, 1.4)


def test_a_word_without_sound_lasts_no_time() -> None:
    words = word_times("Hello مرحبا world", _said(("Hello", True, 0, 0.4), ("world", False, 0.4, 0.8)), 0.8)
    assert words[1] == Word("مرحبا ", 0.4, 0.4)
