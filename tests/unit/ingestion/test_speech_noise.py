"""What nobody meant to say (L32), in several languages, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.speech_noise import is_noise, unheard
from tests.support.heard import turns

NOISE = [
    *("um", "Uh, um…", "mm-hm", "Hmm.", "[noise]", "(music) [laughter]", "*coughs*", "♪ la la ♪", "...", "", "—"),
    *("Thanks for watching!", "Thank you so much for watching.", "Please subscribe", "Like and subscribe!"),
    *("Subtitles by the Amara.org community", "Transcription by CastingWords", "www.example.com"),
    *("Untertitel der Amara.org-Community", "Untertitelung des ZDF, 2020", "Vielen Dank fürs Zuschauen!"),
    *("Gracias por ver el video", "Subtítulos realizados por la comunidad de Amara.org", "¡Suscríbete al canal!"),
    *("Merci d'avoir regardé cette vidéo !", "Sous-titres réalisés par la communauté d'Amara.org", "Abonnez-vous"),
    *("Sottotitoli creati dalla comunità Amara.org", "Legendas pela comunidade Amara.org"),
    *("ترجمة نانسي قنقر", "اشتركوا في القناة", "شكرا على المشاهدة"),
    *("देखने के लिए धन्यवाद", "Dekhne ke liye dhanyavaad", "ご視聴ありがとうございました", "시청해주셔서 감사합니다"),
    *("Субтитры сделал DimaTorzok", "Продолжение следует...", "you you you you you you"),
]

SPEECH = [
    *(
        "Yes.",
        "No",
        "I live in Leeds",
        "Thanks!",
        "Thank you for your help",
        "My website is www.example.com, please look",
    ),
    *("I want to subscribe to the newsletter", "I was watching a film", "Ja, gerne", "Ich brauche Untertitel"),
    *("نعم", "شكرا", "Haan ji", "字幕", "no no no no", "My TV is broken", "[card number] is my card"),
]


@pytest.mark.case("L32")
@pytest.mark.parametrize("text", NOISE)
def test_L32_noise_is_noise(text: str) -> None:
    assert is_noise(turns(f"u: {text}")[0])


@pytest.mark.parametrize("text", SPEECH)
def test_speech_is_speech(text: str) -> None:
    assert not is_noise(turns(f"u: {text}")[0])


@pytest.mark.case("L32")
@pytest.mark.parametrize(
    ("confidence", "noise"), [(0.2, True), (0.39, True), (0.4, False), (0.0, False), (None, False)]
)
def test_L32_low_confidence_is_noise_unless_it_is_unknown_or_typed(confidence: float | None, noise: bool) -> None:
    heard = turns("u: I live in Leeds", confidence=confidence)[0]
    assert is_noise(heard) is noise
    assert not is_noise(replace(heard, mode="text"))


def test_a_typed_caption_is_meant() -> None:
    assert not is_noise(turns("u: Thanks for watching!", mode="text")[0])


def test_a_long_turn_may_quote_a_caption() -> None:
    assert not is_noise(turns("u: They say thanks for watching, " + "and I tell you what I think of it, " * 8)[0])


@pytest.mark.case("L32")
@pytest.mark.parametrize(
    "line",
    [
        "You have reached Dana, leave a message.",
        "Hi, you've reached the Scotts.",
        "I can't come to the phone right now",
        "Please leave your name and number after the tone.",
        "The number you have dialled is not in service.",
        "Your call is important to us, please hold the line.",
        "Press 1 for sales.",
        "Sie haben die Mailbox von Jan erreicht, bitte hinterlassen Sie eine Nachricht nach dem Signalton.",
        "Deje su mensaje después de la señal.",
        "Laissez un message après le bip.",
        "اترك رسالتك بعد سماع الصافرة",
        "Beep ke baad apna message chhodiye",
    ],
)
def test_L32_a_machines_greeting_is_nobodys_and_so_is_what_surrounds_it(line: str) -> None:
    said = turns(
        "a: Hello, this is Acme.", "u: Hi there, it's Dana Scott.", f"u: {line}", "a: Oh.", "u: I live in Leeds."
    )
    assert unheard(said) == {1, 2}


@pytest.mark.parametrize(
    "line",
    [
        "I'd like to leave a message for Dr Lee",
        "I left a voicemail yesterday",
        "You have reached an agreement with my brother",
        "Sie erreichen mich unter 030 1234",
        "Please call me after the meeting",
    ],
)
def test_a_person_may_speak_of_machines(line: str) -> None:
    assert unheard(turns(f"u: {line}")) == frozenset()


@pytest.mark.case("L32")
@pytest.mark.parametrize(
    "line",
    [
        "Sorry, that was the TV.",
        "Ignore the radio, please",
        "It's just the television.",
        "Das war der Fernseher.",
        "Era la tele, perdón",
        "C'était la radio",
        "كان صوت التلفزيون",
    ],
)
def test_L32_what_the_user_says_was_the_television_was_not_the_user(line: str) -> None:
    said = turns("u: I live in Leeds.", "a: Nice.", "u: I have always voted green.", "a: Sorry?", f"u: {line}")
    assert unheard(said) == {2, 4}


@pytest.mark.parametrize("line", ["It's the TV I ordered, it's broken", "My TV is on the blink"])
def test_a_television_may_be_what_it_is_about(line: str) -> None:
    assert unheard(turns("u: I have a problem.", f"u: {line}")) == frozenset()


@given(st.lists(st.text(max_size=40), max_size=6), st.sampled_from((None, 0.0, 0.3, 1.0)))
def test_any_text_is_looked_at_without_fail(texts: list[str], confidence: float | None) -> None:
    said = [
        replace(turn, text=text)
        for turn, text in zip(turns(*["u: x"] * len(texts), confidence=confidence), texts, strict=True)
    ]
    assert unheard(said) >= {place for place, turn in enumerate(said) if is_noise(turn)}
