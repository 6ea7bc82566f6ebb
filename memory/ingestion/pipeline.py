"""One chunk's way from its turns to facts: in SQL, in the graph, and announced to running calls.

::

    next -> turns -> extraction (LLM call 1) -> guards -> embedding -> near ones from the graph, states from SQL
         -> what is certain -> resolution (LLM call 2, where in doubt) -> patch -> one commit with the graph -> announce

Every step may be repeated: answers of the LLM are kept with the chunk, ids derive from it, the commit marks it done.
What fails because a provider or a store is away costs the chunk no attempt; what fails by itself is given up on after
``INGEST_ATTEMPTS_MAX``. Above: worker. Below: the pure steps (planning, drafting, merging, …), breaker, ports.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory.clock import Clock
from memory.counters import Counters
from memory.errors import (
    EmbedderUnavailable,
    GraphStale,
    ProviderAnswerInvalid,
    ProviderFault,
    ProviderRefused,
    ProviderUnavailable,
    StoreFault,
    StoreUnavailable,
)
from memory.identity import group_digest
from memory.ingestion.answers import Answers
from memory.ingestion.asked import AskedGraph, spent
from memory.ingestion.breaker import Breaker
from memory.ingestion.digests import noted
from memory.ingestion.drafting import Draft, undecided
from memory.ingestion.extraction import Extraction, extract
from memory.ingestion.graph_upkeep import restore_graph
from memory.ingestion.guards import guarded
from memory.ingestion.merging import merge
from memory.ingestion.planning import Plan, episode, plan
from memory.ingestion.resolution import Verdict, resolve
from memory.ingestion.telling import place_of
from memory.ingestion.tools import Outcome, Tools
from memory.knowledge import USER_ENTITY_KEY, Chunk, Patch, TurnPart
from memory.knowledge_ports import (
    GraphMatches,
    GraphStore,
    LanguageModel,
    Related,
    SessionRef,
    Usage,
)
from memory.limits import (
    BREAKER_OPEN_S,
    EMBED_REMOTE_TIMEOUT_S,
    GRAPH_CANDIDATES,
    INGEST_ATTEMPTS_MAX,
    INGEST_BACKOFF_S,
    INGEST_BACKOFF_S_MAX,
)
from memory.models import Scope

logger = logging.getLogger(__name__)

_RESTORES_MAX = 2  # of the graph in one commit: a second one is for a writer that came in between
_JITTER = 0.25
_OPERATOR_S = 4 * BREAKER_OPEN_S  # what somebody has to mend is looked at again so soon


@dataclass(slots=True)
class _Work:
    """A chunk under way, and what it took."""

    chunk: Chunk
    scope: Scope
    turns: Sequence[TurnPart]
    answers: Answers
    llm: LanguageModel
    dropped: int = 0  # statements, by the guards


class Ingestor:
    """Ingests users' chunks, one at a time for each user, by whoever calls. Belongs to one event loop.

    Counts ``ingest.<outcome>``, ``.facts``, ``.repeated``, ``.ended``, ``.dropped`` (by the guards), ``.restored``
    (graphs), ``.reused`` (answers) and ``.unannounced``.
    """

    def __init__(
        self,
        tools: Tools,
        clock: Clock,
        counters: Counters,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._tools, self._clock, self._uniform = tools, clock, uniform
        self.counters = counters
        self.llm_breaker = Breaker(f"The LLM ({tools.llms.name})", clock, uniform=uniform)
        self.embedder_breaker = Breaker(f"The embeddings ({tools.embedder.model})", clock, uniform=uniform)
        self._graph = AskedGraph(tools.graph, Breaker("FalkorDB", clock, uniform=uniform))
        self._problem, self._problem_until_s = "", 0.0

    @property
    def wait_s(self) -> float:
        """For how long no chunk can be ingested, because a provider or the graph is away."""
        breakers = (self.llm_breaker, self.embedder_breaker, self._graph.breaker)
        return max(breaker.wait_s for breaker in breakers)

    @property
    def problem(self) -> str:
        """What an operator has to mend, such as vectors of another model; "" if nothing was refused of late."""
        return self._problem if self._clock.monotonic() < self._problem_until_s else ""

    @property
    def graph_problem(self) -> str:
        """Why the graph did not do what it was asked for last; "" if it did."""
        return self._graph.breaker.state.reason

    async def ingest_next(self, user: int) -> Outcome:
        """Ingest the user's first waiting chunk, if its time has come.

        Raises:
            StoreUnavailable, StoreFault: SQL is away, or refuses; nothing is lost, and nothing counts.
        """
        chunk = await self._tools.chunks.next(user, now=self._clock.now())
        if chunk is None:
            return Outcome.NOTHING
        outcome = await self._settled(chunk)
        self.counters.add(f"ingest.{outcome}")
        return outcome

    async def interrupted(self, user: int) -> Outcome:
        """A worker ended, or was ended, while it had the user's first waiting chunk: count it as that chunk's fault.

        Raises:
            StoreUnavailable, StoreFault: from SQL.
        """
        chunk = await self._tools.chunks.next(user, now=self._clock.now())
        if chunk is None:
            return Outcome.NOTHING
        outcome = await self._failed(chunk, "the worker that had it ended without a word")
        self.counters.add(f"ingest.{outcome}")
        return outcome

    async def _settled(self, chunk: Chunk) -> Outcome:
        try:
            with self._tools.llms.one() as llm:
                return await self._ingest(chunk, llm)
        except ProviderAnswerInvalid as error:
            return await self._failed(chunk, str(error))
        except ProviderRefused as error:
            return await self._refused(chunk, str(error))
        except (ProviderFault, StoreUnavailable, GraphStale) as error:
            retry_after_s = error.retry_after_s if isinstance(error, ProviderUnavailable) else None
            return await self._waits(chunk, str(error), retry_after_s or 0.0)
        except StoreFault as error:
            if await self._refuses_everything(chunk):
                return await self._refused(chunk, str(error))
            return await self._failed(chunk, str(error))
        except Exception as error:  # whatever it is, this chunk has it again, and must not for ever
            return await self._failed(chunk, f"an error of the program: {place_of(error)}")

    async def _ingest(self, chunk: Chunk, llm: LanguageModel) -> Outcome:
        scope = await self._tools.knowledge.scope_of(chunk.user)
        if scope is None:
            return Outcome.NOTHING
        turns, before = await self._public(chunk), llm.usage
        work = _Work(chunk, scope, turns, Answers.load(chunk.answers), llm)
        patch = await self._patch(work) if turns else self._empty(chunk, turns)
        version = await self._commit(work, patch)
        if version is None:
            return Outcome.GONE
        await self._announce(scope, version)
        await self._note(work)
        self._tell(work, patch, spent(llm.usage, before))
        return Outcome.DONE

    async def _public(self, chunk: Chunk) -> list[TurnPart]:
        chunks, ref = self._tools.chunks, SessionRef(chunk.user, chunk.session_id)
        return await self._tools.confidential.turns(await chunks.turns(chunk), ref, chunk.span.first_cursor, chunks)

    def _empty(self, chunk: Chunk, turns: Sequence[TurnPart]) -> Patch:
        return Patch(episode=episode(chunk, turns, now=self._clock.now()))

    # -- from turns to a patch

    async def _patch(self, work: _Work) -> Patch:
        extraction = await self._extracted(work)
        kept = guarded(extraction, work.turns, reference_time=work.turns[0].said_at, user_name=_user_name(work.turns))
        work.dropped = sum(count for reason, count in kept.dropped.items() if reason != "times")
        planned = plan(work.chunk, work.turns, kept.extraction, now=self._clock.now())
        if not planned.said:
            return Patch(episode=planned.episode)
        draft = await self._drafted(work, planned)
        return merge(draft, await self._verdict(work, draft))

    async def _extracted(self, work: _Work) -> Extraction:
        if work.answers.extraction is not None:
            self.counters.add("ingest.reused")
            return work.answers.extraction
        name = _user_name(work.turns)
        extraction = await self.llm_breaker.ask(
            lambda: extract(work.llm, work.turns, reference_time=work.turns[0].said_at, user_name=name)
        )
        work.answers = work.answers.with_extraction(extraction)
        await self._keep(work)
        return extraction

    async def _verdict(self, work: _Work, draft: Draft) -> Verdict:
        question = undecided(draft)
        if question is None:
            return Verdict()
        if (kept := work.answers.verdict_on(question)) is not None:
            self.counters.add("ingest.reused")
            return kept
        verdict = await self.llm_breaker.ask(lambda: resolve(work.llm, question))
        work.answers = work.answers.with_verdict(question, verdict)
        await self._keep(work)
        return verdict

    async def _keep(self, work: _Work) -> None:
        await self._tools.chunks.keep_answers(work.chunk, work.answers.dump())

    async def _drafted(self, work: _Work, planned: Plan) -> Draft:
        vectors = await self._embedded(planned.texts)
        matches = await self._graph.matches(
            work.scope,
            entities=planned.entity_probes(vectors),
            facts=planned.fact_probes(vectors),
            limit=GRAPH_CANDIDATES,
        )
        return Draft(planned, vectors, matches, await self._related(work.scope, planned, matches))

    async def _embedded(self, texts: Sequence[str]) -> dict[str, bytes]:
        vectors = await self.embedder_breaker.ask(lambda: self._embed(texts))
        return dict(zip(texts, vectors, strict=True))

    async def _embed(self, texts: Sequence[str]) -> list[bytes]:
        try:
            async with asyncio.timeout(2 * EMBED_REMOTE_TIMEOUT_S):
                array = await self._tools.embedder.embed(texts)
        except EmbedderUnavailable as error:
            raise ProviderRefused(str(error)) from None
        except TimeoutError:
            raise ProviderUnavailable("The embeddings did not come in time.") from None
        except ProviderAnswerInvalid as error:
            # Whatever is said to it, an embedder answers with vectors: it is not the chunk's fault.
            raise ProviderUnavailable(str(error)) from None
        if array.shape != (len(texts), self._tools.embedder.dimension):
            raise ProviderUnavailable(f"The embedder gave {array.shape}, not {len(texts)} vectors of its dimension.")
        return [row.astype("<f4").tobytes() for row in array]

    async def _related(self, scope: Scope, planned: Plan, matches: GraphMatches) -> Related:
        return await self._tools.knowledge.related(
            scope,
            keys=planned.keys,
            entity_ids=_each_once(matches.entities),
            fact_ids=_each_once(matches.facts),
        )

    # -- from a patch to facts

    async def _commit(self, work: _Work, patch: Patch) -> int | None:
        """The new version; ``None``: the chunk is gone.

        Raises:
            GraphStale: somebody else changes the graph all the time.
        """
        shown = await self._is_shown(work.scope, patch)

        async def project(version: int) -> None:
            if shown:
                await self._graph.save(work.scope, patch, version=version, expected=version - 1)

        for _ in range(_RESTORES_MAX):
            try:
                return await self._tools.knowledge.commit(work.chunk, patch, project)
            except GraphStale:
                await self._restore(work)
        return await self._tools.knowledge.commit(work.chunk, patch, project)

    async def _is_shown(self, scope: Scope, patch: Patch) -> bool:
        """Whether the graph is to show the patch: a stranger of whom nothing is known costs none. The first fact finds
        it missing, and has it made with all that was said before."""
        if patch.facts or patch.wordings or patch.changed:
            return True
        related = await self._tools.knowledge.related(scope, keys=(USER_ENTITY_KEY,), entity_ids=(), fact_ids=())
        return bool(related.entities)

    async def _restore(self, work: _Work) -> None:
        async def graphs(_: str) -> GraphStore:
            return self._graph

        # Noted first: an erasure that comes while the graph is written is not overwritten for good.
        await restore_graph(work.scope, self._tools.knowledge, graphs, to_be_saved=True)
        self.counters.add("ingest.restored")
        logger.info("The graph of user %d was not what SQL knows; it was restored from there.", work.chunk.user)

    async def _announce(self, scope: Scope, version: int) -> None:
        try:
            await self._tools.notices.announce(scope, version=version)
        except (StoreUnavailable, StoreFault) as error:
            # Recall hosts look by themselves as well, only later.
            self.counters.add("ingest.unannounced")
            logger.warning("New facts of user %s could not be announced: %s", group_digest(scope), error)

    async def _note(self, work: _Work) -> None:
        """Keep the chunk's part of its session's digest; where that fails, the session is digested by itself later."""
        extraction = work.answers.extraction
        if extraction is None or not work.turns:
            return
        try:
            session = SessionRef(work.chunk.user, work.chunk.session_id)
            earlier = await self._tools.digests.digest(session)
            digest = noted(earlier, work.chunk, work.turns, extraction, work.llm.name)
            if digest is not None:
                await self._tools.digests.put(session, digest)
        except (StoreUnavailable, StoreFault) as error:
            logger.info("A session of user %d is digested later: %s", work.chunk.user, error)

    # -- what could not be

    async def _refused(self, chunk: Chunk, reason: str) -> Outcome:
        breakers = (self.llm_breaker, self.embedder_breaker, self._graph.breaker)
        if reason != self.problem and not any(breaker.state.refused for breaker in breakers):  # who tell it themselves
            logger.error("The operator has to act, chunks wait: %s", reason)
        self._problem = reason
        self._problem_until_s = self._clock.monotonic() + 2 * max(self.wait_s, _OPERATOR_S)
        return await self._waits(chunk, reason, _OPERATOR_S)

    async def _waits(self, chunk: Chunk, reason: str, at_least_s: float) -> Outcome:
        wait_s = max(at_least_s, self.wait_s, INGEST_BACKOFF_S) * self._uniform(1.0, 1.0 + _JITTER)
        await self._tools.chunks.failed(chunk, reason=reason, not_before=self._in(wait_s), counts=False)
        logger.info("A chunk of user %d waits for %.0f s: %s", chunk.user, wait_s, reason)
        return Outcome.WAITS

    async def _failed(self, chunk: Chunk, reason: str) -> Outcome:
        if chunk.attempts + 1 >= INGEST_ATTEMPTS_MAX:
            await self._tools.chunks.failed(chunk, reason=reason, not_before=None)
            logger.error(
                "Chunk %s of user %d was given up on after %d attempts: %s Its turns stay in the archive; "
                "python -m memory ingestion retry tries it again.",
                chunk.id,
                chunk.user,
                INGEST_ATTEMPTS_MAX,
                reason,
            )
            return Outcome.DEAD
        wait_s = min(INGEST_BACKOFF_S * 2.0**chunk.attempts, INGEST_BACKOFF_S_MAX)
        wait_s *= self._uniform(1.0 - _JITTER, 1.0 + _JITTER)
        await self._tools.chunks.failed(chunk, reason=reason, not_before=self._in(wait_s))
        logger.warning("A chunk of user %d failed, and is tried again in %.0f s: %s", chunk.user, wait_s, reason)
        return Outcome.FAILED

    async def _refuses_everything(self, chunk: Chunk) -> bool:
        """Whether it is the graph's fault and not this chunk's: then it refuses a plain question as well."""
        try:
            scope = await self._tools.knowledge.scope_of(chunk.user)
            if scope is not None:
                await self._graph.state(scope)
        except (StoreFault, StoreUnavailable, ProviderFault):
            return True
        return False

    def _in(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)

    def _tell(self, work: _Work, patch: Patch, used: Usage) -> None:
        ended = sum(fact.invalid_at is not None for fact in patch.changed)
        figures = {"facts": len(patch.facts), "repeated": len(patch.wordings), "ended": ended, "dropped": work.dropped}
        for name, figure in figures.items():
            self.counters.add(f"ingest.{name}", figure)
        cost = self._tools.cost_usd(used)
        logger.info(
            "Ingested a chunk of user %d: %d turns, %s; %d LLM calls, %d tokens in, %d out%s.",
            work.chunk.user,
            len(work.turns),
            ", ".join(f"{figure} {name}" for name, figure in figures.items()),
            used.calls,
            used.input_tokens,
            used.output_tokens,
            "" if cost is None else f", {cost:.6f} USD",
        )


def _user_name(turns: Sequence[TurnPart]) -> str:
    """What the user is called by whoever recorded the turns; "" if nobody said."""
    return next((turn.name for turn in turns if turn.speaker == "user" and turn.name.strip()), "")


def _each_once(groups: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(id_ for group in groups for id_ in group))
