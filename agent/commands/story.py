"""What ``agent demo`` shows: the same facts as a story for people, or as events for scripts.

Above: demo. Below: output, verdict, agent.models (what the models are called).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agent.commands.output import Output, table
from agent.commands.verdict import Verdict
from agent.models import announcement
from agent.settings import AgentSettings
from memory.models import MemoryEntry


@dataclass(frozen=True, slots=True)
class Call:
    """The spoken call, until it was killed. Times ``…_at`` are ``time.time()``; ``None``: not told before the kill."""

    session: str
    pid: int
    start_ms: float
    understood: str
    caller_ended_at: float | None
    transcript_at: float | None
    durable_at: float | None
    sound_at: float
    killed_at: float
    code: int

    def after_speech_ms(self, at: float | None) -> float | None:
        """How long after the caller's last sound."""
        return None if at is None or self.caller_ended_at is None else (at - self.caller_ended_at) * 1000

    @property
    def killed_ms(self) -> float:
        """How long after the first sound of the reply the process was killed."""
        return (self.killed_at - self.sound_at) * 1000


@dataclass(frozen=True, slots=True)
class Chat:
    """The typed question in a new process, and its answer."""

    session: str
    pid: int
    start_ms: float
    answer: str
    block: str | None
    memory_ms: float | None
    first_text_ms: float | None


class Story:
    """Tells it as it happens."""

    def __init__(self, output: Output, *, as_json: bool) -> None:
        self._output = output
        self._as_json = as_json

    def begin(self, user: str, settings: AgentSettings) -> None:
        if self._as_json:
            self._output.event("begin", user=user, models=announcement(settings, voice=True))
            return
        self._output.line(f"A spoken call is killed, and a chat remembers it.  User: {user}")
        self._output.line(f"({announcement(settings, voice=True)})")

    def tell_process(self, what: str, pid: int) -> None:
        """A process was started: what comes next takes some seconds."""
        if self._as_json:
            self._output.event("process", what=what, pid=pid)
        else:
            self._heading(f"{what}, process {pid}")

    def tell_call(self, said: str, call: Call) -> None:
        if self._as_json:
            self._output.event("call", said=said, **asdict(call))
            return
        self._say("caller says", said)
        self._say("understood as", call.understood or "(not told before the kill)")
        self._say("agent", "begins to reply")
        self._say("killed", f"SIGKILL {call.killed_ms:.1f} ms after the reply's first sound (exit code {call.code})")

    def tell_stored(self, stored: Sequence[MemoryEntry]) -> None:
        if self._as_json:
            self._output.event("stored", turns=[entry.content for entry in stored])
            return
        for entry in stored:
            self._say("stored", f"{entry.content}  ({entry.mode}, {entry.language or 'language unknown'})")
        if not stored:
            self._say("stored", "(nothing)")

    def tell_chat(self, asked: str, chat: Chat) -> None:
        if self._as_json:
            self._output.event("chat", asked=asked, **asdict(chat))
            return
        self._say("user types", asked)
        self._say("memory", "in front of the LLM call:" if chat.block else "(no block in front of the LLM call)")
        for line in (chat.block or "").splitlines():
            self._output.line(f"      | {line}")
        self._say("agent answers", chat.answer)

    def end(self, call: Call, chat: Chat, verdict: Verdict) -> None:
        times = _times(call, chat)
        if self._as_json:
            rounded = {name: None if value is None else round(value, 1) for name, value in times.items()}
            self._output.event("times", **{_key(name): value for name, value in rounded.items()})
            self._output.event("verdict", ok=verdict.ok, reason=verdict.reason, **asdict(verdict))
            return
        self._heading("Times")
        rows = [[f"  {name}", "-" if value is None else f"{value:.1f} ms"] for name, value in times.items()]
        for line in table(rows):
            self._output.line(line)
        if verdict.lost:
            self._output.line(f"\nThe listener did not understand: {', '.join(verdict.lost)}.")
        self._output.line(f"\n{'Remembered.' if verdict.ok else 'NOT remembered.'} {verdict.reason}")

    def failed(self, reason: str) -> None:
        """It could not be shown to its end."""
        if self._as_json:
            self._output.event("error", message=reason, code=1)
        else:
            self._output.line(f"\nNOT shown: {reason}")

    def _heading(self, text: str) -> None:
        self._output.line(f"\n{text}")

    def _say(self, what: str, text: str) -> None:
        self._output.line(f"  {what:14} {text}")


def _times(call: Call, chat: Chat) -> dict[str, float | None]:
    return {
        "call: start of the process to the start of the call": call.start_ms,
        "call: end of speech to transcript": call.after_speech_ms(call.transcript_at),
        "call: end of speech to durable": call.after_speech_ms(call.durable_at),
        "call: end of speech to first sound of the reply": call.after_speech_ms(call.sound_at),
        "call: first sound to SIGKILL": call.killed_ms,
        "chat: start of the process to the first question": chat.start_ms,
        "chat: memory": chat.memory_ms,
        "chat: question to first word of the answer": chat.first_text_ms,
    }


def _key(name: str) -> str:
    return name.replace(": ", " ").replace(" ", "_").lower() + "_ms"
