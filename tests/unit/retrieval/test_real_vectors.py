"""Index, gate and the real embedder together: what callers say in other words, and what is no question at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from memory.providers.embedders import LocalEmbedder
from memory.retrieval.index import UserIndex
from tests.support.turns import find, ids, index_of, turn

FACTS = (
    "I am allergic to peanuts, badly",
    "My dog is called Biscuit",
    "Please ship it to 12 Elm Road",
    "I moved to Lyon last year",
    "My brother Omar is a pilot",
    "My flight is on Monday at nine",
    "I usually play the violin in the evening",
    "أحمد لديه حساسية الفول السوداني",
    "My order number is 1234",
)
Ask = Callable[[UserIndex, str], list[str]]


@pytest.fixture(scope="module")
def embedder() -> Iterator[LocalEmbedder]:
    made = LocalEmbedder()
    yield made
    asyncio.run(made.aclose())


@pytest.fixture(scope="module")
def history(embedder: LocalEmbedder) -> UserIndex:
    index = index_of((turn(fact, minute=day * 1440, session=f"{day}") for day, fact in enumerate(FACTS)), dimension=384)
    index.set_vectors(index.ids(), embedder.encode(FACTS))
    return index


@pytest.fixture(scope="module")
def ask(embedder: LocalEmbedder) -> Ask:
    return lambda index, query: ids(find(index, query, vector=embedder.encode([query])[0], min_relevance=True))


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("which food should I stay away from?", 0),
        ("am I allergic to anything?", 0),
        ("what's my pet's name?", 1),
        ("in which city is my home?", 3),
        ("what does my sibling do for a living?", 4),
        ("when do I travel?", 5),
        ("do I play an instrument?", 6),
    ],
)
def test_a_fact_is_found_in_other_words(ask: Ask, history: UserIndex, query: str, fact: int) -> None:
    assert ask(history, query)[0] == FACTS[fact]


@pytest.mark.case("L21")
@pytest.mark.parametrize(
    ("query", "fact"),
    [
        *((query, 7) for query in ("حساسية؟", "احمد", "حَسَاسِيَّة", "\u200fأحمد\u200f")),
        *((query, 0) for query in ("“peanut”", "peanut…", "pea\u200bnut", "mujhe peanut se allergy hai")),
        ("order １２３４", 8),
        ("order ١٢٣٤", 8),
    ],
)
def test_L21_own_spelling_passes_the_gate(ask: Ask, history: UserIndex, query: str, fact: int) -> None:
    assert ask(history, query)[0] == FACTS[fact]


@pytest.mark.case("L11")
def test_L11_the_address_of_last_time_is_recalled(ask: Ask, history: UserIndex) -> None:
    assert FACTS[2] in ask(history, "same address as last time?")


@pytest.mark.parametrize(
    "query",
    [
        "hello there",
        "good morning!",
        "thanks, bye",
        "what time is it?",
        "okay, one moment please",
        "can you hear me?",
        "tell me a joke",
        "who wrote Hamlet?",
        "what is the square root of 144?",
        "how tall is Mount Everest?",
        "مرحبا كيف حالك",
        "你好",
    ],
)
def test_no_relevant_memory_no_hit(ask: Ask, history: UserIndex, query: str) -> None:
    assert ask(history, query) == []


@pytest.mark.case("L37")
def test_L37_a_fact_of_turn_3_is_found_after_10_000(ask: Ask) -> None:
    said = [f"we spoke about item {number % 997} of the list and its colour" for number in range(10_000)]
    said[3] = "my locker at the pool has the code word marble"
    index = index_of((turn(text, f"t{number}", minute=number) for number, text in enumerate(said)), dimension=384)
    assert ask(index, "which word opens my locker at the pool?")[0] == "t3"
