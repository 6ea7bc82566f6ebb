"""``python -m agent chat``: a typed conversation with a real session, without sound.

From a terminal with a prompt; from a pipe one line is one turn and one reply is one line; with ``--json`` events.
Above: cli. Below: conversation, lines, output, turns.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from livekit.agents.voice import io

from agent.commands.conversation import (
    Conversation,
    Ends,
    check_data_dir,
    configured,
    conversation,
    notice,
    open_models,
)
from agent.commands.failures import why
from agent.commands.lines import LineReader, LineTooLong, PipeLines, TerminalLines, is_terminal, terminal_restored
from agent.commands.output import Output
from agent.commands.process import run_async
from agent.commands.turns import Remembered, Turn
from agent.models import announcement, describe
from agent.settings import AgentSettings, Configuration
from memory.errors import VoiceMemoryError
from memory.limits import LOG_READ_MAX
from memory.models import MemoryEntry, clean_text, in_order

STDIN = 0
REMEMBERED_SHOWN = 20

HELP = """Type, and the agent answers. Besides:
  /memory   the memory block in front of the last answer, and what is remembered of you
  /help     this
  /quit     end (so do Ctrl-D and Ctrl-C)
A line that begins with // is said with one slash."""


def run(arguments: argparse.Namespace) -> int:
    """Chat until the input ends."""
    configuration = configured(arguments)
    check_data_dir(configuration, voice=False)
    output = Output()
    typed = is_terminal() and not arguments.json
    reader = LineReader(TerminalLines("you> ") if typed else PipeLines(STDIN))
    try:
        with terminal_restored():
            return run_async(lambda: chat(arguments, configuration, output, reader, typed=typed), output)
    finally:
        if typed:
            notice("")  # the shell's prompt comes on a line of its own


async def chat(
    arguments: argparse.Namespace, configuration: Configuration, output: Output, reader: LineReader, *, typed: bool
) -> int:
    """Hold the conversation; the exit code. ``typed``: by somebody at a terminal, who is greeted."""
    started_s = time.monotonic()
    name = configuration.agent.name
    screen = _Screen(output, as_json=arguments.json, prefix=f"{name.lower()}> " if typed else "")
    models = open_models(configuration, voice=False)
    notice(f"{announcement(configuration.agent, voice=False)}; user: {arguments.user}")
    if typed:
        notice("Type /help for help.")
    async with conversation(
        configuration, models, Ends(text=screen), user_id=arguments.user, channel="chat", greets=typed
    ) as talk:
        if typed and configuration.agent.greets:
            await talk.session.wait_for_idle()
            screen.end_reply()
        await talk.warm()
        if arguments.json:
            started_ms = round((time.monotonic() - started_s) * 1000, 1)
            about = {"session": talk.session_id, "user": talk.scope.user_id, "start_ms": started_ms}
            output.event("ready", **about, models=describe(configuration.agent, voice=False))
        return await _Chat(talk, screen, output, configuration.agent, as_json=arguments.json).hold(reader)


class _Screen(io.TextOutput):
    """Prints a reply as it comes. One reply is one line, whatever pieces and line ends it comes in."""

    def __init__(self, output: Output, *, as_json: bool, prefix: str) -> None:
        super().__init__(label="Screen", next_in_chain=None)
        self._output = output
        self._as_json = as_json
        self._prefix = prefix
        self.said = ""
        self.first_at_s: float | None = None
        self._gap = False

    async def capture_text(self, text: str) -> None:
        text = " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
        if not text:
            return
        if self.first_at_s is None:
            self.first_at_s = time.monotonic()
            self._show(self._prefix)
        text = " " * self._gap + text
        self._gap = False
        self.said += text
        self._show(text)

    def flush(self) -> None:
        # More of the same reply may follow after a tool was called.
        self._gap = bool(self.said) and not self.said.endswith(" ")

    def end_reply(self) -> str:
        """End the line; returns what was said on it."""
        said, self.said, self.first_at_s, self._gap = self.said.strip(), "", None, False
        self._show("\n")
        return said

    def _show(self, text: str) -> None:
        if not self._as_json:
            self._output.text(text)


class _Chat:
    def __init__(
        self, talk: Conversation, screen: _Screen, output: Output, settings: AgentSettings, *, as_json: bool
    ) -> None:
        self._talk = talk
        self._settings = settings
        self._screen = screen
        self._output = output
        self._as_json = as_json
        self._remembered = Remembered(talk.memory)
        self._failed = False
        self._block: str | None = None

    async def hold(self, reader: LineReader) -> int:
        """Take turns until the input ends or ``/quit``; 1 if a turn had no answer."""
        while True:
            await self._output.drained()
            try:
                line = await reader.read()
            except LineTooLong as error:
                self._problem(str(error))
                continue
            if line is None or line.strip() == "/quit":
                return 1 if self._failed else 0
            await self._take(clean_text(line).strip())

    async def _take(self, line: str) -> None:
        match line:
            case "":
                return
            case "/help":
                notice(HELP)
            case "/memory":
                await self._show_memory()
            case _ if line.startswith("//"):
                await self._turn(line[1:])
            case _ if line.startswith("/") and " " not in line and "/" not in line[1:]:
                notice(f"There is no {line}; /help shows what there is.")
            case _:
                await self._turn(line)

    async def _turn(self, text: str) -> None:
        if self._as_json:
            self._output.event("turn", **Turn("user", text, "text").fields())
        asked_s = time.monotonic()
        handle = self._talk.session.generate_reply(user_input=text)
        await handle.wait_for_playout()
        first_s = self._screen.first_at_s
        said = self._screen.end_reply()
        memory_ms, self._block = self._remembered.look()
        error = handle.exception()
        if error is not None or not said:
            self._problem(f"No answer: {why(error, 'llm', self._settings) if error else 'the model said nothing.'}")
            return
        reply = Turn("assistant", said, "text", memory_ms=memory_ms, block=self._block)
        reply.interrupted = handle.interrupted
        reply.first_text_ms = (first_s - asked_s) * 1000 if first_s else None
        if self._as_json:
            self._output.event("turn", **reply.fields())

    def _problem(self, text: str) -> None:
        self._failed = True
        notice(text)
        if self._as_json:
            self._output.event("problem", message=text)

    async def _show_memory(self) -> None:
        try:
            turns = await remembered(self._talk)
        except VoiceMemoryError as error:
            self._problem(str(error))
            return
        if self._as_json:
            told = [{"at": each.timestamp.isoformat(), **_shown(each)} for each in turns]
            self._output.event("memory", block=self._block, turns=told)
            return
        self._output.line(self._block or "(There was no memory block in front of the last answer.)")
        if not turns:
            self._output.line(f"Nothing is remembered of {self._talk.scope.user_id}.")
            return
        self._output.line(f"Remembered of {self._talk.scope.user_id}, the last {len(turns)} turns:")
        for each in turns:
            when = each.timestamp.astimezone().strftime("%Y-%m-%d %H:%M")
            self._output.line(f"- {when} {each.role} ({each.mode}): {' '.join(each.content.split())}")


def _shown(entry: MemoryEntry) -> dict[str, Any]:
    return {"role": entry.role, "mode": entry.mode, "language": entry.language, "text": entry.content}


async def remembered(talk: Conversation) -> list[MemoryEntry]:
    """The newest turns of the user in all sessions, oldest first: those in the archive and those on their way there."""
    if talk.backend is None:
        return []
    await talk.memory.flush()
    archive = await talk.backend.archive()
    position = await archive.position(talk.scope)
    archived = await archive.history(talk.scope, session_id=None, before=None, limit=REMEMBERED_SHOWN)
    coming = await talk.backend.sessions.read(talk.scope, after=position, limit=LOG_READ_MAX)
    entries = [*archived, *(each.record for each in coming.records if isinstance(each.record, MemoryEntry))]
    return in_order({entry.id: entry for entry in entries}.values())[-REMEMBERED_SHOWN:]
