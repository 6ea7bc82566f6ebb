"""What is confidential, by a mark or by the deployment's rule, is in nothing that ingestion makes or asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from memory.ingestion.asked import LanguageModels
from memory.ingestion.breaker import Breaker
from memory.ingestion.confidential import Confidential
from memory.ingestion.digesting import Digester, Teller
from memory.ingestion.tools import Outcome
from memory.knowledge_ports import Answer
from memory.models import Scope
from memory.providers.language import OpenAiLanguageModel
from memory.providers.summarizer import ExtractiveSummarizer
from tests.support.archives import entry
from tests.support.graph_llm import GraphLLM
from tests.support.ingesting import GrammarLLM, HashEmbedder, Plant

SECRETS = ("Avalon", "Excalibur")


class HeardLLM(GrammarLLM):
    """Keeps all that it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = ""

    async def answer(self, task: str, *, instructions: str, data: str, shape: type[Answer]) -> Answer:
        self.told += instructions + data
        return await super().answer(task, instructions=instructions, data=data, shape=shape)


class HeardEmbedder(HashEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.told = ""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.told += "\n".join(texts)
        return await super().embed(texts)


@pytest.fixture
def plant(plant: Plant) -> Plant:
    return replace(plant, llm=HeardLLM(), embedder=HeardEmbedder(), confidential=Confidential(["excalibur"]))


async def test_what_is_confidential_reaches_no_llm_no_embedder_no_fact_no_episode_and_no_digest(
    plant: Plant, scope: Scope
) -> None:
    said = [
        "I live in Leeds. <confidential>I live in Avalon.</confidential>",
        "[confidential] My dog is called Avalon.",
        "It guards Avalon. [/confidential] I am allergic to peanuts.",
        "My order Excalibur is late.",
    ]
    user = await plant.said(scope, [entry(text, minute=place) for place, text in enumerate(said)])
    assert await plant.ingest_all(user) == [Outcome.DONE]
    assert await plant.facts(scope) == ["User is allergic to peanuts", "User lives in Leeds"]
    assert isinstance(plant.llm, HeardLLM)
    assert isinstance(plant.embedder, HeardEmbedder)
    _, known = await plant.stores.knowledge.read(scope)
    digests = await plant.stores.digests.digests(scope, limit=10)
    [chunk] = [status.chunk for status in await plant.stores.chunks.statuses(state=None, limit=10)]
    made = json.dumps([asdict(known), [asdict(one) for one in digests], asdict(chunk)], default=str)
    graph = json.dumps(asdict(plant.graph.graphs[scope][1]), default=str)
    for place in (plant.llm.told, plant.embedder.told, made, graph):
        assert "Leeds" in place
        assert not [secret for secret in SECRETS if secret in place]
    archived = await plant.stores.archive.read(scope, after=0, limit=10)
    assert [one.record.to_dict()["content"] for one in archived] == said, "the user's own record keeps all of it"


async def ingested(plant: Plant, scope: Scope, session: str, minute: float, *texts: str) -> None:
    """A call, ingested before the next one begins."""
    said = [entry(text, session=session, minute=minute + place) for place, text in enumerate(texts)]
    user = await plant.said(scope, said, start=int(minute))
    assert await plant.ingest_all(user) == [Outcome.DONE]


async def summed_up(plant: Plant, scope: Scope, llm: OpenAiLanguageModel, *texts: str) -> None:
    """A call whose facts were given up on, so that its digest is asked for by itself."""
    user = await plant.said(scope, [entry(text, session="s9", minute=600) for text in texts], start=600)
    chunk = await plant.stores.chunks.next(user, now=plant.stores.clock.now())
    assert chunk is not None
    await plant.stores.chunks.failed(chunk, reason="a test", not_before=None)
    plant.stores.clock.seconds += 60.0
    teller = Teller(LanguageModels(lambda: llm), Breaker("The LLM", plant.stores.clock))
    digester = Digester(
        plant.stores.digests,
        ExtractiveSummarizer(),
        plant.stores.clock,
        plant.counters,
        confidential=plant.confidential,
        idle_s=30.0,
        teller=lambda: teller,
    )
    await digester.digest(user)


async def test_what_is_confidential_no_llm_sees(
    plant: Plant, scope: Scope, server: GraphLLM, llm: OpenAiLanguageModel
) -> None:
    asking = replace(plant, llm=cast("Any", llm))
    await ingested(asking, scope, "s1", 1, "I like peanuts. <confidential>I like Avalon.</confidential>")
    await ingested(
        asking, scope, "s2", 60, "I hate peanuts. [confidential] I hate Avalon.", "Avalon! [/confidential] OK."
    )
    await ingested(asking, scope, "s3", 120, "I love peanuts.", "I love peanuts on Excalibur.")
    await summed_up(asking, scope, llm, "I like peanuts. <confidential>Avalon</confidential>", "I like Excalibur.")
    assert set(server.stats.calls) == {"ExtractionAnswer", "ResolutionAnswer", "DigestAnswer"}
    assert len(server.asked) == server.stats.llm_calls
    for asked in server.asked:
        body = json.dumps(asked.body, ensure_ascii=False)
        assert "peanuts" in body
        assert not [secret for secret in SECRETS if secret in body], asked.shape


@pytest.mark.parametrize("fillers", [("", "I am allergic to Avalon. "), ("On Excalibur: ", "I own a falcon. ")])
async def test_what_is_confidential_over_many_chunks_no_llm_sees(
    plant: Plant, scope: Scope, fillers: tuple[str, str]
) -> None:
    begin, secret = fillers
    mark = ("<confidential>", "</confidential>") if not begin else ("", "")
    user = await plant.said(
        scope,
        [
            entry("I live in Leeds.", minute=0),
            entry(f"{begin}{mark[0]}{secret * 2_000}{mark[1]}", minute=1),
            entry("I am allergic to peanuts.", minute=2),
        ],
    )
    assert set(await plant.ingest_all(user)) == {Outcome.DONE}
    assert len(await plant.stores.chunks.statuses(state=None, limit=50)) > 3
    assert isinstance(plant.llm, HeardLLM)
    assert "peanuts" in plant.llm.told
    assert secret[:-1].split()[-1] not in plant.llm.told
    assert await plant.facts(scope) == ["User is allergic to peanuts", "User lives in Leeds"]
