"""LLM call 2: what it is asked, and that its answer holds nothing that it was not asked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.ingestion.answers import Answers
from memory.ingestion.extraction import Extraction
from memory.ingestion.resolution import (
    CandidateEntity,
    Doubt,
    EntityVerdict,
    EntityVerdictAnswer,
    FactVerdict,
    FactVerdictAnswer,
    KnownText,
    NewFact,
    Question,
    ResolutionAnswer,
    Verdict,
    resolve,
)
from memory.limits import CHUNK_ANSWERS_BYTES_MAX
from memory.providers.language import OpenAiLanguageModel
from tests.support.graph_llm import GraphLLM
from tests.support.heard import fact
from tests.support.scripted_answers import Scripted

QUESTION = Question(
    new=(
        NewFact("uuid-new-1", "User moved to Leeds", ("uuid-old-1", "uuid-old-2")),
        NewFact("uuid-new-2", "User's cat is called Biscuit", ("uuid-old-3",)),
        NewFact("uuid-new-3", "User lives in Leeds", ("uuid-new-1", "uuid-old-1")),
    ),
    known=(
        KnownText("uuid-old-1", "User lives in York"),
        KnownText("uuid-old-2", "User works at Acme"),
        KnownText("uuid-old-3", "User's cat is called Biscuit."),
    ),
    entities=(Doubt("Omar K.", "Omar", ("c-omar", "c-other")), Doubt("x", "Zed", ("c-other",))),
    candidates=(CandidateEntity("c-omar", "Omar Khan", "User's brother"), CandidateEntity("c-other", "Order 4471")),
)


async def test_tells_repetitions_and_contradictions_in_one_call(llm: OpenAiLanguageModel, server: GraphLLM) -> None:
    verdict = await resolve(llm, QUESTION)
    assert verdict.facts == (
        FactVerdict("uuid-new-1", None, ("uuid-old-1",)),
        FactVerdict("uuid-new-2", "uuid-old-3", ()),
        FactVerdict("uuid-new-3", "uuid-new-1", ("uuid-old-1",)),
    )
    assert verdict.entities == (EntityVerdict("Omar K.", "c-omar"), EntityVerdict("x", None))
    assert server.stats.llm_calls == 1


async def test_the_llm_sees_short_ids_only(llm: OpenAiLanguageModel, server: GraphLLM) -> None:
    await resolve(llm, QUESTION)
    shown = json.loads(server.asked[0].text)
    assert [new["id"] for new in shown["new"]] == ["n1", "n2", "n3"]
    assert shown["new"][2]["compare_with"] == ["n1", "k1"]
    assert "uuid" not in server.asked[0].text


async def test_asks_nothing_where_nothing_is_in_doubt(llm: OpenAiLanguageModel, server: GraphLLM) -> None:
    assert await resolve(llm, Question(new=(NewFact("a", "User lives in Leeds", ()),))) == Verdict()
    assert not server.asked


@pytest.mark.parametrize("twist", ["invents", "omits", "misattributes", "duplicates"])
async def test_a_bad_answer_is_cut_down_to_what_was_asked(
    llm: OpenAiLanguageModel, server: GraphLLM, twist: str
) -> None:
    server.trouble("chat", twist)
    verdict = await resolve(llm, QUESTION)
    assert verdict.facts
    assert verdict.entities
    assert_asked(QUESTION, verdict)


def assert_asked(question: Question, verdict: Verdict) -> None:
    compare = {new.id: set(new.compare_with) - {new.id} for new in question.new}
    order = [new.id for new in question.new]
    same = {each.new: each.duplicate_of for each in verdict.facts}
    assert [each.new for each in verdict.facts] == [new for new in order if new in same]
    for each in verdict.facts:
        assert set(each.contradicts) <= compare[each.new]
        assert each.duplicate_of not in each.contradicts
        if each.duplicate_of in order:
            assert order.index(each.duplicate_of) < order.index(each.new)
            assert same.get(each.duplicate_of) is None  # itself no repetition
    candidates = {doubt.id: doubt.candidates for doubt in question.entities}
    assert len({each.entity for each in verdict.entities}) == len(verdict.entities)
    for told in verdict.entities:
        assert told.same_as is None or told.same_as in candidates[told.entity]


IDS = st.sampled_from([f"{letter}{number}" for letter in "knec" for number in range(1, 5)] + ["", "x", "uuid-old-1"])
ANSWERS = st.builds(
    ResolutionAnswer,
    facts=st.lists(
        st.builds(
            FactVerdictAnswer, new=IDS, duplicate_of=st.one_of(st.none(), IDS), contradicts=st.lists(IDS, max_size=4)
        ),
        max_size=6,
    ),
    entities=st.lists(st.builds(EntityVerdictAnswer, entity=IDS, same_as=st.one_of(st.none(), IDS)), max_size=4),
)


@given(ANSWERS)
async def test_whatever_an_llm_says_only_what_was_asked_is_heard(answer: ResolutionAnswer) -> None:
    assert_asked(QUESTION, await resolve(Scripted(answer), QUESTION))


# -- kept with the chunk


def test_answers_are_kept_and_a_verdict_counts_for_its_own_question() -> None:
    verdict = Verdict((FactVerdict("uuid-new-1", None, ("uuid-old-1",)),), (EntityVerdict("x", None),))
    extraction = Extraction((), (fact('User\'s folder is "{}" \U0001f600', "{}", 0, 2),))
    text = Answers().with_extraction(extraction).with_verdict(QUESTION, verdict).dump()
    loaded = Answers.load(text)
    assert loaded.extraction == extraction
    assert loaded.verdict_on(QUESTION) == verdict
    assert loaded.verdict_on(Question(new=QUESTION.new)) is None
    assert loaded.with_extraction(extraction).verdict_on(QUESTION) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"v": 99}', '{"v": 1, "extraction": {"facts": 3}}', "[" * 99_999]
)
def test_what_cannot_be_read_is_asked_for_again(text: str) -> None:
    assert Answers.load(text) == Answers()


def test_answers_beyond_their_bound_are_not_kept() -> None:
    big = Extraction((), (fact("x" * CHUNK_ANSWERS_BYTES_MAX, "x"),))
    assert Answers().with_extraction(big).dump() == ""
