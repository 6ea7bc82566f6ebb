"""Settings: read from their variables alone, wrong ones refused all at once, never a value printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory.errors import SettingsError
from memory.settings import Settings, environment, load_settings, variable
from memory.wiring import redis_url

SECRET = "hunter2-very-secret"


def refused(**overrides: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)
    return caught.value.problems


def test_the_defaults_are_those_of_the_design(data_dir: Path) -> None:
    settings = load_settings()
    assert (settings.org_id, settings.agent_id, settings.enabled) == ("default", "assistant", True)
    assert settings.data_dir == data_dir
    assert settings.redis_url is settings.database_url is settings.falkordb_host is None
    assert (settings.graphiti_llm_model, settings.graphiti_embedding_model) == ("gpt-4o-mini", "text-embedding-3-small")
    assert settings.context_tokens == 4_000


def test_the_data_directory_defaults_to_data_below_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.delenv("VOICEASSIST_DATA_DIR")
    monkeypatch.chdir(data_dir)
    assert load_settings().data_dir == Path.cwd() / "data"


@pytest.mark.parametrize("blank", ["", "   "])
def test_a_blank_variable_is_unset(monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    for name in ("REDIS_URL", "REDIS_PASSWORD", "DATABASE_URL", "MEMORY_PHONE_REGION", "FALKORDB_HOST"):
        monkeypatch.setenv(name, blank)
    settings = load_settings()
    assert (settings.redis_url, settings.redis_password, settings.database_url) == (None, None, None)
    assert settings.phone_region is None


def test_a_blank_number_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "")
    assert load_settings().turn_budget_ms == 300


def test_only_the_documented_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ENABLED", "false"), ("ORG_ID", "evil"), ("AGENT_ID", "evil"), ("PREFETCH", "0")):
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.enabled, settings.org_id, settings.agent_id, settings.prefetch) == (
        True,
        "default",
        "assistant",
        True,
    )


def test_every_field_has_a_variable_and_a_description() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert variable(Settings, name).isupper()


def test_overrides_win_and_an_unknown_one_is_no_silent_typo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_ORG_ID", "acme")
    assert load_settings(org_id="other").org_id == "other"
    assert load_settings().org_id == "acme"
    with pytest.raises(TypeError, match="blok_tokens"):
        load_settings(blok_tokens=5)


def test_all_faults_come_at_once_with_variable_kind_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MEMORY_ENABLED": SECRET,
        "MEMORY_TURN_BUDGET_MS": "NaN",
        "MEMORY_HOST_IDLE_SECONDS": "nan",
        "MEMORY_RECALL_ASSURANCE": SECRET,
        "REDIS_URL": f"http://{SECRET}",
        "DATABASE_URL": f"mysql://u:{SECRET}@h/d",
        "MEMORY_PHONE_REGION": SECRET,
        "MEMORY_BLOCK_TOKENS": "3000",
        "MEMORY_ORG_ID": "a\tb",
    }.items():
        monkeypatch.setenv(name, value)
    problems = refused()
    assert {line.split(":")[0] for line in problems} == {
        "MEMORY_ENABLED",
        "MEMORY_TURN_BUDGET_MS",
        "MEMORY_HOST_IDLE_SECONDS",
        "MEMORY_RECALL_ASSURANCE",
        "REDIS_URL",
        "DATABASE_URL",
        "MEMORY_PHONE_REGION",
        "MEMORY_CONTEXT_TOKENS",
        "MEMORY_ORG_ID",
    }
    text = "\n".join(problems)
    assert SECRET not in text
    assert "must be redis://HOST:PORT" in text
    assert f"text of {len(SECRET)} characters" in text
    assert "at least twice MEMORY_BLOCK_TOKENS" in text


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1", "1e999"])
def test_numbers_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MEMORY_HOST_IDLE_SECONDS", value)
    assert "MEMORY_HOST_IDLE_SECONDS" in refused()[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "redis://host:notaport"),
        ("REDIS_URL", "redis://host:99999"),
        ("REDIS_URL", "redis://"),
        ("REDIS_URL", "host:6379"),
        ("DATABASE_URL", "postgresqlx://u@h/d"),
        ("DATABASE_URL", "postgresql://u@h:port/d"),
        ("MEMORY_PHONE_REGION", "USA"),
        ("MEMORY_ORG_ID", " "),
        ("REDIS_PORT", "0"),
        ("REDIS_HOST", "redis://redis.internal"),
        ("REDIS_HOST", "redis.internal:6379"),
        ("REDIS_HOST", "[::1]"),
        ("FALKORDB_HOST", "redis://graph.internal"),
        ("FALKORDB_HOST", "graph.internal:6379"),
        ("FALKORDB_HOST", "a b"),
    ],
)
def test_what_can_not_be_a_place_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert refused()[0].startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "rediss://user:pass@host:6380/1"),
        ("REDIS_URL", "unix:///run/redis.sock?db=1"),
        ("DATABASE_URL", "postgres://u:p@h/d"),
        ("DATABASE_URL", "postgresql+asyncpg://u:p@h:5432/d"),
        ("DATABASE_URL", "sqlite:////var/lib/my data/memory.db"),
        ("REDIS_HOST", "redis_1.internal"),
        ("REDIS_HOST", "10.0.0.7"),
        ("FALKORDB_HOST", "::1"),
    ],
)
def test_what_can_be_a_place_is_taken(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert value in load_settings().model_dump().values()


@pytest.mark.parametrize(("host", "url"), [("10.0.0.7", "redis://10.0.0.7:6379/0"), ("::1", "redis://[::1]:6379/0")])
def test_a_host_is_one_by_name_or_by_either_kind_of_address(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("REDIS_HOST", host)
    assert redis_url(load_settings()) == url


def test_secrets_are_not_in_the_settings_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://:{SECRET}@host")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:{SECRET}@h/d")
    monkeypatch.setenv("REDIS_PASSWORD", SECRET)
    settings = load_settings()
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    with pytest.raises(Exception, match="frozen"):
        settings.org_id = "x"  # type: ignore[misc]


def test_a_helper_process_comes_to_the_same_settings(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = load_settings(redis_url="redis://:secret@localhost:1/0", prefetch=False, host_idle_seconds=2.5)
    for name, value in environment(given).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == given
    assert given.data_dir == data_dir


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("MEMORY_ENABLED", "maybe", "must be true or false (given: text of 5 characters)"),
        ("MEMORY_BLOCK_TOKENS", "many", "must be a whole number (given: text of 4 characters)"),
        ("MEMORY_IDLE_SECONDS", "soon", "must be a number (given: text of 4 characters)"),
        ("MEMORY_TURN_BUDGET_MS", "1", "must be greater than or equal to 10 (given: a number)"),
        ("MEMORY_EMBEDDER", "big", "must be 'local' or 'none' (given: text of 3 characters)"),
    ],
)
def test_what_is_wrong_is_told_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    assert refused() == [f"{name}: {told}"]
