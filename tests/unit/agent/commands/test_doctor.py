"""The doctor: every check is made and bounded, nothing secret is shown, and each fault comes with a fix."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.commands import checks
from agent.commands.checks import Check, Finding, Patient, place
from agent.commands.doctor import CHECKS, examine
from agent.commands.endpoints import check_livekit, check_openai
from agent.commands.output import Output
from agent.settings import load
from memory import wiring
from memory.hosting import HostUse
from memory.models import Recall, Scope


async def fine(_: Patient) -> Finding:
    return Finding("ok", "fine")


async def ill(_: Patient) -> Finding:
    return Finding("fail", "ill", "Take this.")


async def weak(_: Patient) -> Finding:
    return Finding("warn", "weak", "Rest.")


async def stubborn(_: Patient) -> Finding:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if _stubborn_enough:
                raise


_stubborn_enough: list[bool] = []


async def broken(_: Patient) -> Finding:
    raise RuntimeError("redis://:secret@host")


class Screen:
    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        self.output = Output(writing)
        self._writing = writing

    def text(self) -> str:
        self.output.close(timeout_s=10)
        os.close(self._writing)
        with open(self._reading, encoding="utf-8") as stream:
            return stream.read()


async def diagnose(*chosen: Check, timeout_s: float = 5.0, as_json: bool = False) -> tuple[int, str]:
    screen = Screen()
    named = [(check.__name__, check) for check in chosen]
    code = await examine(screen.output, timeout_s=timeout_s, as_json=as_json, chosen=named)
    return code, screen.text()


async def test_all_is_well() -> None:
    code, text = await diagnose(fine)
    assert code == 0
    assert "Nothing to fix." in text


async def test_what_fails_comes_with_its_fix() -> None:
    code, text = await diagnose(fine, ill)
    assert code == 1
    assert "FAIL ill: Take this." in text


async def test_a_warning_is_no_failure() -> None:
    code, text = await diagnose(weak)
    assert code == 0
    assert "weak: Rest." in text


async def test_a_check_that_hangs_or_breaks_does_not_keep_the_others_from_being_made() -> None:
    code, text = await diagnose(stubborn, broken, fine, timeout_s=0.05)
    _stubborn_enough.append(True)
    assert code == 1
    assert "no answer within 0.05 s" in text
    assert "RuntimeError" in text
    assert "secret" not in text
    assert "fine" in text


async def test_scripts_get_one_object_a_line() -> None:
    code, text = await diagnose(fine, ill, as_json=True)
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in lines] == ["check", "check", "result"]
    assert lines[1]["fix"] == "Take this."
    assert lines[2]["ok"] is False
    assert code == 1


async def test_wrong_settings_are_told_and_what_needs_none_is_still_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_STT", "ears")
    code, text = await diagnose(checks.check_settings, checks.check_python, checks.check_data_dir)
    assert code == 1
    assert "AGENT_STT" in text
    assert "not checked: settings are wrong" in text


async def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET", "REDIS_PASSWORD"):
        monkeypatch.setenv(name, "hush-hush")
    _, text = await diagnose(checks.check_settings, checks.check_models)
    assert "OPENAI_API_KEY set" in text
    assert "hush-hush" not in text


async def test_a_model_without_effect_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_LLM_MODEL", "gpt-9")
    _, text = await diagnose(checks.check_models)
    assert "AGENT_LLM_MODEL has no effect" in text
    assert "no LLM configured" in text


async def test_a_language_the_local_models_lack_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_LANGUAGE", "es")
    _, text = await diagnose(checks.check_models)
    assert "English only" in text


async def test_a_data_directory_of_a_newer_version(data_dir: Path) -> None:
    (data_dir / "FORMAT").write_text("99\n")
    code, text = await diagnose(checks.check_data_dir)
    assert code == 1
    assert "has format '99'" in text
    assert "Upgrade" in text


@pytest.mark.parametrize("version", ["99", ""])
async def test_a_data_directory_that_can_not_be_used_is_told_once_and_left_alone(data_dir: Path, version: str) -> None:
    if version:
        (data_dir / "FORMAT").write_text(version)
    else:
        data_dir.rmdir()
        data_dir.write_text("a file")
    code, text = await diagnose(*(check for _, check in CHECKS if check not in (check_openai, check_livekit)))
    assert code == 1
    assert text.count("FAIL") == 3, text  # the check, the legend, the fix
    assert text.count("not checked: the data directory can't be used") == 7
    assert [path.name for path in data_dir.glob("*")] == ["FORMAT"] * bool(version)


async def test_what_is_not_installed_is_named_with_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_has", lambda *modules: "docket" not in modules)
    _, text = await diagnose(checks.check_packages)
    assert "embedded, local, postgres, graph, server; not installed: ingest (facts)" in text


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:6380/0", "redis://host:6380/0"),
        ("postgresql+asyncpg://u:secret@db/app?password=secret", "postgresql://db/app"),
        ("https://user:secret@host/v1", "https://host/v1"),
        ("redis://host:port:secret", "(a URL that can't be read)"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert place(url) == shown


Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.ServerRunner] = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            assert isinstance(request, web.BaseRequest)
            return await handler(request)  # type: ignore[arg-type] # a handler looks at headers and path only

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def ask_openai(monkeypatch: pytest.MonkeyPatch, url: str, **environment: str) -> Finding:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return await check_openai(Patient(load(), []))


def listing(*models: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer right":
            return web.Response(status=401)
        assert request.path == "/v1/models"
        found: dict[str, Any] = {"data": [{"id": model} for model in models]}
        return web.json_response(found)

    return answer


async def test_an_endpoint_that_has_the_models(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    url = await serve(listing("tiny"))
    finding = await ask_openai(
        monkeypatch, url, OPENAI_API_KEY="right", AGENT_LLM_MODEL="tiny", AGENT_STT="local", AGENT_TTS="local"
    )
    assert finding.status == "ok"


async def test_an_endpoint_without_the_model(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    url = await serve(listing("tiny"))
    finding = await ask_openai(monkeypatch, url, OPENAI_API_KEY="right", AGENT_STT="local", AGENT_TTS="local")
    assert finding.status == "warn"
    assert "AGENT_LLM_MODEL" in finding.fix


async def test_an_endpoint_that_refuses_the_key(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    finding = await ask_openai(monkeypatch, await serve(listing()), OPENAI_API_KEY="wrong")
    assert finding.status == "fail"
    assert "OPENAI_API_KEY" in finding.fix
    assert "wrong" not in finding.detail


async def test_an_endpoint_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = await ask_openai(monkeypatch, "http://127.0.0.1:9")
    assert finding.status == "fail"
    assert "does not answer" in finding.detail


async def test_a_livekit_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVEKIT_URL", "ws://127.0.0.1:9")
    monkeypatch.setenv("LIVEKIT_API_KEY", "key")
    monkeypatch.setenv("LIVEKIT_API_SECRET", "secret-of-32-characters-or-more--")
    finding = await check_livekit(Patient(load(), []))
    assert finding.status == "fail"
    assert "does not answer" in finding.detail


async def test_what_is_not_used_is_not_asked() -> None:
    patient = Patient(load(), [])
    assert (await check_openai(patient)).status == "off"
    assert (await check_livekit(patient)).status == "off"


async def test_a_name_that_is_no_settings_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMORY_RECAL_LIMIT", "3")
    monkeypatch.setenv("FALKORDB_USER", "me")
    monkeypatch.setenv("AGENT_OF_ANOTHER_PROGRAM", "1")
    code, text = await diagnose(checks.check_settings)
    assert code == 0
    assert "No setting has this name: FALKORDB_USER, MEMORY_RECAL_LIMIT (MEMORY_RECALL_LIMIT?)." in text


async def test_a_recall_host_that_cannot_start_says_why_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9")
    code, text = await diagnose(checks.check_recall, timeout_s=60)
    assert code == 1
    assert "Check REDIS_URL" in text
    assert "no answer" not in text


@pytest.mark.parametrize(("missing", "status"), [((), "ok"), (("vectors",), "ok"), (("log", "facts"), "warn")])
async def test_recall_that_lacks_a_store_is_not_well(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], status: str
) -> None:
    class Lacking:
        async def warm(self, _: Scope) -> None:
            pass

        async def recall(self, *_: Any, **__: Any) -> Recall:
            return Recall(degraded=missing)

    async def started(_: HostUse) -> None:
        pass

    monkeypatch.setattr(checks, "_started", started)
    monkeypatch.setattr(checks, "OPENING_S_MAX", 0.0)
    monkeypatch.setattr(wiring, "open_retriever", lambda *_: Lacking())
    finding = await checks.check_recall(Patient(load(), []))
    assert finding.status == status
    assert bool(finding.fix) == (status == "warn")
    assert all(part in finding.detail for part in missing)
