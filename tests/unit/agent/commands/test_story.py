"""The demo's story: the same facts for people and for scripts."""

from __future__ import annotations

import json
import os

import pytest

from agent.commands.output import Output
from agent.commands.story import Call, Chat, Story
from agent.commands.verdict import judge
from agent.settings import load
from memory.models import MemoryEntry

SAID, ASKED = "I am allergic to peanuts.", "Which food could make me sick?"
CALL = Call("call-1", 11, 900.0, SAID, 100.0, 100.4, 100.41, 100.5, 100.502, -9)
CHAT = Chat("chat-1", 12, 800.0, f"You told me: {SAID}", f"<memory>\n- {SAID}\n</memory>", 4.0, 9.0)


def tell(call: Call, chat: Chat, *, as_json: bool) -> str:
    reading, writing = os.pipe()
    output = Output(writing)
    story = Story(output, as_json=as_json)
    story.begin("ana", load().agent)
    story.tell_process("Call, spoken", call.pid)
    story.tell_call(SAID, call)
    story.tell_stored([MemoryEntry(role="user", content=SAID, mode="voice", language="en")])
    story.tell_process("Chat, typed", chat.pid)
    story.tell_chat(ASKED, chat)
    verdict = judge(said=SAID, understood=SAID, asked=ASKED, block=chat.block or "", answer=chat.answer)
    story.end(call, chat, verdict)
    output.close(timeout_s=30)
    os.close(writing)
    with open(reading, encoding="utf-8") as stream:
        return stream.read()


@pytest.mark.parametrize(
    "shown",
    [
        "User: ana",
        "no LLM configured",
        "Call, spoken, process 11",
        f"caller says    {SAID}",
        f"understood as  {SAID}",
        "SIGKILL 2.0 ms after the reply's first sound (exit code -9)",
        f"stored         {SAID}  (voice, en)",
        "Chat, typed, process 12",
        f"      | - {SAID}",
        f"agent answers  You told me: {SAID}",
        "call: end of speech to durable                       410.0 ms",
        "Remembered. The answer holds what the question did not say: allergic, peanuts.",
    ],
)
def test_people_can_read_it(shown: str) -> None:
    assert shown in tell(CALL, CHAT, as_json=False)


def test_scripts_get_the_same_facts() -> None:
    told = {event["event"]: event for event in map(json.loads, tell(CALL, CHAT, as_json=True).splitlines())}
    assert told["call"]["understood"] == SAID
    assert told["stored"]["turns"] == [SAID]
    assert told["chat"]["block"] == CHAT.block
    assert told["times"]["call_end_of_speech_to_durable_ms"] == 410.0
    assert told["verdict"]["ok"] is True


def test_what_was_not_told_before_the_kill_is_left_open() -> None:
    call = Call("call-1", 11, 900.0, "", None, None, None, 100.5, 100.502, -9)
    chat = Chat("chat-1", 12, 800.0, "I don't know.", None, None, None)
    told = tell(call, chat, as_json=False)
    assert "(not told before the kill)" in told
    assert "(no block in front of the LLM call)" in told
    assert "NOT remembered." in told
