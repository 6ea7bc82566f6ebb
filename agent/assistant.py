"""The assistant: one agent whose thinker and talker are whatever the session was given.

Above: commands, job. Below: settings, memory.context.prompt (what an agent is told about its memory).
"""

from __future__ import annotations

from typing import Self

from livekit.agents import Agent
from livekit.agents.voice import SpeechHandle

from agent.settings import Configuration, is_on
from memory.context.prompt import MEMORY_GUIDANCE

INSTRUCTIONS = """You are {name}, a helpful assistant who talks with people by voice and by text.
Answer in one to three short sentences, in plain words that can be spoken: no lists, no markup, no emoji.
Answer in the language you are spoken to in. Ask when something is unclear. Say so when you don't know."""


class Assistant(Agent):
    """Answers, and greets whoever comes. The instructions stay the same from the first turn to the last.

    The greeting is a fixed sentence: it waits neither for the memory nor for the thinker.
    """

    def __init__(
        self,
        *,
        name: str = "Assistant",
        instructions: str | None = None,
        greeting: str | None = None,
        guidance: str = MEMORY_GUIDANCE,
    ) -> None:
        """``instructions`` replace the built-in ones; ``guidance`` ("" for none) says what the memory block is."""
        told = instructions or INSTRUCTIONS.format(name=name)
        super().__init__(instructions="\n\n".join(part for part in (told, guidance) if part))
        self._greeting = greeting
        self.greets_on_enter = True
        self._greeted: SpeechHandle | None = None

    @classmethod
    def of(cls, configuration: Configuration, *, greets: bool = True) -> Self:
        """The one the settings ask for; without memory it is told of none. ``greets``: where they have it greet."""
        settings = configuration.agent
        guidance = settings.guidance or MEMORY_GUIDANCE
        return cls(
            name=settings.name,
            instructions=settings.instructions,
            greeting=settings.greeting if greets and settings.greets else None,
            guidance=guidance if configuration.memory.enabled and is_on(guidance) else "",
        )

    async def on_enter(self) -> None:
        if self.greets_on_enter:
            self.greet()

    def greet(self) -> None:
        """Say the greeting, if there is one."""
        if self._greeting:
            self._greeted = self.session.say(self._greeting)

    def forgo_greeting(self) -> None:
        """Don't greet after all, unless the greeting is being heard already."""
        if self._greeted is not None and not self._greeted.done() and self.session.agent_state != "speaking":
            self._greeted.interrupt()
