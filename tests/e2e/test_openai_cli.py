"""``chat`` and ``call`` as processes whose models are all behind OpenAI's API, and what they say when it fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.local.models import PACKAGES, TALK_RATE, TextToSpeech
from tests.support.openai_faults import BROKEN, GARBLED, LOGIN, RATE_LIMITED, Fault, cut
from tests.support.openai_server import OpenAIServer, serving

Start = Callable[..., Any]
Event = dict[str, Any]

KEY, WRONG = "sk-the-right-one", "sk-not-the-right-one"
SAID = "By the way, I am allergic to peanuts."
ASKED = "Which nuts am I allergic to?"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def set_up(require: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("aiohttp", extra="server")
    require(*PACKAGES, extra="local")
    monkeypatch.setenv("MEMORY_EMBEDDER", "none")
    monkeypatch.setenv("MEMORY_TURN_BUDGET_MS", "5000")  # as long as a busy machine takes
    for part in ("STT", "LLM", "TTS"):
        monkeypatch.setenv(f"AGENT_{part}", "openai")


@pytest.fixture
def server(set_up: None) -> Iterator[OpenAIServer]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody says ``SAID``."""
    pytest.importorskip("hibari")
    pcm = TextToSpeech().speak(SAID).pcm
    path = tmp_path_factory.mktemp("call") / "caller.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(TALK_RATE)
        out.writeframes(pcm + np.zeros(TALK_RATE // 2, "<i2").tobytes())
    return path


def found(output: str, event: str) -> list[Event]:
    return [each for line in output.splitlines() if (each := json.loads(line))["event"] == event]


@pytest.mark.promise("P-both")
@pytest.mark.promise("P-fresh")
def test_P_both_P_fresh_a_chat_knows_what_a_call_was_told_and_no_key_is_needed(
    start: Start, server: OpenAIServer, recording: Path
) -> None:
    environment = {"OPENAI_BASE_URL": server.url, "AGENT_VOICE": "nova"}
    code, out, err = start("call", str(recording), "--user", "ana", "--json", environment=environment).end()
    assert code == 0, err
    greeting, said, reply = found(out, "turn")
    assert (said["mode"], said["language"]) == ("voice", "")
    assert said["text"].casefold() == SAID.casefold()
    assert reply["voice_to_voice_ms"] > 0
    assert len(server.chats) == len(server.asked("transcriptions")) == 1
    assert [asked.body["input"] for asked in server.asked("speech")] == [greeting["text"], reply["text"]]
    assert {asked.body["voice"] for asked in server.asked("speech")} == {"nova"}
    assert {asked.body["response_format"] for asked in server.asked("speech")} == {"pcm"}

    code, out, err = start("chat", "--user", "ana", "--json", environment=environment).end(ASKED)
    assert code == 0, err
    answer = found(out, "turn")[-1]
    assert "peanuts" in answer["text"]
    assert len(server.chats) == 2
    assert server.chats[-1].last_user == f"{answer['block']}\n\n{ASKED}"
    assert said["text"] in answer["block"]
    assert answer["block"].startswith("<memory>")
    told = [asked.body["messages"][0] for asked in server.chats]
    assert (told[0]["role"], told[0]) == ("system", told[1])  # the same in every turn and session
    assert "## Memory Usage" in told[0]["content"]
    assert "thinking: openai gpt-4.1-mini" in err
    assert {asked.key for asked in server.requests} == {"none"}
    assert "Traceback" not in err


@contextlib.contextmanager
def program(*words: str) -> Iterator[str]:
    """The server as a program of its own; its URL."""
    command = [sys.executable, "-m", "tests.support.openai_server", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_key_is_handed_on_and_shown_to_nobody(start: Start) -> None:
    with program("--key", KEY) as url:
        environment = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
        code, out, err = start("chat", environment=environment).end(SAID)
    assert (code, out) == (0, f'Noted: "{SAID}"\n'), err
    assert KEY not in err


def test_a_wrong_key_is_told_in_every_turn_and_what_was_said_is_kept(start: Start) -> None:
    said = [f"This is what I say in turn {turn}." for turn in range(6)]  # more than livekit's patience
    with serving(key=KEY) as server:
        environment = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": WRONG}
        code, out, err = start("chat", "--json", environment=environment).end(*said, "/memory")
    assert code == 1
    problems = [event["message"] for event in found(out, "problem")]
    assert problems == [f"No answer: {server.url} refuses the key (401). Set OPENAI_API_KEY to a valid key."] * 6
    assert problems[0] in err
    assert [turn["text"] for turn in found(out, "memory")[0]["turns"]] == said
    assert "Traceback" not in err
    assert WRONG not in out + err


def test_a_call_with_a_wrong_key_says_so_once_for_each_part(start: Start, recording: Path) -> None:
    with serving(key=KEY) as server:
        call = start("call", str(recording), "--json", environment={"OPENAI_BASE_URL": server.url})
        code, out, err = call.end()
    assert code == 1
    problem = f"{server.url} refuses the key (401). Set OPENAI_API_KEY: this server needs one."
    assert [event["message"] for event in found(out, "problem")] == [f"talking: {problem}", f"listening: {problem}"]
    assert "no speech in the recording" not in err  # it was not heard, whatever it holds
    assert "Traceback" not in err
    assert "never retrieved" not in err
    assert found(out, "end")[0]["turns"] == 0


def test_a_call_whose_answers_nobody_speaks_keeps_what_was_said(
    start: Start, server: OpenAIServer, recording: Path
) -> None:
    server.fail_always("speech", BROKEN)
    code, out, err = start("call", str(recording), "--json", environment={"OPENAI_BASE_URL": server.url}).end()
    assert code == 1
    (turn,) = found(out, "turn")
    assert (turn["role"], turn["text"].casefold()) == ("user", SAID.casefold())
    assert found(out, "durable")
    problem = f"talking: {server.url} failed (500). Try again later; python -m agent doctor shows what answers."
    assert [event["message"] for event in found(out, "problem")] == [problem]
    assert "Traceback" not in err


@pytest.mark.promise("P-durable")
def test_P_durable_what_was_said_to_a_server_that_was_away_is_known_when_it_is_back(start: Start) -> None:
    with serving() as server:
        url = server.url
    code, out, err = start("chat", "--json", environment={"OPENAI_BASE_URL": url}).end(SAID)
    assert code == 1
    assert [event["event"] for event in map(json.loads, out.splitlines())] == ["ready", "turn", "problem"]
    assert f"{url} can't be reached" in err
    assert "Check OPENAI_BASE_URL" in err
    assert "Traceback" not in err
    with serving() as server:
        code, out, err = start("chat", environment={"OPENAI_BASE_URL": server.url}).end(ASKED)
    assert code == 0, err
    assert SAID in out


FAULTS: list[tuple[Fault, str]] = [
    (RATE_LIMITED, "takes no more requests for now (429)"),
    (BROKEN, "failed (500)"),
    (Fault(status=404), "no model gpt-4.1-mini, or no such path (404). Set AGENT_LLM_MODEL."),
    (GARBLED, "sent what is no answer"),
    (cut(1), "can't be reached, or broke off"),
    (LOGIN, "the model said nothing"),
]


@pytest.mark.case("L14")
def test_L14_one_chat_outlives_every_fault_and_keeps_each_turn_once(start: Start, server: OpenAIServer) -> None:
    chat = start("chat", "--json", environment={"OPENAI_BASE_URL": server.url})
    said = []
    for number, (fault, expected) in enumerate(FAULTS):
        server.fail_always("chat", fault)
        said.append(f"This is what I say in turn {number}.")
        chat.say(said[-1])
        told = chat.event("problem")["message"]
        assert told.startswith("No answer: ")
        assert expected in told
    server.mend("chat")
    chat.say(SAID)
    assert chat.event("turn", role="assistant")["text"] == f'Noted: "{SAID}"'
    code, out, err = chat.end("/memory")
    assert code == 1  # some turns had no answer
    turns = [(turn["role"], turn["text"]) for turn in found(out, "memory")[0]["turns"]]
    assert turns == [*(("user", text) for text in [*said, SAID]), ("assistant", f'Noted: "{SAID}"')]
    assert "Traceback" not in err
