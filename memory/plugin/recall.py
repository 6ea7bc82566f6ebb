"""Puts what is remembered in front of the LLM: a copy of the context, whose last user message begins with the block.

The context itself is never touched: a preemptive generation stays valid, and nothing remembered is stored again.
Above: attached. Below: prefetch, block.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from livekit.agents import ModelSettings, llm
from livekit.agents.telemetry import tracer

from memory.clock import Clock
from memory.context.block import prefix, render_block
from memory.counters import Counters
from memory.models import Fact, Recall
from memory.plugin.greeting import Profile
from memory.plugin.turns import Remembered
from memory.retrieval.deadlines import Deadline, done_within
from memory.retrieval.prefetch import Prefetcher
from memory.retrieval.right_of_way import RightOfWay
from memory.settings import Settings

logger = logging.getLogger("memory.plugin")

LlmNode = Callable[[llm.ChatContext, list[llm.Tool], ModelSettings], Any]
Erasures = Callable[[], Coroutine[Any, Any, int]]
LATE = "memory_late"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What was found for one user message; a tool step of the same turn finds it again, if nothing was erased since."""

    message_id: str
    text: str
    block: str
    recall: Recall | None


@dataclass(frozen=True, slots=True)
class _Prefixed:
    """The copied context, the message in it that isn't the context's own, and what the context held."""

    context: llm.ChatContext
    items: list[llm.ChatItem]
    own: llm.ChatMessage | None  # none where the copy has a message more: a greeting has no user's to be put before
    prefixed: llm.ChatMessage


class RecallGate:
    """Remembers for the LLM calls of one session. Nothing here raises, or takes longer than the turn's budget."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        counters: Counters,
        entry_id: Callable[[str], str],
        way: RightOfWay,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._counters = counters
        self._entry_id = entry_id
        self.way = way
        self._opened: asyncio.Future[Prefetcher | None] = asyncio.get_running_loop().create_future()
        self._waits = True
        self._erasures: Erasures | None = None
        self._turn: _Turn | None = None
        self.profile = Profile(clock, counters)

    @property
    def last_block(self) -> str:
        """The block in front of the latest LLM call; "" where there was nothing to remember."""
        return self._turn.block if self._turn else ""

    @property
    def last_recall(self) -> Recall | None:
        return self._turn.recall if self._turn else None

    def open(self, prefetcher: Prefetcher | None, erasures: Erasures | None = None) -> None:
        """From now on turns recall; never, with ``None``: nobody is known well enough.

        ``erasures`` tells the log's epoch. It is asked before a block is told once more, and nowhere else.
        """
        if not self._opened.done():
            self._erasures = erasures
            self._opened.set_result(prefetcher)

    def stop_waiting(self) -> None:
        """The stores are away: turns go on without memory, at once, until ``open``."""
        self._waits = False

    def hint(self, text: str, chat_ctx: llm.ChatContext) -> None:
        """The user has said ``text`` so far, after what is in ``chat_ctx``."""
        if self._settings.prefetch and self._opened.done() and (prefetcher := self._opened.result()) is not None:
            prefetcher.hint(text, self._present(chat_ctx))

    def remembered(self, message_id: str | None) -> Remembered:
        """What the LLM was given besides the user message ``message_id``, for the entry of its reply."""
        if self._turn is None or self._turn.message_id != message_id or self._unused():
            return Remembered()
        if self._turn.recall is None:
            return Remembered(degradations=(LATE,))
        recall = self._turn.recall
        facts, passages = [fact.id for fact in recall.facts], [passage.id for passage in recall.passages]
        ids = (*facts, *passages) if self._turn.block else ()
        return Remembered(ids, tuple(f"memory_{name}" for name in recall.degraded))

    async def ask(self, query: str) -> Recall | None:
        """What is remembered about ``query``, within one turn's budget; ``None`` if memory is away or late."""
        deadline = Deadline(self._clock, self._settings.turn_budget_ms)
        return await self._recall(query, deadline, frozenset())

    def around(self, node: LlmNode) -> LlmNode:
        """``node``, called with what is remembered; of whatever kind ``node`` returns."""

        async def llm_node(chat_ctx: llm.ChatContext, tools: list[llm.Tool], model_settings: ModelSettings) -> Any:
            with self.way.taken():
                prefixed = await self._prefixed(chat_ctx)
                result = node(prefixed.context if prefixed else chat_ctx, tools, model_settings)
            if inspect.iscoroutine(result):
                result = await result
            if prefixed is None:
                return result
            if isinstance(result, AsyncIterable):
                return _carrying_back(result, prefixed, chat_ctx)
            _carry_back(prefixed, chat_ctx)
            return result

        return llm_node

    async def _prefixed(self, chat_ctx: llm.ChatContext) -> _Prefixed | None:
        try:
            return await self._try_prefixed(chat_ctx)
        except Exception as error:
            self._counters.add("recall.errors")
            logger.warning("the turn goes on without memory (%s)", type(error).__name__)
            return None

    async def _try_prefixed(self, chat_ctx: llm.ChatContext) -> _Prefixed | None:
        deadline = Deadline(self._clock, self._settings.turn_budget_ms)
        message = next((m for m in reversed(chat_ctx.messages()) if m.role == "user"), None)
        if message is None:
            return self._greeting(chat_ctx)
        text = (message.text_content or "").strip()
        if not text:
            return None
        # All that needs no recall, while it is on its way.
        context, items = chat_ctx.copy(), list(chat_ctx.items)
        present, earlier = self._present(chat_ctx), _earlier(chat_ctx, message)
        turn = self._turn
        if turn is None or (turn.message_id, turn.text) != (message.id, text) or await self._outdated(turn, deadline):
            recall = await self._recall(text, deadline, present)
            profile = self.profile.for_turn(recall, earlier, present)
            turn = self._turn = _Turn(message.id, text, self._block(recall, text, profile), recall)
        if not turn.block:
            return None
        prefixed = message.model_copy(update={"content": _with_block(turn.block, message.content)})
        context.items = [prefixed if item is message else item for item in context.items]
        return _Prefixed(context, items, message, prefixed)

    async def _outdated(self, turn: _Turn, deadline: Deadline) -> bool:
        """Whether something may have been erased since the turn's block was made, by whomever: a tool, or a page."""
        if not turn.block or turn.recall is None or self._erasures is None:
            return False
        asking = asyncio.ensure_future(self._erasures())
        try:
            return not await deadline.met_by(asking) or asking.result() != turn.recall.epoch
        except Exception:
            return True  # with the log away a recall finds nothing, and that is told then
        finally:
            asking.cancel()

    def _greeting(self, chat_ctx: llm.ChatContext) -> _Prefixed | None:
        """What the LLM is told where nobody has said anything yet, as a message of the user's that holds it alone."""
        block = self._block(Recall(), "", self.profile.for_greeting())
        if not block:
            return None
        told = llm.ChatMessage(role="user", content=[block])
        context = chat_ctx.copy()
        context.items = [*context.items, told]
        return _Prefixed(context, list(chat_ctx.items), None, told)

    def _block(self, recall: Recall | None, query: str, profile: Sequence[Fact]) -> str:
        if recall is None:
            return ""
        return render_block(
            recall, max_tokens=self._settings.block_tokens, now=self._clock.now(), query=query, profile=profile
        )

    async def _recall(self, query: str, deadline: Deadline, present: frozenset[str]) -> Recall | None:
        with tracer.start_as_current_span("memory.retrieve") as span:
            prefetcher = await self._prefetcher(deadline)
            recall = None
            if prefetcher is not None:
                recall = await prefetcher.take(query, deadline.remaining_s() * 1_000, present)
            span.set_attributes(
                {
                    "memory.ms": round(deadline.elapsed_ms(), 3),
                    "memory.passages": len(recall.passages) if recall else 0,
                    "memory.facts": len(recall.facts) if recall else 0,
                    "memory.late": recall is None,
                    "memory.degraded": list(recall.degraded) if recall else [],
                }
            )
            return recall

    async def _prefetcher(self, deadline: Deadline) -> Prefetcher | None:
        if not self._opened.done() and self._waits:
            # In vain once is enough: what hangs, such as a network that swallows packets, must not cost every turn.
            self._waits = await done_within(self._opened, self._clock, deadline.remaining_s())
        if not self._opened.done():
            self._counters.add("recall.not_open")
            return None
        return self._opened.result()

    def _present(self, chat_ctx: llm.ChatContext) -> frozenset[str]:
        """The entries that the LLM is given anyhow."""
        return frozenset(self._entry_id(message.id) for message in chat_ctx.messages())

    def _unused(self) -> bool:
        return self._opened.done() and self._opened.result() is None


def _with_block(block: str, content: list[llm.ChatContent]) -> list[llm.ChatContent]:
    """The content with the block before its first text; images and the like stay where they are."""
    first = next(index for index, part in enumerate(content) if isinstance(part, str))
    text = content[first]
    assert isinstance(text, str)
    return [*content[:first], prefix(block, text), *content[first + 1 :]]


def _earlier(chat_ctx: llm.ChatContext, message: llm.ChatMessage) -> tuple[str, ...]:
    """The user's messages before this one."""
    return tuple(one.id for one in chat_ctx.messages() if one.role == "user" and one is not message)


def _carry_back(prefixed: _Prefixed, chat_ctx: llm.ChatContext) -> None:
    """Do to the context what the node did to its copy, if anything: livekit goes on with it after the node."""
    own = [] if prefixed.own is None else [prefixed.own]
    items = [one for item in prefixed.context.items for one in (own if item is prefixed.prefixed else [item])]
    if items != prefixed.items:
        chat_ctx.items[:] = items


async def _carrying_back(
    chunks: AsyncIterable[Any], prefixed: _Prefixed, chat_ctx: llm.ChatContext
) -> AsyncIterator[Any]:
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        _carry_back(prefixed, chat_ctx)
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
