"""The agent's settings, from the environment: which models listen, think and talk, and what the agent says of itself.

A wrong value is refused at start, all wrong values at once, together with the memory's own.
Above: models, assistant, commands. Below: memory.settings. Each field's description goes into the README's table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, ValidationError, field_validator

from memory.errors import SettingsError
from memory.settings import EnvironmentSettings, OptionalSecret, OptionalStr, Settings, explain, load_settings, variable

Choice = Literal["auto", "openai", "livekit", "local"]
Provider = Literal["openai", "livekit", "local"]
Part = Literal["stt", "llm", "tts"]

PARTS: tuple[Part, ...] = ("stt", "llm", "tts")
OFF = "off"

_CLOUD_HOST = ".livekit.cloud"
_BLANK = re.compile(r"\s")
_DEFAULT_MODELS: dict[tuple[Provider, Part], str] = {
    ("openai", "stt"): "gpt-4o-mini-transcribe",
    ("openai", "llm"): "gpt-4.1-mini",
    ("openai", "tts"): "gpt-4o-mini-tts",
    ("livekit", "stt"): "deepgram/nova-3",
    ("livekit", "llm"): "openai/gpt-4.1-mini",
    ("livekit", "tts"): "cartesia/sonic-3",
    ("local", "stt"): "whisper-tiny.en",
    ("local", "llm"): "extractive",
    ("local", "tts"): "hibari",
}


class AgentSettings(EnvironmentSettings):
    """Everything the agent reads from the environment; the memory's own are in ``memory.settings``."""

    stt: Choice = Field(
        default="auto",
        validation_alias=AliasChoices("AGENT_STT"),
        description="Who listens: openai, livekit, local; auto takes the first whose keys are set, else local.",
    )
    llm: Choice = Field(
        default="auto",
        validation_alias=AliasChoices("AGENT_LLM"),
        description="Who thinks; local quotes from memory (extractive), it is no language model.",
    )
    tts: Choice = Field(default="auto", validation_alias=AliasChoices("AGENT_TTS"), description="Who talks.")
    stt_model: OptionalStr = Field(
        default=None,
        max_length=200,
        validation_alias=AliasChoices("AGENT_STT_MODEL"),
        description="The listener's model. Unset: gpt-4o-mini-transcribe (openai), deepgram/nova-3 (livekit).",
    )
    llm_model: OptionalStr = Field(
        default=None,
        max_length=200,
        validation_alias=AliasChoices("AGENT_LLM_MODEL"),
        description="The thinker's model. Unset: gpt-4.1-mini.",
    )
    tts_model: OptionalStr = Field(
        default=None,
        max_length=200,
        validation_alias=AliasChoices("AGENT_TTS_MODEL"),
        description="The talker's model. Unset: gpt-4o-mini-tts (openai), cartesia/sonic-3 (livekit).",
    )
    voice: OptionalStr = Field(
        default=None,
        max_length=200,
        validation_alias=AliasChoices("AGENT_VOICE"),
        description="The talker's voice, by the provider's own name. Unset: the model's default.",
    )
    language: OptionalStr = Field(
        default=None,
        max_length=35,
        validation_alias=AliasChoices("AGENT_LANGUAGE"),
        description="The callers' language (such as en, es, ar). Unset: the listener detects it.",
    )
    name: str = Field(
        default="Assistant",
        min_length=1,
        max_length=80,
        validation_alias=AliasChoices("AGENT_NAME"),
        description="What the agent is called.",
    )
    instructions: OptionalStr = Field(
        default=None,
        max_length=100_000,
        validation_alias=AliasChoices("AGENT_INSTRUCTIONS"),
        description="What the agent is told to be and do, in place of the built-in text.",
    )
    greeting: str = Field(
        default="Hello! How can I help you today?",
        max_length=2_000,
        validation_alias=AliasChoices("AGENT_GREETING"),
        description="What the agent says first; off for nothing.",
    )
    resumed: str = Field(
        default="Sorry, I was gone for a moment. Please go on.",
        max_length=2_000,
        validation_alias=AliasChoices("AGENT_RESUMED"),
        description="What the agent says when it is back after a crash and owes no answer; off for nothing.",
    )
    guidance: OptionalStr = Field(
        default=None,
        max_length=100_000,
        validation_alias=AliasChoices("AGENT_MEMORY_GUIDANCE"),
        description="What the agent is told about using its memory, in place of the built-in text; off for nothing.",
    )

    max_calls: int | None = Field(
        default=None,
        ge=1,
        le=1_000,
        validation_alias=AliasChoices("AGENT_MAX_CALLS"),
        description="Calls at once in one worker. Unset: per core 4 with local speech, else 12.",
    )
    drain_seconds: int = Field(
        default=600,
        ge=0,
        le=86_400,
        validation_alias=AliasChoices("AGENT_DRAIN_SECONDS"),
        description="How long a worker that is told to stop lets its calls go on, in seconds.",
    )
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0.0,
        le=86_400.0,
        validation_alias=AliasChoices("AGENT_RECONNECT_SECONDS"),
        description="How long the agent waits in a room that stays open for its user to come back, in seconds.",
    )
    health_host: str = Field(
        default="0.0.0.0",  # noqa: S104 - probes come from outside a container
        min_length=1,
        max_length=255,
        validation_alias=AliasChoices("AGENT_HEALTH_HOST"),
        description="The address the worker answers /health on.",
    )
    health_port: int = Field(
        default=8081,
        ge=0,
        le=65_535,
        validation_alias=AliasChoices("AGENT_HEALTH_PORT"),
        description="The port the worker answers /health on; 0 for any free one.",
    )
    ingest_health_port: int = Field(
        default=8082,
        ge=0,
        le=65_535,
        validation_alias=AliasChoices("AGENT_INGEST_HEALTH_PORT"),
        description="The port python -m agent ingest answers /health on; 0 for any free one.",
    )

    openai_api_key: OptionalSecret = Field(
        default=None, validation_alias=AliasChoices("OPENAI_API_KEY"), description="The key for openai."
    )
    openai_base_url: OptionalStr = Field(
        default=None,
        validation_alias=AliasChoices("OPENAI_BASE_URL"),
        description="Any server with OpenAI's API, in place of OpenAI's own; it may need no key.",
    )
    livekit_url: OptionalStr = Field(
        default=None,
        validation_alias=AliasChoices("LIVEKIT_URL"),
        description="The LiveKit server: wss://<project>.livekit.cloud or your own.",
    )
    livekit_api_key: OptionalStr = Field(
        default=None, validation_alias=AliasChoices("LIVEKIT_API_KEY"), description="The LiveKit server's key."
    )
    livekit_api_secret: OptionalSecret = Field(
        default=None, validation_alias=AliasChoices("LIVEKIT_API_SECRET"), description="The LiveKit server's secret."
    )

    @field_validator("openai_base_url")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        return _with_scheme(value, ("http", "https"))

    @field_validator("livekit_url")
    @classmethod
    def _socket_address(cls, value: str | None) -> str | None:
        return _with_scheme(value, ("ws", "wss", "http", "https"))

    @property
    def has_openai(self) -> bool:
        return self.openai_api_key is not None or self.openai_base_url is not None

    @property
    def has_livekit_keys(self) -> bool:
        return self.livekit_api_key is not None and self.livekit_api_secret is not None

    @property
    def has_livekit_cloud(self) -> bool:
        """Whether LiveKit Inference can be used: it belongs to LiveKit Cloud, not to a server of one's own."""
        host = urlsplit(self.livekit_url or "").hostname or ""
        return self.has_livekit_keys and host.endswith(_CLOUD_HOST)

    def provider(self, part: Part) -> Provider:
        """Who does ``part``, with ``auto`` resolved."""
        choice: Choice = getattr(self, part)
        if choice != "auto":
            return choice
        if self.has_openai:
            return "openai"
        return "livekit" if self.has_livekit_cloud else "local"

    @property
    def speaks_locally(self) -> bool:
        """Whether it is the local models that listen or talk."""
        return "local" in (self.provider("stt"), self.provider("tts"))

    def model(self, part: Part) -> str:
        """The model that does ``part``. The local ones can't be chosen."""
        provider = self.provider(part)
        chosen: str | None = getattr(self, f"{part}_model") if provider != "local" else None
        return chosen or _DEFAULT_MODELS[provider, part]

    @property
    def greets(self) -> bool:
        return is_on(self.greeting)


def is_on(text: str) -> bool:
    """Whether ``text`` is something to say: not ``off``."""
    return text.strip().lower() not in ("", OFF)


def _with_scheme(value: str | None, schemes: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    try:
        found = urlsplit(value)
        is_one = found.scheme in schemes and bool(found.hostname) and found.port != 0 and not _BLANK.search(value)
    except ValueError:  # no port, or no IPv6 address
        is_one = False
    if not is_one:
        raise ValueError(f"must be a URL that starts with {', '.join(f'{scheme}://' for scheme in schemes)}")
    return value


@dataclass(frozen=True, slots=True)
class Configuration:
    """The agent's settings and the memory's, both checked."""

    agent: AgentSettings
    memory: Settings


def load(**memory_overrides: Any) -> Configuration:
    """Read both from the environment; ``memory_overrides`` (by field name) win.

    Raises:
        SettingsError: one or more values are wrong, of either; a line for each with variable, kind and fix.
    """
    agent, problems = _read()
    memory: Settings | None = None
    try:
        memory = load_settings(**memory_overrides)
    except SettingsError as error:
        problems += error.problems
    if problems or memory is None:
        raise SettingsError(problems)
    return Configuration(agent, memory)


def _read() -> tuple[AgentSettings, list[str]]:
    """The settings, and what is wrong with them; what is wrong has its default, for the rest to be checked."""
    try:
        agent = AgentSettings()
    except ValidationError as error:
        fields = {variable(AgentSettings, name): name for name in AgentSettings.model_fields}
        wrong = {str(fault["loc"][0]) for fault in error.errors(include_url=False)}
        names = {fields.get(name, name) for name in wrong}
        rest = AgentSettings(**{name: AgentSettings.model_fields[name].default for name in names})
        told = {variable(AgentSettings, name) for name in names}
        missing = [line for line in _missing_keys(rest) if not any(name in line for name in told)]
        return rest, [*explain(error, AgentSettings), *missing]
    return agent, _missing_keys(agent)


def _missing_keys(settings: AgentSettings) -> list[str]:
    found = []
    for part in PARTS:
        name = f"AGENT_{part.upper()}"
        choice = getattr(settings, part)
        if choice == "openai" and not settings.has_openai:
            found.append(f"{name}: openai needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs none")
        if choice == "livekit" and not settings.has_livekit_keys:
            found.append(f"{name}: livekit needs LIVEKIT_API_KEY and LIVEKIT_API_SECRET of a LiveKit Cloud project")
    return found
