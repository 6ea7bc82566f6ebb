"""The ranking's parts, on arrays small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval import ranking
from memory.retrieval.bm25 import Posting
from memory.retrieval.dates import Period
from memory.retrieval.neighbours import Neighbours
from memory.retrieval.ranking import WEIGHTS, Scores, Turns, Wanted

FINITE = st.floats(-100, 100, width=32)


def _in_context(scores: Scores, turns: Turns, wanted: Wanted) -> Scores:
    return ranking.in_context(scores, turns.links, ranking.frame(turns, wanted, WEIGHTS), WEIGHTS)


def _turns(sessions: list[int], *, asks: list[bool] | None = None, words: int = 0) -> Turns:
    n = len(sessions)
    neighbours = Neighbours()
    times = np.arange(n, dtype=np.float64)
    neighbours.rebuild(np.array(sessions, np.int32), times)
    return Turns(
        times=times,
        asks=np.array(asks or [False] * n, np.bool_),
        tells_time=np.zeros(n, np.bool_),
        log_words=np.full(n, np.log1p(words), np.float32),
        links=neighbours.links(),
    )


def _posting(**weights: float) -> Posting:
    turns = np.array([int(name[1:]) for name in weights], np.intp)
    return Posting(turns, np.array(list(weights.values()), np.float32))


def _scores(*values: float) -> Scores:
    return np.array(values, np.float32)


def test_a_term_counts_half_beside_it_and_a_quarter_two_away() -> None:
    turns = _turns([0, 0, 0, 0, 1, 0])
    scores = ranking.keyword_scores([(_posting(t1=2.0), 1)], turns, WEIGHTS)
    np.testing.assert_allclose(scores, [1, 2, 1, 0.5, 0, 0])


def test_a_term_counts_once_where_it_is_close_twice() -> None:
    turns = _turns([0, 0, 0])
    scores = ranking.keyword_scores([(_posting(t0=2.0, t2=3.0), 1)], turns, WEIGHTS)
    np.testing.assert_allclose(scores, [2, 1.5, 3])


def test_terms_add_up_as_often_as_the_query_says_them() -> None:
    turns = _turns([0, 1, 2])
    scores = ranking.keyword_scores([(_posting(t0=1.0), 2), (_posting(t0=1.0, t2=1.0), 1)], turns, WEIGHTS)
    np.testing.assert_allclose(scores, [3, 0, 1])


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True), max_size=5), st.integers(1, 4))
def test_frequent_and_rare_terms_are_summed_alike(terms: list[list[int]], sessions: int) -> None:
    """Two ways of summing (whole arrays, touched places) agree with adding each term's own scores."""
    turns = _turns([number % sessions for number in range(20)])
    postings = [(Posting(np.array(sorted(term)), np.ones(len(term), np.float32)), 1) for term in terms]
    together = ranking.keyword_scores(postings, turns, WEIGHTS)
    apart = sum((ranking.keyword_scores([each], turns, WEIGHTS) for each in postings), np.zeros(20, np.float32))
    np.testing.assert_allclose(together, apart, rtol=1e-5)


def test_meaning_counts_above_the_users_mean() -> None:
    combined = ranking.combine(
        _scores(0, 0, 0, 0), _scores(0.1, 0.3, 0.5, 0.9), np.array([1, 1, 1, 0], np.bool_), WEIGHTS
    )
    np.testing.assert_allclose(combined, [0, 0, WEIGHTS.dense, 0], atol=1e-6)


def test_a_match_in_the_only_turn_is_a_match() -> None:
    np.testing.assert_allclose(ranking.raised(_scores(2)), [1])
    np.testing.assert_allclose(ranking.raised(_scores(0)), [0])


def test_a_question_hands_its_score_to_the_answer() -> None:
    plain = _in_context(_scores(1, 0), _turns([0, 0]), Wanted())
    asked = _in_context(_scores(1, 0), _turns([0, 0], asks=[True, False]), Wanted())
    np.testing.assert_allclose(plain, [1, WEIGHTS.beside])
    np.testing.assert_allclose(asked, [WEIGHTS.asking, WEIGHTS.beside * WEIGHTS.answer])


def test_the_speaker_the_words_and_the_newest_count() -> None:
    turns = _turns([0, 1, 2])
    speaker = np.array([False, True, False])
    np.testing.assert_allclose(_in_context(_scores(1, 1, 1), turns, Wanted(speaker=speaker)), [1, WEIGHTS.speaker, 1])
    newest = _in_context(_scores(1, 1, 1), turns, Wanted(newest=np.array([2, 1])))
    np.testing.assert_allclose(newest, [1, 1 + WEIGHTS.latest / 2, 1 + WEIGHTS.latest])
    longer = _in_context(_scores(1), _turns([0], words=10**6), Wanted())
    np.testing.assert_allclose(longer, [1 + WEIGHTS.length * WEIGHTS.length_max])


def test_closeness_fades_around_the_nearest_period() -> None:
    day = 86_400
    times = np.array([0, 10, 17.5, 25, 100], np.float64) * day
    periods = (Period(9 * day, 10 * day), Period(200 * day, 201 * day))
    np.testing.assert_allclose(ranking.closeness(times, periods, 15), [0.4, 1, 0.5, 0, 0], atol=1e-6)


@given(st.lists(st.one_of(FINITE, st.just(-np.inf)), max_size=40), st.integers(1, 45))
def test_the_best_are_the_best_and_ties_keep_their_order(values: list[float], k: int) -> None:
    scores = np.array(values, np.float32)
    order = sorted((n for n in range(len(values)) if np.isfinite(scores[n])), key=lambda n: (-scores[n], n))
    assert ranking.best(scores, k).tolist() == order[:k]


@pytest.mark.parametrize("n", [0, 1])
def test_no_turns_no_scores(n: int) -> None:
    turns = _turns([0] * n)
    scores = _in_context(np.zeros(n, np.float32), turns, Wanted(when=True))
    assert scores.shape == (n,)
