"""What is confidential, by a mark or by the deployment's rule, is in nothing that ingestion makes or asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memory.ingestion.confidential import Confidential
from memory.ingestion.tools import Outcome
from memory.knowledge_ports import Answer
from tests.support.archives import entry, new_scope, sqlite_url
from tests.support.ingesting import DIMENSION, GrammarLLM, HashEmbedder, Plant
from tests.support.knowing import opened

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
async def plant(data_dir: Path) -> AsyncIterator[Plant]:
    async with opened(sqlite_url(data_dir), vectors=f"hashed/{DIMENSION}") as stores:
        stores.clock.seconds = 86_400.0
        yield Plant(stores, llm=HeardLLM(), embedder=HeardEmbedder(), confidential=Confidential(["excalibur"]))


async def test_what_is_confidential_reaches_no_llm_no_embedder_no_fact_no_episode_and_no_digest(plant: Plant) -> None:
    scope = new_scope()
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
