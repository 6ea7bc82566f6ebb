"""The memory's settings, from the environment. A wrong value is refused at start, all wrong values at once.

Above: wiring, cli, plugin. Below: errors, limits, datadir. Each field's description goes into the README's table.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from memory import limits
from memory.datadir import _resolve_data_dir
from memory.errors import SettingsError

AssuranceName = Literal["anonymous", "caller_id", "signed", "verified"]


def _blank_is_unset(value: object) -> object:
    # compose files and CI write `NAME=` for "not set"
    return None if isinstance(value, str) and not value.strip() else value


# What a URL must look like, apart from what only its driver can tell.
_REDIS_URL = re.compile(r"(?:rediss?|unix)://\S.*")
_HOST_NAME = re.compile(r"[^\s:/@?#\[\]]+")
_DATABASE_URL = re.compile(r"(?:postgres(?:ql)?|sqlite)(?:\+\w+)?://.*")

# With this "prefix" a field's own name is no environment variable's: ORG_ID or ENABLED in an environment are
# somebody else's. Only the aliases are read; fields can still be set by name in code.
NO_VARIABLE = "="

OptionalStr = Annotated[str | None, BeforeValidator(_blank_is_unset)]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(_blank_is_unset)]


def _env(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class EnvironmentSettings(BaseSettings):
    """Settings that come from the variables their fields name, and from nothing else of the environment."""

    model_config = SettingsConfigDict(
        extra="ignore", frozen=True, populate_by_name=True, env_ignore_empty=True, env_prefix=NO_VARIABLE
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # No .env lookup of our own: which file counts is the process manager's (or livekit's) business.
        return init_settings, env_settings


class Settings(EnvironmentSettings):
    """Everything the memory reads from the environment."""

    data_dir: Path = Field(
        default_factory=_resolve_data_dir,
        validation_alias=_env("VOICEASSIST_DATA_DIR"),
        description="Where the embedded server, SQLite, snapshots and sockets live.",
    )
    enabled: bool = Field(
        default=True, validation_alias=_env("MEMORY_ENABLED"), description="Turns the whole memory on or off."
    )
    org_id: str = Field(
        default="default",
        min_length=1,
        max_length=limits.ID_CHARS_MAX,
        validation_alias=_env("MEMORY_ORG_ID"),
        description="The organisation whose users these are; nothing crosses it.",
    )
    agent_id: str = Field(
        default="assistant",
        min_length=1,
        max_length=limits.ID_CHARS_MAX,
        validation_alias=_env("MEMORY_AGENT_ID"),
        description="The agent; each has its own memory of a user.",
    )

    redis_url: OptionalStr = Field(
        default=None,
        validation_alias=_env("REDIS_URL"),
        repr=False,
        description="Redis by URL (redis://, rediss://, unix://). Unset: the embedded server.",
    )
    redis_host: OptionalStr = Field(
        default=None, validation_alias=_env("REDIS_HOST"), description="Redis by host, if REDIS_URL is not set."
    )
    redis_port: int = Field(
        default=6379, ge=1, le=65_535, validation_alias=_env("REDIS_PORT"), description="The port for REDIS_HOST."
    )
    redis_password: OptionalSecret = Field(
        default=None, validation_alias=_env("REDIS_PASSWORD"), description="The password for REDIS_HOST."
    )
    database_url: OptionalStr = Field(
        default=None,
        validation_alias=_env("DATABASE_URL"),
        repr=False,
        description="SQL archive (postgresql:// or sqlite://). Unset: SQLite in the data directory.",
    )
    require_durable: bool = Field(
        default=False,
        validation_alias=_env("MEMORY_REQUIRE_DURABLE"),
        description="Refuse a Redis that may lose turns (evicts, keeps no append-only file), instead of warning of it.",
    )

    turn_budget_ms: int = Field(
        default=300,
        ge=10,
        le=5_000,
        validation_alias=_env("MEMORY_TURN_BUDGET_MS"),
        description="How long one turn may wait for memory at most, in milliseconds.",
    )
    block_tokens: int = Field(
        default=limits.BLOCK_TOKENS_DEFAULT,
        ge=50,
        le=100_000,
        validation_alias=_env("MEMORY_BLOCK_TOKENS"),
        description="The memory block's size at most, in tokens.",
    )
    context_tokens: int = Field(
        default=limits.CONTEXT_TOKENS_DEFAULT,
        validate_default=True,
        ge=200,
        le=1_000_000,
        validation_alias=_env("MEMORY_CONTEXT_TOKENS"),
        description="The size at most of what build_llm_context returns, in tokens.",
    )
    recall_limit: int = Field(
        default=limits.RECALL_LIMIT,
        ge=1,
        le=100,
        validation_alias=_env("MEMORY_RECALL_LIMIT"),
        description="How many remembered turns go into one memory block at most.",
    )
    recall_assurance: AssuranceName = Field(
        default="caller_id",
        validation_alias=_env("MEMORY_RECALL_ASSURANCE"),
        description="How sure the identity must be for recall: anonymous, caller_id, signed or verified.",
    )
    prefetch: bool = Field(
        default=True,
        validation_alias=_env("MEMORY_PREFETCH"),
        description="Start recall on interim transcripts, before the turn ends.",
    )
    embedder: Literal["local", "none"] = Field(
        default="local",
        validation_alias=_env("MEMORY_EMBEDDER"),
        description="Vectors for recall: the local model, or none (keywords only).",
    )
    phone_region: OptionalStr = Field(
        default=None,
        validation_alias=_env("MEMORY_PHONE_REGION"),
        description="Country (ISO 3166, such as US) that completes numbers without a + prefix.",
    )
    host_idle_seconds: float = Field(
        default=limits.HOST_IDLE_S,
        ge=0.0,
        le=86_400.0,
        validation_alias=_env("MEMORY_HOST_IDLE_SECONDS"),
        description="How long a helper process stays when nobody uses it, in seconds.",
    )
    host_nice: int = Field(
        default=limits.HOST_NICE,
        ge=-20,
        le=0,
        validation_alias=_env("MEMORY_HOST_NICE"),
        description="Priority of the recall host of many calls during a recall, where the system allows it; 0: as all.",
    )

    idle_seconds: float = Field(
        default=limits.IDLE_S_DEFAULT,
        ge=1.0,
        le=86_400.0,
        validation_alias=_env("MEMORY_IDLE_SECONDS"),
        description="A session that is silent for so long is ingested, ended or not, in seconds.",
    )
    chunk_tokens: int = Field(
        default=limits.CHUNK_TOKENS_DEFAULT,
        ge=100,
        le=100_000,
        validation_alias=_env("MEMORY_CHUNK_TOKENS"),
        description="How many tokens of a session make one episode at most.",
    )
    confidential: str = Field(
        default="",
        validation_alias=_env("MEMORY_CONFIDENTIAL"),
        description="Words or phrases, with commas between: a turn with one of them stays out of facts and summaries.",
    )
    openai_api_key: OptionalSecret = Field(
        default=None,
        validation_alias=_env("OPENAI_API_KEY"),
        description="The key for openai: the agent's models, and the LLM and embeddings of the knowledge graph.",
    )
    openai_base_url: OptionalStr = Field(
        default=None,
        validation_alias=_env("OPENAI_BASE_URL"),
        repr=False,
        description="Any server with OpenAI's API, in place of OpenAI's own; it may need no key.",
    )

    graphiti_enabled: bool = Field(
        default=True, validation_alias=_env("GRAPHITI_ENABLED"), description="Turns the knowledge graph on or off."
    )
    graphiti_llm_model: str = Field(
        default="gpt-4o-mini",
        validation_alias=_env("GRAPHITI_LLM_MODEL"),
        description="The LLM that extracts entities and facts.",
    )
    graphiti_embedding_model: str = Field(
        default="text-embedding-3-small",
        validation_alias=_env("GRAPHITI_EMBEDDING_MODEL"),
        description="The embeddings of the knowledge graph; local: the embedder that recall uses, no key needed.",
    )
    falkordb_host: OptionalStr = Field(
        default=None,
        validation_alias=_env("FALKORDB_HOST"),
        description="FalkorDB's host. Unset: the embedded server.",
    )
    falkordb_port: int = Field(
        default=6379, ge=1, le=65_535, validation_alias=_env("FALKORDB_PORT"), description="FalkorDB's port."
    )
    falkordb_password: OptionalSecret = Field(
        default=None, validation_alias=_env("FALKORDB_PASSWORD"), description="FalkorDB's password."
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("org_id", "agent_id")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not value.strip() or not value.isprintable():
            raise ValueError("must be plain text without control characters")
        return value

    @field_validator("redis_url")
    @classmethod
    def _known_redis_scheme(cls, value: str | None) -> str | None:
        if value and not (_REDIS_URL.fullmatch(value) and _has_valid_port(value)):
            raise ValueError("must be redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database_scheme(cls, value: str | None) -> str | None:
        if value and not (_DATABASE_URL.fullmatch(value) and _has_valid_port(value)):
            raise ValueError("must be postgresql://USER@HOST:PORT/NAME or sqlite:///PATH")
        return value

    @field_validator("redis_host", "falkordb_host")
    @classmethod
    def _host_alone(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value and not (_HOST_NAME.fullmatch(value) or _is_ipv6(value)):
            port = str(info.field_name).replace("host", "port").upper()
            raise ValueError(f"must be a host's name or address alone; the port goes into {port}")
        return value

    @field_validator("phone_region")
    @classmethod
    def _two_letters(cls, value: str | None) -> str | None:
        if value and not (len(value) == 2 and value.isascii() and value.isalpha()):
            raise ValueError("must be a two-letter country code (ISO 3166), such as US")
        return value.upper() if value else None

    @field_validator("context_tokens")
    @classmethod
    def _holds_the_block(cls, value: int, info: ValidationInfo) -> int:
        # At this field, not after all of them: a relation is reported along with the other faults.
        block = info.data.get("block_tokens")
        if block is not None and block * 2 > value:
            raise ValueError(
                f"must be at least twice MEMORY_BLOCK_TOKENS ({value} < 2 x {block}): raise this or lower that"
            )
        return value


def _is_ipv6(host: str) -> bool:
    try:
        return bool(IPv6Address(host))
    except ValueError:
        return False


def _has_valid_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def load_settings(settings_class: type[Settings] = Settings, /, **overrides: Any) -> Settings:
    """Read the settings from the environment; ``overrides`` (by field name) win.

    Raises:
        TypeError: an override that is no field.
        SettingsError: one or more values are wrong; the message has a line for each, with variable, kind and fix,
            and never the value itself.
    """
    if unknown := sorted(overrides.keys() - settings_class.model_fields.keys()):
        raise TypeError(f"{settings_class.__name__} has no field {', '.join(unknown)}.")
    try:
        return settings_class(**overrides)
    except ValidationError as error:
        raise SettingsError(explain(error, settings_class)) from None


def explain(error: ValidationError, settings_class: type[BaseSettings]) -> list[str]:
    """A line for each fault: the variable, what was given (its kind, never its value), and what would be right."""
    names = {name: variable(settings_class, name) for name in settings_class.model_fields}
    lines = []
    for fault in error.errors(include_url=False):
        if not fault["loc"]:
            lines.append(str(fault["msg"]).removeprefix("Value error, "))
            continue
        place = str(fault["loc"][0])
        lines.append(
            f"{names.get(place, place)}: {_reason(fault['type'], fault['msg'])} (given: {_kind(fault['input'])})"
        )
    return lines


_REASONS = {
    "bool_parsing": "must be true or false",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
}


def _reason(kind: str, told: str) -> str:
    if kind in _REASONS:
        return _REASONS[kind]
    reason = told.removeprefix("Value error, ")
    for begin in ("Input should ", "String should "):
        if reason.startswith(begin):
            return "must " + reason.removeprefix(begin)
    return reason[:1].lower() + reason[1:]


def variable(settings_class: type[BaseSettings], field: str) -> str:
    """The environment variable that sets ``field``."""
    alias = settings_class.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else field.upper()


def _kind(value: object) -> str:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return f"text of {len(value)} characters"
        return "a number"
    return "a number" if isinstance(value, int | float) else type(value).__name__


def environment(settings: Settings) -> dict[str, str]:
    """The variables that bring a process to the same settings: those that were set, by whatever way, and the directory.

    Secrets are among them: for a child's environment, never for a log or a command line.
    """
    values = {variable(type(settings), name): getattr(settings, name) for name in settings.model_fields_set}
    shown = {name: _as_text(value) for name, value in values.items() if value is not None}
    return {**shown, "VOICEASSIST_DATA_DIR": str(settings.data_dir)}


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else str(value)
