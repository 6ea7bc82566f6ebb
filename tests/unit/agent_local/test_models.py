"""The real models: what they say is heard again, words come at their times, and nothing odd breaks them."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.local import models
from agent.local.models import (
    LISTEN_RATE,
    TALK_RATE,
    LocalSpeechUnavailable,
    SpeechToText,
    TextToSpeech,
    check_installed,
    quiet_cut,
)
from agent.local.wav import Floats, resample
from memory.extras import install


def _audio(talker: TextToSpeech, text: str) -> Floats:
    parts = [np.frombuffer(talker.speak(piece).pcm, "<i2") for piece in talker.pieces(text)]
    return resample((np.concatenate(parts) / 32768).astype(np.float32), TALK_RATE, LISTEN_RATE)


@pytest.mark.parametrize(
    "text",
    [
        "Welcome back, Sarah. I see your order number 1234 was delayed last week.",
        "My card ends with 4242 and I live in Lyon.",
    ],
)
def test_what_is_said_is_heard(listener: SpeechToText, talker: TextToSpeech, text: str) -> None:
    heard = listener.transcribe(_audio(talker, text))
    assert heard.text.casefold() == text.casefold()
    assert 0.5 < heard.confidence <= 1


@pytest.mark.parametrize("level", [0.0, 0.001, 0.02])
def test_nobody_speaking_is_heard_as_nothing(listener: SpeechToText, level: float) -> None:
    noise = np.random.default_rng(1).standard_normal(2 * LISTEN_RATE).astype(np.float32) * np.float32(level)
    assert listener.transcribe(noise).text == ""


def test_no_audio_at_all_is_heard_as_nothing(listener: SpeechToText) -> None:
    assert listener.transcribe(np.zeros(0, np.float32)).text == ""
    assert listener.transcribe(np.zeros(10, np.float32)).text == ""


def test_speech_longer_than_a_window_is_heard_to_its_end(listener: SpeechToText, talker: TextToSpeech) -> None:
    sentences = [
        "My dog is called Biscuit, and he likes to run along the river in the morning.",
        "My sister lives in a small village near the mountains with her three children.",
        "Last summer we went to the sea, and it rained for almost the whole of two weeks.",
        "The train was late, so that we had to wait at the station for more than an hour.",
        "In the evening we cooked a large pot of soup, and everybody ate two plates of it.",
        "Next year I would like to learn how to play the piano, and maybe also the violin.",
        "My doctor told me to walk more, so I now go to work on foot when it does not rain.",
        "At the very end I want to tell you that the secret word of the day is butterfly.",
    ]
    audio = _audio(talker, " ".join(sentences))
    assert len(audio) > 31 * LISTEN_RATE
    heard = listener.transcribe(audio).text.casefold()
    for word in ("biscuit", "village", "summer", "station", "soup", "piano", "doctor", "butterfly"):
        assert word in heard


def test_words_come_when_they_are_heard(talker: TextToSpeech) -> None:
    assert talker.timed, "hibari's model has no durations under the known name: word times are estimates only"
    speech = talker.speak("One two three four. ")
    audio = np.abs(np.frombuffer(speech.pcm, "<i2").astype(np.float64))
    duration_s = len(audio) / TALK_RATE
    assert [word.text for word in speech.words] == ["One ", "two ", "three ", "four. "]
    assert speech.words[-1].end_s <= duration_s
    for word in speech.words:
        inside = audio[int(word.start_s * TALK_RATE) : int(word.end_s * TALK_RATE)]
        assert inside.max() > 3000  # there is a voice in every word's time


def test_a_word_cut_at_its_time_is_heard_and_the_next_is_not(listener: SpeechToText, talker: TextToSpeech) -> None:
    text = "Yesterday evening my brother bought seventeen yellow umbrellas."
    speech = talker.speak(text)
    audio = (np.frombuffer(speech.pcm, "<i2") / 32768).astype(np.float32)
    end = next(word.end_s for word in speech.words if word.text.startswith("bought"))
    cut = np.concatenate([audio[: int(end * TALK_RATE)], np.zeros(TALK_RATE // 2, np.float32)])
    heard = listener.transcribe(resample(cut, TALK_RATE, LISTEN_RATE)).text.casefold()
    assert "brother bought" in heard
    assert "seventeen" not in heard


def test_the_same_text_gives_the_same_samples(talker: TextToSpeech) -> None:
    assert talker.speak("Hello there.").pcm == talker.speak("Hello there.").pcm


def test_loudness_is_near_what_telephony_expects_and_never_clips(talker: TextToSpeech) -> None:
    for text in ("Hello there, my dog is called Biscuit.", "Shh!", "WOW! THAT IS GREAT!"):
        audio = np.frombuffer(talker.speak(text).pcm, "<i2").astype(np.float64) / 32768
        assert 0.2 < np.abs(audio).max() < 0.98
        assert np.abs(audio[: TALK_RATE // 250]).max() < 0.1  # nothing cut off at the start


@pytest.mark.parametrize("text", ["", " ", "…", "مرحبا", "🎉🎉", "\x00", "\ud800"])
def test_text_with_nothing_to_say_is_silent(talker: TextToSpeech, text: str) -> None:
    pieces = talker.pieces(text)
    assert "".join(pieces) == text
    for piece in pieces:
        speech = talker.speak(piece)
        assert len(speech.pcm) / 2 / TALK_RATE < 0.3
        assert "".join(word.text for word in speech.words) == piece


_ODD = st.one_of(
    st.text(max_size=50),
    st.text(alphabet="0123456789,.:/-$£€%°CF#&+*=<>~^|@()[]{}'\"’“”—…½²¹٣Ⅷ１ \n\tabIVXkmstndrdh", max_size=50),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=_ODD)
def test_any_text_is_spoken_whole(talker: TextToSpeech, text: str) -> None:
    pieces = talker.pieces(text)
    assert "".join(pieces) == text
    for piece in pieces:
        speech = talker.speak(piece)
        assert len(speech.pcm) % 2 == 0
        assert "".join(word.text for word in speech.words) == piece


@pytest.mark.parametrize("text", ["9" * 400, "1,234,567,890,123,456,789", "word " * 300, "x" * 2000])
def test_long_text_is_cut_into_pieces_the_model_can_take(talker: TextToSpeech, text: str) -> None:
    pieces = talker.pieces(text)
    assert "".join(pieces) == text
    assert max(len(piece) for piece in pieces) <= 240
    assert all(talker.speak(piece).pcm for piece in pieces[:2])


def test_where_the_reader_fails_the_plain_letters_are_read(
    talker: TextToSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    normalize = talker._normalize

    def picky(text: str) -> str:
        if any(character.isdigit() for character in text):
            raise IndexError
        return str(normalize(text))

    monkeypatch.setattr(talker, "_normalize", picky)
    speech = talker.speak("Room 12 please.")
    assert len(speech.pcm) > TALK_RATE // 2
    assert [word.text for word in speech.words] == ["Room ", "12 ", "please."]


def test_without_inner_durations_times_are_estimated(talker: TextToSpeech, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_DURATIONS_TENSOR", "/no_such_tensor")
    coarse = TextToSpeech()
    assert not coarse.timed
    speech = coarse.speak("One two three four.")
    assert speech.pcm == talker.speak("One two three four.").pcm
    starts = [word.start_s for word in speech.words]
    assert starts == sorted(starts)
    assert starts[-1] > 0.5


def test_quiet_cut_finds_the_pause() -> None:
    rng = np.random.default_rng(0)
    audio = rng.standard_normal(6 * LISTEN_RATE).astype(np.float32)
    audio[4 * LISTEN_RATE : int(4.3 * LISTEN_RATE)] = 0
    assert 4 * LISTEN_RATE <= quiet_cut(audio) <= 4.3 * LISTEN_RATE
    assert quiet_cut(audio[:100]) == 100


def test_missing_packages_are_named_with_the_way_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hibari" else real(name))
    with pytest.raises(LocalSpeechUnavailable) as caught:
        check_installed()
    assert "hibari" in str(caught.value)
    assert install("local") in str(caught.value)


@pytest.mark.parametrize("error", [ImportError("No module named 'x'"), OSError("libgomp.so.1: cannot open")])
@pytest.mark.parametrize("model", [SpeechToText, TextToSpeech])
def test_what_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception, model: type[SpeechToText] | type[TextToSpeech]
) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(LocalSpeechUnavailable) as caught:
        model()
    assert str(error) in str(caught.value)
    assert install("local") in str(caught.value)
