"""The memory's settings, from the environment. A wrong value is refused at start, all wrong values at once.

Above: wiring, cli, plugin. Below: errors, limits, datadir. Each field's description goes into the README's table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from memory import limits
from memory.datadir import _resolve_data_dir
from memory.errors import SettingsError

AssuranceName = Literal["anonymous", "caller_id", "signed", "verified"]


def _blank_is_unset(value: object) -> object:
    # compose files and CI write `NAME=` for "not set"
    return None if value == "" else value


OptionalStr = Annotated[str | None, BeforeValidator(_blank_is_unset)]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(_blank_is_unset)]


def _env(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class Settings(BaseSettings):
    """Everything the memory reads from the environment."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True, env_ignore_empty=True)

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
        description="SQL archive (postgresql:// or sqlite://). Unset: SQLite in the data directory.",
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
        description="The embeddings of the knowledge graph.",
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

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("redis_url")
    @classmethod
    def _known_redis_scheme(cls, value: str | None) -> str | None:
        if value and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database_scheme(cls, value: str | None) -> str | None:
        if value and not value.startswith(("postgresql", "postgres://", "sqlite")):
            raise ValueError("must start with postgresql:// or sqlite://")
        return value

    @field_validator("phone_region")
    @classmethod
    def _two_letters(cls, value: str | None) -> str | None:
        if value and not (len(value) == 2 and value.isascii() and value.isalpha()):
            raise ValueError("must be a two-letter country code (ISO 3166), such as US")
        return value.upper() if value else None

    @model_validator(mode="after")
    def _block_fits(self) -> Settings:
        if self.block_tokens * 2 > self.context_tokens:
            raise ValueError(
                "MEMORY_BLOCK_TOKENS must be at most half of MEMORY_CONTEXT_TOKENS "
                f"({self.block_tokens} > {self.context_tokens} / 2): lower the first or raise the second"
            )
        return self


def load_settings(settings_class: type[Settings] = Settings, /, **overrides: Any) -> Settings:
    """Read the settings from the environment; ``overrides`` (by field name) win.

    Raises:
        SettingsError: one or more values are wrong; the message has a line for each, with variable, kind and fix,
            and never the value itself.
    """
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
        reason = str(fault["msg"]).removeprefix("Value error, ")
        lines.append(f"{names.get(place, place)}: {reason[:1].lower()}{reason[1:]} (given: {_kind(fault['input'])})")
    return lines


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
    return type(value).__name__


def environment(settings: Settings) -> Mapping[str, str]:
    """The process environment a helper process needs to come to the same settings."""
    return {**os.environ, "VOICEASSIST_DATA_DIR": str(settings.data_dir)}
