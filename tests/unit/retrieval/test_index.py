"""The user's index: what is found, in what order, and what is gone."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.bm25 import TermHasher
from memory.retrieval.index import Hit, IndexedTurn, UserIndex
from memory.retrieval.text import stems
from tests.support.turns import (
    DIMENSION,
    HISTORIES,
    KEY,
    NOW,
    TEXTS,
    find,
    ids,
    index_of,
    turn,
    vector_of,
    with_vectors,
)


def _plain(hits: list[Hit]) -> list[tuple[str, float]]:
    return [(hit.turn.id, round(hit.score, 4)) for hit in hits]


# -- what is found


def test_a_turn_is_found_at_once_by_its_words() -> None:
    index = index_of([turn("my dog is called Biscuit", minute=1), turn("I live in Lyon", minute=2)])
    index.add(turn("I am allergic to peanuts", "late", minute=3))
    assert ids(find(index, "which allergies do I have?"))[0] == "late"


def test_a_turn_comes_back_as_it_was() -> None:
    said = datetime(2025, 5, 1, 10, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    kept = IndexedTurn("id-1", "s-1", said, "assistant", "  Ünï\u200bcode \ud800  ", "Zoë", "text", "fr-FR")
    (hit,) = find(index_of([kept]), "unicode")
    assert hit.turn == kept
    assert hit.turn.timestamp.tzinfo is UTC


@pytest.mark.parametrize("year", [1, 1900, 9999])
def test_any_date_there_is_can_be_kept(year: int) -> None:
    said = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    (hit,) = find(index_of([IndexedTurn("id", "s", said, "user", "an old story")]), "story")
    assert hit.turn.timestamp == said


def test_the_same_id_again_changes_nothing() -> None:
    index = index_of([turn("first", "it"), turn("second", "it")])
    assert [(hit.turn.id, hit.turn.text) for hit in find(index, "second")] == [("it", "first")]
    assert index.ids() == ["it"]
    assert len(index) == 1
    assert "it" in index


def test_the_name_and_the_month_are_words_of_a_turn() -> None:
    said = datetime(2025, 3, 9, tzinfo=UTC)
    index = index_of([turn("something"), IndexedTurn("it", "t", said, "user", "something", "Caroline")])
    assert ids(find(index, "Caroline"))[0] == "it"
    assert ids(find(index, "9 March 2025"))[0] == "it"


def test_an_empty_index_and_no_room_find_nothing() -> None:
    assert find(UserIndex(KEY, None), "anything") == []
    assert find(index_of([turn("anything")]), "anything", k=0) == []


def test_excluded_turns_are_not_returned() -> None:
    index = index_of(turn(f"peanut {number}", f"t{number}", session="ab"[number % 2]) for number in range(6))
    hits = index.search(
        "peanut",
        query_vector=None,
        k=9,
        now=NOW,
        exclude_ids=frozenset({"t0", "unknown"}),
        exclude_session="b",
        min_relevance=False,
    )
    assert sorted(ids(hits)) == ["t2", "t4"]


@pytest.mark.case("L37")
def test_L37_a_huge_turn_is_indexed_and_the_others_still_found() -> None:
    huge = " ".join(f"word{number}" for number in range(60_000))
    index = index_of([turn("my code word is marble", "it"), turn(huge, "huge", session="t")])
    assert ids(find(index, "code word marble"))[0] == "it"
    assert ids(find(index, "word59999"))[0] == "huge"


# -- in what order


def test_an_answer_is_found_through_the_question_before_it() -> None:
    index = index_of(
        [
            turn("what is the name of your dog?", "ask", minute=1, role="assistant"),
            turn("It is Biscuit, since always", "answer", minute=2),
            turn("I went shopping for shoes", "other", minute=99, session="t"),
        ]
    )
    assert ids(find(index, "name of the dog"))[0] == "answer"


def test_neighbours_are_of_the_same_session_though_sessions_interleave() -> None:
    index = index_of(
        [
            turn("what is the name of your dog?", "ask", minute=1, session="a"),
            turn("the weather will be fine", "between", minute=2, session="b"),
            turn("it is Biscuit, since always", "answer", minute=3, session="a"),
        ]
    )
    assert ids(find(index, "name of the dog")).index("answer") < ids(find(index, "name of the dog")).index("between")


def test_a_late_transcript_is_a_neighbour_by_its_time() -> None:
    index = index_of([turn("one", minute=1), turn("three", minute=3)])
    index.add(turn("two", minute=2))
    links = index.turns.features().links
    assert (links.before[2], links.after[2]) == (0, 1)


def test_the_person_named_in_the_query_goes_first() -> None:
    said = [
        IndexedTurn(name, name, NOW, "user", "I painted a sunrise over the lake", name)
        for name in ("Melanie", "Caroline")
    ]
    assert ids(find(index_of(said), "Did Caroline paint?"))[0] == "Caroline"
    assert ids(find(index_of(said), "Did Melanie paint?"))[0] == "Melanie"


def test_a_named_day_brings_up_what_was_said_then() -> None:
    index = index_of(
        turn("we talked about the garden", f"day{day}", minute=day * 1440, session=f"{day}") for day in range(30)
    )
    (first, *_) = find(index, "what about the garden two weeks ago?")
    assert abs((NOW - first.turn.timestamp) - timedelta(days=14)) <= timedelta(days=4)


@pytest.mark.case("L29")
def test_L29_what_was_said_just_now_is_the_newest() -> None:
    index = with_vectors(
        index_of((turn(f"small detail number {n}", f"t{n}", minute=n) for n in range(40)), dimension=DIMENSION)
    )
    index.add(turn("my new code word is marble", "code", minute=40))
    query = "what did I just tell you?"
    assert ids(find(index, query, min_relevance=True, vector=vector_of(query)))[0] == "code"


# -- vectors


def test_a_vector_finds_what_no_word_does() -> None:
    index = index_of([turn("alpha", minute=1), turn("beta", minute=2, session="t")], dimension=DIMENSION)
    assert index.missing_vectors(1) == [("beta", "beta")]
    with_vectors(index)
    assert index.missing_vectors(9) == []
    hits = find(index, "unrelated", vector=vector_of("beta"))
    assert ids(hits) == ["beta", "alpha"]
    assert hits[0].cosine == pytest.approx(1.0, abs=0.01)


def test_a_turn_without_vector_is_found_by_its_words_only() -> None:
    index = with_vectors(index_of([turn("alpha")], dimension=DIMENSION))
    index.add(turn("beta", minute=5, session="t"))
    hits = find(index, "beta", vector=vector_of("alpha"))
    assert {hit.turn.id: hit.cosine is None for hit in hits} == {"alpha": False, "beta": True}


def test_wrong_vectors_are_refused_and_none_is_set() -> None:
    index = index_of([turn("alpha"), turn("beta")], dimension=DIMENSION)
    good = np.stack([vector_of("alpha"), vector_of("beta")])
    for wrong in (good[:, :4], good[:1], np.where(np.eye(2, DIMENSION) == 1, np.nan, good)):
        with pytest.raises(ValueError, match="vector"):
            index.set_vectors(["alpha", "beta"], wrong.astype(np.float32))
    assert len(index.missing_vectors(9)) == 2
    index.set_vectors(["alpha", "gone"], good)
    assert [turn_id for turn_id, _ in index.missing_vectors(9)] == ["beta"]
    with pytest.raises(ValueError, match="shape"):
        find(index, "alpha", vector=np.ones(3, np.float32))
    with pytest.raises(ValueError, match="without vectors"):
        index_of([turn("alpha")]).set_vectors(["alpha"], good[:1])


@given(HISTORIES, TEXTS)
def test_int8_cosines_are_close_to_the_true_ones(history: list[IndexedTurn], query: str) -> None:
    index = with_vectors(index_of(history, dimension=DIMENSION))
    for hit in find(index, query, k=99, vector=vector_of(query)):
        assert hit.cosine == pytest.approx(float(vector_of(hit.turn.text) @ vector_of(query)), abs=0.02)


# -- what holds whatever was said


@given(HISTORIES, TEXTS)
def test_hits_are_distinct_ordered_and_explained(history: list[IndexedTurn], query: str) -> None:
    index = with_vectors(index_of(history, dimension=DIMENSION))
    hits = find(index, query, k=5, vector=vector_of(query))
    assert len(hits) == min(5, len(history))
    assert len(set(ids(hits))) == len(hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(0 <= hit.keyword <= 1 for hit in hits)
    assert ids(find(index, query, k=99, vector=vector_of(query)))[:5] == ids(hits)


@given(HISTORIES, TEXTS, st.data())
def test_what_was_prepared_before_a_change_finds_what_a_search_finds_after_it(
    history: list[IndexedTurn], query: str, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(history)))
    index = with_vectors(index_of(history[:first], dimension=DIMENSION))
    gone = data.draw(st.sets(st.sampled_from([each.id for each in history])))
    prepared = index.prepare(query, now=NOW, exclude_ids=frozenset({history[0].id}))
    for each in history[first:]:
        index.add(each)
    index.remove(gone)
    for vector in (vector_of(query), None):
        after = index.search(query, query_vector=vector, k=9, now=NOW, exclude_ids=frozenset({history[0].id}))
        assert index.finish(prepared, query_vector=vector, k=9) == after


@given(HISTORIES, TEXTS)
def test_the_gate_only_takes_away(history: list[IndexedTurn], query: str) -> None:
    index = index_of(history)
    everything = ids(find(index, query, k=27))  # what is said twice makes room for what ranks lower
    shown = ids(find(index, query, k=9, min_relevance=True))
    assert shown == [turn_id for turn_id in everything if turn_id in shown]


@given(HISTORIES, TEXTS, TEXTS)
def test_another_session_does_not_come_between(history: list[IndexedTurn], more: str, query: str) -> None:
    """Turns of other sessions never change what is next to what, and the word asked for is still found."""
    index = index_of(history)
    index.add(turn("zebra " + more, "z", minute=250, session="a"))
    before = index.turns.features().links
    for number in range(3):
        index.add(turn(more, f"new{number}", minute=number * 200, session="elsewhere"))
    after = index.turns.features().links
    assert before.before.tolist() == after.before[: len(history) + 1].tolist()
    assert before.after.tolist() == after.after[: len(history) + 1].tolist()
    assert "z" in ids(find(index, "zebra", k=3))


# -- what is gone


@pytest.mark.promise("P-erased")
@given(HISTORIES, TEXTS, st.data())
def test_P_erased_removed_turns_are_as_if_never_said(
    history: list[IndexedTurn], query: str, data: st.DataObject
) -> None:
    gone = data.draw(st.sets(st.sampled_from([each.id for each in history])))
    index = with_vectors(index_of(history, dimension=DIMENSION))
    assert index.remove([*gone, "unknown"]) == len(gone)
    never = with_vectors(index_of((each for each in history if each.id not in gone), dimension=DIMENSION))
    assert index.ids() == never.ids()
    vector = vector_of(query)
    assert _plain(find(index, query, k=99, vector=vector)) == _plain(find(never, query, k=99, vector=vector))


@pytest.mark.promise("P-erased")
@given(HISTORIES, TEXTS)
def test_P_erased_a_session_goes_whole(history: list[IndexedTurn], query: str) -> None:
    index = index_of(history)
    sizes = Counter(each.session_id for each in history)
    assert index.remove_session("a") == sizes["a"]
    assert index.remove_session("a") == 0
    assert index.remove_session("unknown") == 0
    assert all(hit.turn.session_id != "a" for hit in find(index, query, k=99))
    assert "a" not in index.turns.sessions.values


@pytest.mark.promise("P-erased")
def test_P_erased_no_hash_stays_that_nobody_else_has() -> None:
    index = index_of([turn("secret peanut", "gone"), turn("peanut butter", "stays", session="t")])
    index.remove(["gone"])
    terms = set(index.keywords.arrays()["terms"].tolist())
    hashed = TermHasher(KEY)
    assert hashed(stems("secret")[0]) not in terms
    assert hashed(stems("peanut")[0]) in terms


def test_removing_everything_leaves_an_index_to_go_on_with() -> None:
    index = with_vectors(index_of([turn("alpha")], dimension=DIMENSION))
    index.remove(["alpha"])
    assert len(index) == 0
    assert find(index, "alpha", vector=vector_of("alpha")) == []
    index.add(turn("beta"))
    assert ids(find(index, "beta", vector=vector_of("beta"))) == ["beta"]
