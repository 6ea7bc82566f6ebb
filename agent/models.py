"""Builds what listens, thinks and talks, as the settings say. Providers are imported when they are used.

Above: commands, worker. Below: settings, agent.local.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.settings import PARTS, AgentSettings, Part
from memory.errors import VoiceMemoryError

if TYPE_CHECKING:
    from livekit.agents import AgentSession, UserInputTranscribedEvent, llm, stt, tts

    from agent.local.client import SpeechClient

NO_KEY = "none"  # for a server of OpenAI's API that asks for no key; the client insists on one
NO_LLM = "no LLM configured: answers are quotes from memory (extractive)"
INSTALL_PLUGINS = "pip install livekit-plugins-openai livekit-plugins-silero"

PAUSE_S = 0.41  # of silence end a turn where nothing but silence is listened to
SPEAKS_S = 0.03  # of voice, one look of the voice detector, is somebody who goes on speaking
LAST_WORDS_S = 1.0  # how long the end of a call waits for the transcript of what was being said

_WITHOUT_ROOM: dict[str, Any] = {
    "user_away_timeout": None,
    "aec_warmup_duration": None,
    "session_close_transcript_timeout": LAST_WORDS_S,
}


class ModelUnavailable(VoiceMemoryError):
    """A model can't be used here: its package is missing. The message says how to install it."""


@dataclass
class Models:
    """What an ``AgentSession`` is given. ``stt`` and ``tts`` are ``None`` for a conversation without sound.

    ``aclose`` closes them all; the session doesn't.
    """

    llm: llm.LLM  # type: ignore[type-arg] # livekit leaves it open too
    stt: stt.STT | None = None  # type: ignore[type-arg]
    tts: tts.TTS | None = None  # type: ignore[type-arg]
    hears_by_voice_activity: bool = False
    talks_here: bool = False
    openers: list[Callable[[], Awaitable[Any]]] = field(default_factory=list)
    closers: list[Callable[[], Awaitable[Any]]] = field(default_factory=list)

    async def ready(self) -> None:
        """Wait until the local models are loaded: for those who can't let the first words wait for it.

        Raises:
            HostUnavailable: they can't be; the message says why.
        """
        for opener in self.openers:
            await opener()

    async def aclose(self) -> None:
        """Close everything, last opened first; one that fails doesn't keep the others open. Idempotent."""
        while self.closers:
            with contextlib.suppress(Exception):
                await self.closers.pop()()


def describe(settings: AgentSettings, *, voice: bool) -> dict[str, str]:
    """Which model does what, by part: ``{"llm": "local extractive"}``."""
    parts: tuple[Part, ...] = PARTS if voice else ("llm",)
    return {part: f"{settings.provider(part)} {settings.model(part)}" for part in parts}


def announcement(settings: AgentSettings, *, voice: bool) -> str:
    """The same for people, in a line; a thinker that is no LLM is called what it is."""
    words = {"stt": "listening", "llm": "thinking", "tts": "talking"}
    found = dict(describe(settings, voice=voice))
    if settings.provider("llm") == "local":
        found["llm"] = NO_LLM
    return "; ".join(f"{words[part]}: {model}" for part, model in found.items())


def build(settings: AgentSettings, data_dir: Path, *, voice: bool) -> Models:
    """Build the models; nothing is loaded or asked yet. Belongs to the running event loop.

    Raises:
        ModelUnavailable: a package is missing.
    """
    models = Models(_thinker(settings))
    models.closers.append(models.llm.aclose)
    if voice:
        speech = _speech(settings, data_dir, models)
        models.stt = _listener(settings, speech)
        models.tts = _talker(settings, speech)
        models.closers += [models.stt.aclose, models.tts.aclose]
        models.hears_by_voice_activity = settings.provider("stt") == "local"
        models.talks_here = settings.provider("tts") == "local"
    return models


def new_session(models: Models, *, room: bool = False) -> AgentSession[None]:
    """A session of ``models``, not started. Without a room nobody goes away, and no microphone hears the speaker."""
    from livekit.agents import AgentSession, inference
    from livekit.agents.voice.agent_session import SessionConnectOptions

    if models.stt is None or models.tts is None:
        # Who types sees that there was no answer, and tries again: livekit would end the session at the fourth.
        patient = SessionConnectOptions(max_unrecoverable_errors=sys.maxsize)
        return AgentSession(llm=models.llm, vad=None, conn_options=patient, **_WITHOUT_ROOM)
    options: dict[str, Any] = {} if room else dict(_WITHOUT_ROOM)
    # Speech that nobody gets to hear costs nothing where it is made on this machine.
    handling: dict[str, Any] = {"preemptive_generation": {"enabled": True, "preemptive_tts": models.talks_here}}
    if models.hears_by_voice_activity:
        handling |= {"interruption": {"mode": "vad"}, **_endings(models.stt, room=room)}
        options["vad"] = inference.VAD(min_speech_duration=SPEAKS_S)
    session: AgentSession[None] = AgentSession(
        stt=models.stt,
        llm=models.llm,
        tts=models.tts,
        turn_handling=handling,  # type: ignore[arg-type] # its keys are put together above
        use_tts_aligned_transcript=models.talks_here,
        **options,
    )
    if models.hears_by_voice_activity:
        session.on("user_input_transcribed", partial(_on_transcript, models.stt))
    return session


def _on_transcript(listener: Any, event: UserInputTranscribedEvent) -> None:
    if event.is_final:
        listener.final_arrived()


def _endings(listener: Any, *, room: bool) -> dict[str, Any]:
    if not room:  # not worth loading a model for, so that nothing waits for the listener's words
        listener.more_s = 0.0
        return {"turn_detection": "vad", "endpointing": {"min_delay": PAUSE_S}}
    from agent.endings import FINISHED_S, UNFINISHED_S, EndOfTurn

    return {
        "turn_detection": EndOfTurn(listener.told),
        "endpointing": {"min_delay": FINISHED_S, "max_delay": UNFINISHED_S},
    }


def _thinker(settings: AgentSettings) -> llm.LLM:  # type: ignore[type-arg]
    match settings.provider("llm"):
        case "openai":
            return _openai().LLM(model=settings.model("llm"), **_openai_access(settings))  # type: ignore[no-any-return]
        case "livekit":
            from livekit.agents import inference

            return inference.LLM(settings.model("llm"), **_livekit_access(settings))
        case "local":
            from agent.local.thinker import ExtractiveLLM

            return ExtractiveLLM()


def _listener(settings: AgentSettings, speech: SpeechClient | None) -> stt.STT:  # type: ignore[type-arg]
    model, language = settings.model("stt"), settings.language
    match settings.provider("stt"):
        case "openai":
            options = {"language": language} if language else {"detect_language": True}
            return _openai().STT(model=model, **options, **_openai_access(settings))  # type: ignore[no-any-return]
        case "livekit":
            from livekit.agents import inference

            language = language or ("multi" if model.startswith("deepgram/nova-3") else None)
            options = {**_given(language=language), **_livekit_access(settings)}
            return inference.STT(model, **options)
        case "local":
            from agent.local.stt import LocalSTT

            assert speech is not None
            return LocalSTT(speech)


def _talker(settings: AgentSettings, speech: SpeechClient | None) -> tts.TTS:  # type: ignore[type-arg]
    model, voice = settings.model("tts"), settings.voice
    match settings.provider("tts"):
        case "openai":
            # PCM needs no decoder, on neither side.
            options = {"response_format": "pcm", **_given(voice=voice), **_openai_access(settings)}
            return _openai().TTS(model=model, **options)  # type: ignore[no-any-return]
        case "livekit":
            from livekit.agents import inference

            options = {**_given(voice=voice, language=settings.language), **_livekit_access(settings)}
            return inference.TTS(model, **options)
        case "local":
            from agent.local.tts import LocalTTS

            assert speech is not None
            return LocalTTS(speech)


def check_speech(settings: AgentSettings) -> None:
    """See that local speech is installed, where it is what ``settings`` ask for.

    Raises:
        ModelUnavailable: it isn't.
    """
    if not settings.speaks_locally:
        return
    from agent.local.models import LocalSpeechUnavailable, check_installed

    try:
        check_installed()
    except LocalSpeechUnavailable as error:
        raise ModelUnavailable(f"{error} Or set OPENAI_API_KEY, or OPENAI_BASE_URL.") from None


def _speech(settings: AgentSettings, data_dir: Path, models: Models) -> SpeechClient | None:
    check_speech(settings)
    if not settings.speaks_locally:
        return None
    from agent.local.client import SpeechClient

    client = SpeechClient(data_dir)
    models.openers.append(client.ensure)
    models.closers.append(client.aclose)
    return client


def _openai() -> Any:
    try:
        from livekit.plugins import openai
    except ImportError:
        raise ModelUnavailable(f"livekit-plugins-openai is not installed. Run: {INSTALL_PLUGINS}") from None
    return openai


def _openai_access(settings: AgentSettings) -> dict[str, Any]:
    key = settings.openai_api_key
    return {
        "api_key": key.get_secret_value() if key else NO_KEY,
        **({"base_url": settings.openai_base_url} if settings.openai_base_url else {}),
    }


def _livekit_access(settings: AgentSettings) -> dict[str, Any]:
    secret = settings.livekit_api_secret
    assert settings.livekit_api_key is not None
    assert secret is not None
    return {"api_key": settings.livekit_api_key, "api_secret": secret.get_secret_value()}


def _given(**values: str | None) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
