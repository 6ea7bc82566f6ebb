"""P-heard with a real voice: its word times are known, but are not told to what finds out which words were heard."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from memory.spoken import Loudness, Piece, Spoken, heard

RATE = 24_000
AUDIBLE = 330  # of 32768: 1 %
BREATH_S = 0.06

TEXTS = [
    "Your refund of forty euros is approved, and I have also moved you to the Gold plan.",
    "Sure, I can help you with that. Could you tell me the number of your order, please?",
    "I am sorry to hear that! The parcel left our warehouse on Monday, it should reach you by Thursday at the latest; "
    "if it does not, call us again and we will send another one.",
    "We have three tables free tonight: one at 7 pm by the window, one at eight fifteen, and one at nine outside.",
    "The next train to Manchester Piccadilly leaves at 14:35 from platform 12, and it arrives at about twenty past.",
    "I understand. You would like to change your address to 12 Elm Road, is that right? Then I will also update it.",
    "A cat is on a mat. I am in it. So it is as it is, if I may say so.",
    "Your total is $1,249.99, which includes 19% VAT, and shipping is free. Would you like me to email the invoice?",
    "Hmm, I believe the best option would be the family plan, because it covers up to five people and costs less.",
]


class Voiced(NamedTuple):
    text: str
    spoken: Spoken
    ends: list[tuple[float, float]]  # of each word: when its sound ends, and when the pause after it does


def voiced(talker: object, text: str, *, sentences: bool) -> Voiced:
    loudness, now_s = Loudness(), 0.0
    pieces: list[Piece] = []
    ends: list[tuple[float, float]] = []
    for part in talker.pieces(text):  # type: ignore[attr-defined]
        speech = talker.speak(part)  # type: ignore[attr-defined]
        samples = np.frombuffer(speech.pcm, np.int16)
        loudness.add(samples, RATE)
        pieces.append(Piece(part, now_s))
        for word in speech.words:
            # The voice counts the pause after a word in, and the next word's first breath: the word itself ends with
            # its last audible sample before that.
            first, last = round(word.start_s * RATE), round(word.end_s * RATE)
            last = max(first + (last - first) // 2, last - round(BREATH_S * RATE))
            audible = np.flatnonzero(np.abs(samples[first:last].astype(np.int32)) > AUDIBLE)
            sounds_s = (first + audible[-1] + 1) / RATE if len(audible) else word.start_s
            ends.append((now_s + sounds_s, now_s + word.end_s))
        now_s += len(samples) / RATE
    spoken = Spoken(text, pieces if sentences else [], loudness.steps(), complete=True)
    return Voiced(text, spoken, ends)


@pytest.mark.promise("P-heard")
@pytest.mark.parametrize("sentences", [True, False])
def test_P_heard_of_a_real_voice(sentences: bool, require: Callable[..., None]) -> None:
    require("hibari", "onnxruntime", extra="local")
    from agent.local.models import TextToSpeech

    talker = TextToSpeech()
    behind, ahead = [], []
    for text in TEXTS:
        made = voiced(talker, text, sentences=sentences)
        for position_s in np.arange(0.05, made.ends[-1][1], 0.07):
            count = len(heard(made.spoken, float(position_s)).split())
            behind.append(sum(latest <= position_s for _, latest in made.ends) - count)
            # By how much of its last word the result is ahead of the sound, in seconds.
            ahead.append(made.ends[count - 1][0] - position_s if count else 0.0)
    assert len(behind) > 800
    assert max(ahead) <= 0.05, "a word was stored that was not over"
    assert sum(seconds > 0.02 for seconds in ahead) <= 0.003 * len(ahead)
    assert sum(words > 2 for words in behind) <= 0.02 * len(behind)
    assert max(behind) <= 3
