"""The test LLM itself: it answers as Graphiti's own client asks, goes wrong on demand, and runs as a program."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import graph_server
from tests.support.graph_grammar import Reader, compare, meaning
from tests.support.graph_llm import DIMENSION, NAMED, GraphLLM, serving, vector
from tests.support.heard import NOW


def read(*lines: str) -> list[str]:
    reader = Reader()
    for place, line in enumerate(lines):
        reader.turn(2 * place, line, NOW)
    return [said.text for said in reader.said]


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("I moved to Leeds last week.", ["User moved to Leeds"]),
        ("my cat is called Biscuit", ["User's cat is called Biscuit"]),
        ("I'm allergic to nuts and my order 4471 is late", ["User is allergic to nuts", "User's order 4471 is late"]),
        ("I am not allergic to nuts any more", ["User is not allergic to nuts any more"]),
        ("I prefer email", ["User prefers email"]),
        ("Can you cancel the appointment on Tuesday?", ["User cancelled the appointment on Tuesday"]),
        ("My appointment is on Monday, no sorry, Tuesday.", ["User's appointment is on Tuesday"]),
        ("I have an appointment on Monday. No sorry, Tuesday.", ["User has an appointment on Tuesday"]),
        ("If I had a dog I would be happy. Am I allergic to nuts?", []),
        ("Ich wohne in Hamburg.", ["User wohnt in Hamburg"]),
        ("Soy alérgica a las nueces", ["User es alérgico a las nueces"]),
        ("عندي حساسية من المكسرات", ["User لديه حساسية من المكسرات"]),
    ],
)
def test_the_grammar_reads_simple_sentences(line: str, facts: list[str]) -> None:
    assert read(line) == facts


def test_the_grammar_keeps_people_apart_and_takes_jokes_back() -> None:
    assert read("My brother Omar is a pilot. He is terrified of dogs.")[1:] == [
        "User's brother Omar is a pilot",
        "Omar is terrified of dogs",
    ]
    assert read("I take warfarin.", "Hi, this is Zoe now, I take no medicines.") == ["User takes warfarin"]
    assert read("I am allergic to nuts.", "I was joking, I am not allergic to nuts.") == [
        "User is not allergic to nuts"
    ]


def test_the_grammar_compares_meanings() -> None:
    others = [("york", "User lives in York"), ("leeds", "User lives in Leeds"), ("tea", "User loves tea")]
    assert compare("User moved to Leeds", others) == ("leeds", ["york"])
    assert compare("User moved back to Leeds", others) == (None, ["york"])
    assert compare("User hates tea", others) == (None, ["tea"])
    assert meaning("colourless green ideas") is None


@pytest.mark.parametrize("mode", ["json_schema", "json_object"])
async def test_graphitis_own_client_is_understood(
    mode: Literal["json_schema", "json_object"], monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]
) -> None:
    require("graphiti_core", "falkordb", extra="graph")
    monkeypatch.setenv("GRAPHITI_TELEMETRY_ENABLED", "false")
    from graphiti_core import Graphiti
    from graphiti_core.cross_encoder.client import CrossEncoderClient
    from graphiti_core.driver.falkordb_driver import FalkorDriver
    from graphiti_core.embedder.openai import OpenAIEmbedder, OpenAIEmbedderConfig
    from graphiti_core.llm_client.config import LLMConfig
    from graphiti_core.llm_client.openai_generic_client import OpenAIGenericClient
    from graphiti_core.nodes import EpisodeType

    class NoRanks(CrossEncoderClient):
        async def rank(self, query: str, passages: list[str]) -> list[tuple[str, float]]:
            return [(passage, 1.0) for passage in passages]

    async with GraphLLM() as llm:
        with graph_server.running() as server:
            graphiti = Graphiti(
                graph_driver=FalkorDriver(host="127.0.0.1", port=server.port, database="user"),
                llm_client=OpenAIGenericClient(
                    LLMConfig(api_key="k", base_url=llm.url, model="m"), structured_output_mode=mode
                ),
                embedder=OpenAIEmbedder(OpenAIEmbedderConfig(api_key="k", base_url=llm.url, embedding_dim=DIMENSION)),
                cross_encoder=NoRanks(),
            )
            await graphiti.build_indices_and_constraints()
            edges: list[Any] = []
            for day, body in enumerate(("User: I live in York. I am allergic to nuts.", "User: I moved to Leeds.")):
                added = await graphiti.add_episode(
                    name=f"session_{day}",
                    episode_body=f"{body}\nAssistant: Noted.",
                    source_description="Voice conversation",
                    reference_time=NOW + timedelta(days=day),
                    source=EpisodeType.message,
                    group_id="user",
                )
                edges = added.edges
            await graphiti.close()  # type: ignore[no-untyped-call]
        asked = set(llm.stats.calls)
    ended = {edge.fact: edge.invalid_at is not None for edge in edges}
    assert ended == {"User moved to Leeds": False, "User lives in York": True}
    assert asked >= {"ExtractedEntities", "ExtractedEdges", "EdgeDuplicate", "SummarizedEntities", "embeddings"}


@given(st.text(), st.sampled_from((1, 8, 384, 1_536)))
def test_vectors_are_the_same_each_time_and_of_unit_length(text: str, dimension: int) -> None:
    made = vector(text, dimension)
    assert made.shape == (dimension,)
    assert np.linalg.norm(made) == pytest.approx(1.0, abs=1e-5)
    assert np.array_equal(made, vector(text, dimension))


def test_texts_alike_are_nearer() -> None:
    leeds = vector("User lives in Leeds", DIMENSION)
    assert leeds @ vector("User moved to Leeds", DIMENSION) > leeds @ vector("User's cat is called Biscuit", DIMENSION)


def post(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_it_runs_on_a_thread_and_counts() -> None:
    with serving(dimension=8) as llm:
        answer = post(f"{llm.url}/embeddings", {"input": "tea", "model": "m"})
        assert len(answer["data"][0]["embedding"]) == 8
        assert llm.stats.texts == 1


def test_it_runs_as_a_program_that_is_steered_and_asked_over_http() -> None:
    command = [sys.executable, "-m", "tests.support.graph_llm", "--port", "0", "--trouble", "embeddings:wrong-length"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
            body = {"input": ["tea"], "model": "m"}
            assert len(post(f"{url}/embeddings", body)["data"][0]["embedding"]) == DIMENSION + 1
            post(url.removesuffix("/v1") + "/trouble", {"mend": True, "endpoint": "embeddings", "next": ["429"]})
            with pytest.raises(urllib.error.HTTPError) as caught:
                post(f"{url}/embeddings", body)
            assert (caught.value.code, caught.value.headers["Retry-After"]) == (429, "20")
            assert len(post(f"{url}/embeddings", body)["data"][0]["embedding"]) == DIMENSION
            with urllib.request.urlopen(url.removesuffix("/v1") + "/stats", timeout=10) as answer:
                assert json.load(answer)["calls"] == {"embeddings": 3}
        finally:
            process.kill()


async def test_every_named_trouble_is_one_of_a_request() -> None:
    async with GraphLLM() as llm:
        for name in NAMED.keys() - {"silent", "broken"}:
            llm.trouble("chat", name)
            with_trouble = await asyncio.to_thread(status, llm.url)
            without = await asyncio.to_thread(status, llm.url)
            assert (with_trouble, without) == (NAMED[name].status, 200)


def status(url: str) -> int:
    try:
        post(f"{url}/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hello"}]})
    except urllib.error.HTTPError as error:
        return error.code
    return 200
