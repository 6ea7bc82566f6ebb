"""No relevant memory, no block: what opens the gate and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval import relevance
from memory.retrieval.query import _PHRASE_WORDS, Query, names_something, read
from memory.retrieval.relevance import Evidence
from memory.retrieval.vocabulary import SMALL_TALK
from tests.support.turns import NOW, find, ids, index_of, turn


def _query(text: str) -> Query:
    return read(text, NOW)


def _bears(text: str, *, share: float = 0.0, cosine: float | None = None, turns: int = 20, named: bool = False) -> bool:
    return relevance.bears(_query(text), [Evidence(share, cosine, 1.0, 0.0)], turns, names_speaker=named)


@pytest.mark.parametrize(
    "text", ["hello there", "thanks, bye", "what time is it", "ok, good morning!", "one moment please", ""]
)
def test_small_talk_names_nothing(text: str) -> None:
    assert not _query(text).content
    assert not names_something(text)
    assert not _bears(text, share=1.0, cosine=0.4)
    index = index_of([turn("hello there, good morning, what time is it?"), turn("thanks, bye, one moment", minute=1)])
    assert find(index, text, min_relevance=True) == []


@pytest.mark.parametrize(
    ("text", "memory", "latest"),
    [
        ("what did I just tell you?", True, True),
        ("same address as last time?", True, True),
        ("where did we leave off?", False, False),
        ("do you remember me?", True, False),
        ("who am I?", True, False),
        ("what is my name?", True, False),
        ("remind me of the Spanish singer you recommended in our last conversation about Catalonia", True, False),
    ],
)
def test_asking_for_memory_in_so_many_words_opens_the_gate(text: str, memory: bool, latest: bool) -> None:
    query = _query(text)
    assert (query.memory, query.latest) == (memory, latest)
    assert names_something(text) == bool(query.content)


@given(st.lists(st.sampled_from([*sorted(_PHRASE_WORDS), *sorted(SMALL_TALK), "garden", "don't", "1,000"])))
def test_whether_a_text_names_something_is_told_without_looking_for_phrases_first(spoken: list[str]) -> None:
    text = " ".join(spoken)
    assert names_something(text) == bool(_query(text).content)


def test_the_callers_own_matters_need_less_than_the_worlds() -> None:
    assert _bears("where do I live?", cosine=0.25)
    assert not _bears("where is Brazil?", cosine=0.25)
    assert _bears("where does Caroline live?", cosine=0.25, named=True)
    assert _bears("where is Brazil?", cosine=0.4)


def test_a_longer_history_needs_more() -> None:
    wanted = [relevance.cosine_wanted(turns, personal=True) for turns in (0, 1, 20, 100, 1_000, 100_000)]
    assert wanted == sorted(wanted)
    assert wanted[0] == relevance.COSINE_MIN
    assert wanted[-1] == relevance.COSINE_MAX


def test_words_and_meaning_together_need_less_of_each() -> None:
    assert _bears("do I have a dog?", share=0.5, cosine=0.15)
    assert not _bears("do I have a dog?", share=0.5, cosine=0.05)
    assert not _bears("do I have a dog?", share=0.1, cosine=0.15)


def test_without_vectors_words_decide() -> None:
    assert _bears("do I have a dog?", share=0.5)
    assert not _bears("do I have a dog?", share=0.1)


def test_across_scripts_a_cosine_says_nothing() -> None:
    assert not _bears("كيف الطقس في باريس", cosine=0.8)
    assert _bears("حساسية", share=0.9, cosine=0.1)


def test_a_day_named_by_the_caller_opens_the_gate() -> None:
    assert _bears("what did I do last Tuesday?")
    assert not _bears("which holiday is last Tuesday?")


def test_hits_without_any_merit_of_their_own_are_left_out() -> None:
    query = _query("do I have a dog, and when did I get it yesterday?")
    near = query.periods[0].start
    assert relevance.worth_showing(query, Evidence(0.3, None, 0.1, 0.0))
    assert relevance.worth_showing(query, Evidence(0.0, 0.3, 0.1, 0.0))
    assert relevance.worth_showing(query, Evidence(0.0, 0.0, 0.6, 0.0))
    assert relevance.worth_showing(query, Evidence(0.0, 0.0, 0.1, near))
    assert not relevance.worth_showing(query, Evidence(0.1, 0.1, 0.1, 0.0))


def test_an_unrelated_question_gets_nothing() -> None:
    index = index_of([turn("my dog is called Biscuit"), turn("I live in Lyon", minute=1)])
    assert find(index, "who wrote Hamlet?", min_relevance=True) == []
    assert ids(find(index, "what is my dog called?", min_relevance=True))[0] == "my dog is called Biscuit"


def test_what_has_no_vector_yet_is_judged_by_its_words() -> None:
    far = Evidence(0.0, 0.05, 1.0, 0.0)
    said_just_now = Evidence(0.9, None, 0.6, 0.0)
    query = _query("what is the code word for the garage?")
    assert relevance.bears(query, [far, said_just_now], 20, names_speaker=False)
    assert not relevance.bears(query, [far, Evidence(0.1, None, 0.6, 0.0)], 20, names_speaker=False)


def test_the_assistants_greeting_is_nothing_to_remember() -> None:
    index = index_of(
        [
            turn("Hello! How can I help you today?", "greeting", role="assistant"),
            turn("I am allergic to peanuts.", "fact", minute=1),
            turn("Do you want the window seat?", "asked", minute=2, role="assistant"),
            turn("Yes, please.", "answer", minute=3),
        ]
    )
    found = ids(find(index, "am I allergic to peanuts, and which seat do I want?", min_relevance=True))
    assert "greeting" not in found
    assert {"fact", "asked", "answer"} <= set(found)


def test_what_was_asked_again_and_again_leaves_room_for_the_answer() -> None:
    asked = [turn("What is my cat called?", f"asked{n}", minute=10 * n, session=f"s{n}") for n in range(1, 12)]
    told = [
        turn("You told me: my cat is called", f"told{n}", minute=10 * n + 1, session=f"s{n}", role="assistant")
        for n in range(1, 12)
    ]
    index = index_of([turn("My cat is called Biscuit.", "fact", session="s0"), *asked, *told])
    found = ids(find(index, "what is my cat called", min_relevance=True))
    assert "fact" in found
    assert not {hit for hit in found if hit.startswith("asked")}
    assert len([hit for hit in found if hit.startswith("told")]) <= 1
