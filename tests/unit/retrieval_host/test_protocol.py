"""Frames: what is sent arrives, whatever it holds; what is no frame of this protocol is refused without quoting it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.limits import HOST_MESSAGE_BYTES_MAX, RECALL_QUERY_CHARS_MAX
from memory.models import Passage, Recall
from memory.ports import Selection
from memory.retrieval.protocol import Malformed, Reply, Request, read_frame
from tests.support.fact_source import fact
from tests.support.recalls import NOON, scope_of


async def read(data: bytes) -> bytes | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await read_frame(reader)


def asked(frame: bytes) -> Request:
    body = asyncio.run(read(frame))
    assert body is not None
    return Request.parse(body)


def told(reply: Reply) -> Reply:
    body = asyncio.run(read(reply.frame()))
    assert body is not None
    return Reply.parse(body)


def passage(text: str, number: int = 0) -> Passage:
    return Passage(id=f"p{number}", session_id="s", timestamp=NOON, role="user", text=text, name="Zoë", score=1.5)


@given(query=st.text(max_size=200), ids=st.frozensets(st.text(max_size=40), max_size=5), budget=st.floats(0, 1e6))
def test_a_request_arrives_as_it_was_sent(query: str, ids: frozenset[str], budget: float) -> None:
    query = query.encode(errors="replace").decode()
    ids = frozenset(each.encode(errors="replace").decode() for each in ids)
    request = Request(id=7, op="recall", scope=scope_of(), query=query, limit=3, budget_ms=budget, exclude_ids=ids)
    assert asked(request.frame()) == request


@pytest.mark.parametrize(
    "selection",
    [Selection("all", through="0001-2"), Selection("session", session_id="s"), Selection("since", since=NOON)],
)
def test_an_erasure_arrives_as_it_was_sent(selection: Selection) -> None:
    request = Request(id=1, op="erase", scope=scope_of(), selection=selection)
    assert asked(request.frame()).selection == selection


@given(text=st.text(min_size=1, max_size=300))
def test_a_recall_arrives_as_it_was_sent(text: str) -> None:
    recall = Recall(passages=(passage(text), passage("x", 1)), degraded=("vectors",), elapsed_ms=1.25)
    reply = Reply(id=3, recall=recall)
    assert told(reply) == reply


@pytest.mark.parametrize(
    "reply",
    [
        Reply(id=1),
        Reply(id=2, recall=Recall()),
        Reply(id=3, erased=4),
        Reply(id=5, stats={"pid": 1}),
        Reply(id=6, error="x"),
    ],
)
def test_any_reply_arrives_as_it_was_sent(reply: Reply) -> None:
    assert told(reply) == reply


def test_facts_arrive_as_they_were_sent_and_those_that_do_not_fit_are_left_out_from_the_end() -> None:
    recall = Recall(facts=(fact("The user's home is in York", turns=["t1"]),), state="1/2")
    assert told(Reply(id=3, recall=recall)).recall == recall
    many = Recall(facts=tuple(fact(f"{number} " + "x" * 3_000_000) for number in range(9)))
    cut = told(Reply(id=3, recall=many)).recall
    assert cut is not None
    assert (cut.facts, cut.degraded) == (many.facts[:4], ("size",))


def test_passages_that_do_not_fit_into_one_message_are_left_out_from_the_end() -> None:
    recall = Recall(passages=tuple(passage("x" * 3_000_000, number) for number in range(9)))
    kept = told(Reply(id=1, recall=recall)).recall
    assert kept is not None
    assert [each.id for each in kept.passages] == ["p0", "p1", "p2", "p3"]
    assert kept.degraded == ("size",)


async def test_the_end_of_a_connection_is_no_message() -> None:
    assert await read(b"") is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        b"\0\0\0\x05{}",
        b"\xff\xff\xff\xff" + b"x" * 10,
        b"\0\0\0\x02[]",
        b"\0\0\0\x04nope",
        b"\0\0\0\x02\xff\xfe",
        b"GET / HTTP/1.1\r\n\r\n",
        len(b"[" * 100_000).to_bytes(4, "big") + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("kind", [Request, Reply])
async def test_what_is_no_frame_is_refused(data: bytes, kind: type[Request] | type[Reply]) -> None:
    async def parsed() -> None:
        body = await read(data)
        assert body is not None
        kind.parse(body)

    with pytest.raises(Malformed):
        await parsed()


SCOPE = scope_of().model_dump(mode="json")


def test_a_request_without_more_than_it_needs_is_taken() -> None:
    assert Request.parse(json.dumps({"id": 1, "op": "recall", "scope": SCOPE}).encode()).scope == scope_of()


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"id": 1},
        {"id": "x", "op": "ping"},
        {"id": 1, "op": "drop"},
        {"id": 1, "op": "recall"},
        {"id": 1, "op": "recall", "scope": {"org_id": "secret"}},
        {"id": 1, "op": "recall", "scope": SCOPE | {"self": "secret"}},
        {"id": 1, "op": "recall", "scope": SCOPE, "limit": 0},
        {"id": 1, "op": "recall", "scope": SCOPE, "limit": 10**9},
        {"id": 1, "op": "recall", "scope": SCOPE, "budget_ms": "secret"},
        {"id": 1, "op": "recall", "scope": SCOPE, "query": "secret" * RECALL_QUERY_CHARS_MAX},
        {"id": 1, "op": "recall", "scope": SCOPE, "exclude_ids": [{"secret": 1}]},
        {"id": 1, "op": "erase", "scope": SCOPE, "selection": {"what": "secret"}},
    ],
)
def test_what_is_no_request_is_refused_without_quoting_it(message: dict[str, Any]) -> None:
    with pytest.raises(Malformed) as refused:
        Request.parse(json.dumps(message).encode())
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("reply", [Reply(id=1, error="secret \udc80"), Reply(id=1, stats={"problem": "secret \udc80"})])
def test_what_no_text_holds_is_refused_without_quoting_it(reply: Reply) -> None:
    with pytest.raises(Malformed) as refused:
        reply.frame()
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_message_over_the_bound_is_not_made() -> None:
    with pytest.raises(Malformed):
        Reply(id=1, error="x" * HOST_MESSAGE_BYTES_MAX).frame()


@pytest.mark.parametrize("recall", [1, "secret", {"passages": [{"id": 1}]}, {"facts": [{"text": "", "secret": 1}]}])
def test_what_is_no_recall_is_refused_without_quoting_it(recall: Any) -> None:
    with pytest.raises(Malformed) as refused:
        Reply.parse(json.dumps({"id": 1, "recall": recall}).encode())
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_a_newer_host_tells_of_passages_besides_is_passed_over() -> None:
    sent = json.loads(Reply(id=1, recall=Recall(passages=(passage("x"),))).frame()[4:])
    sent["recall"]["passages"][0]["mood"] = sent["recall"]["v"] = sent["news"] = 2
    assert Reply.parse(json.dumps(sent).encode()).recall == Recall(passages=(passage("x"),))
