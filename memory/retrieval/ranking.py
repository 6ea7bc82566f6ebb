"""How turns are ranked for a query: keywords with their neighbourhood, vectors, and what is known of talk.

Above: index. Below: bm25 (postings), neighbours (links), vectors (cosines). Pure functions over arrays.

Terms: B, keywords: per query term the best of a turn's own weight and part of its neighbours', summed, scaled to
0..1, raised. D, vectors: cosine above the user's mean, scaled to 0..1. X = B + D. Then a turn gains from the turns
around it, since talk spreads a fact over question and answer; a turn that only asks loses; a longer one gains.
What needs no vector (``keyword_scores``, ``raised``, ``frame``) can be had while the query's is being made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memory.retrieval.bm25 import Posting
from memory.retrieval.dates import Period
from memory.retrieval.neighbours import Links

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weights:
    """The ranking's parameters."""

    near: float = 0.5  # of a term's weight, for the turns next to the one that has it
    near2: float = 0.25  # for those two away
    dense: float = 0.8
    beside: float = 0.5  # of the better neighbour's X
    beside2: float = 0.3
    answer: float = 1.5  # the turn before asked: what it matched is answered here
    asking: float = 0.8  # a turn that ends in a question rarely holds the answer
    speaker: float = 1.2  # said by the one person the query names
    length: float = 0.15
    length_max: float = 4.0  # of ln(1 + words)
    time: float = 0.3  # the query asks when, and the turn tells a time
    date: float = 0.7  # said on a day the query names; fades over `date_days`
    date_days: float = 15.0
    latest: float = 1.0  # the query asks for what came last; fades over the newest `latest_turns`
    latest_alone: float = 4.0  # the same where it names nothing else: more than all the rest together
    latest_turns: int = 12


WEIGHTS = Weights()


@dataclass(frozen=True, slots=True)
class Turns:
    """What the ranking knows of every turn, as arrays of one length."""

    times: NDArray[np.float64]  # epoch seconds
    asks: NDArray[np.bool_]  # ends in a question
    tells_time: NDArray[np.bool_]
    log_words: Scores  # ln(1 + words)
    links: Links


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a query asks for besides its words."""

    when: bool = False
    periods: tuple[Period, ...] = ()
    speaker: NDArray[np.bool_] | None = None  # turns by the one person named
    newest: NDArray[np.intp] | None = None  # positions, newest first, where what came last is asked for
    newest_alone: bool = False  # and nothing else


def keyword_scores(postings: Iterable[tuple[Posting, int]], turns: Turns, weights: Weights) -> Scores:
    """BM25 summed over terms (given with how often the query says them), each spread over its neighbourhood."""
    n, links = len(turns.times), turns.links
    total, one = np.zeros(n + 1, np.float32), np.zeros(n + 1, np.float32)  # the spare one takes what has no neighbour
    shares = (weights.near, weights.near, weights.near2, weights.near2)
    spread = tuple(zip((links.before, links.after, links.before2, links.after2), shares, strict=True))
    for posting, count in postings:
        where, value = posting.turns, posting.weights
        one[where] = value
        touched: list[NDArray[np.signedinteger[Any]]] = [where]
        for link, share in spread:
            beside = link[where]
            one[beside] = np.maximum(one[beside], value * np.float32(share))
            touched.append(beside)
        if len(where) * 5 > n:
            total += one * np.float32(count)
            one[:] = 0
        else:
            for places in touched:
                total[places] += one[places] * np.float32(count)
                one[places] = 0
    return total[:n]


def raised(scores: Scores) -> Scores:
    """B of every turn from its keyword score: scaled to 0..1, to the power of 1.5."""
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 0.0)
    if high <= low:
        # Every turn matches alike: with one turn, or a word that is everywhere, min-max would hide the match.
        return np.full_like(scores, 1.0 if high > 0 else 0.0)
    scaled: Scores = (scores - np.float32(low)) / np.float32(high - low)
    scaled *= np.sqrt(scaled)
    return scaled


def combine(words: Scores, cosines: Scores | None, present: NDArray[np.bool_] | None, weights: Weights) -> Scores:
    """X of every turn from B and, where there are vectors, its cosine."""
    if cosines is None or present is None or not present.any():
        return words
    complete = present.all()
    known = cosines if complete else cosines[present]
    above: Scores = np.maximum(cosines - np.float32(known.mean()), 0)
    if not complete:
        above[~present] = 0
    above *= np.float32(weights.dense / max(float(above.max()), 1e-9))
    above += words
    return above


@dataclass(frozen=True, slots=True)
class Frame:
    """What a query makes of every turn whatever the turns say: final = (X and its neighbours') * ``factor`` +
    ``bonus``. ``answers``: by how much more the turn before counts."""

    answers: Scores
    factor: Scores
    bonus: Scores


def frame(turns: Turns, wanted: Wanted, weights: Weights) -> Frame:
    """Questions, speaker, length, time."""
    factor = _factor(turns.asks, weights.asking)
    if wanted.speaker is not None:
        factor *= _factor(wanted.speaker, weights.speaker)
    bonus: Scores = np.float32(weights.length) * np.minimum(turns.log_words, np.float32(weights.length_max))
    if wanted.when:
        bonus += np.float32(weights.time) * turns.tells_time
    if wanted.periods:
        bonus += np.float32(weights.date) * closeness(turns.times, wanted.periods, weights.date_days)
    if wanted.newest is not None:
        first = weights.latest_alone if wanted.newest_alone else weights.latest
        steps = np.linspace(first, 0, len(wanted.newest), endpoint=False, dtype=np.float32)
        bonus[wanted.newest] += steps
    asked = np.append(turns.asks, False).take(turns.links.before)
    return Frame(_factor(asked, weights.answer), factor, bonus)


def in_context(scores: Scores, links: Links, frame: Frame, weights: Weights) -> Scores:
    """The final score Y from X: neighbours, and what the query makes of every turn."""
    spare = np.append(scores, np.float32(0))
    best = np.maximum(spare.take(links.before) * frame.answers, spare.take(links.after))
    final: Scores = scores + np.float32(weights.beside) * best
    final += np.float32(weights.beside2) * np.maximum(spare.take(links.before2), spare.take(links.after2))
    final *= frame.factor
    final += frame.bonus
    return final


def _factor(where: NDArray[np.bool_], value: float) -> Scores:
    factors = np.ones(len(where), np.float32)
    factors[where] = value
    return factors


def closeness(times: NDArray[np.float64], periods: Iterable[Period], days: float) -> Scores:
    """1 within a named period, fading to 0 over ``days`` around it; the best of several periods."""
    best = np.zeros(len(times), np.float32)
    for period in periods:
        away = np.maximum(np.maximum(period.start - times, times - period.end), 0) / (days * 86_400)
        np.maximum(best, 1 - away, out=best, casting="same_kind")
    return best


def best(scores: Scores, k: int) -> NDArray[np.intp]:
    """Positions of the ``k`` greatest finite scores, best first; equal ones in the order of the turns."""
    places = np.arange(len(scores))
    if len(scores) > k:
        # More than k where the last ones are equal: which of them are taken must not be up to the partition.
        places = np.flatnonzero(scores >= -np.partition(-scores, k - 1)[k - 1])
    order = places[np.argsort(-scores[places], kind="stable")][:k]
    return order[np.isfinite(scores[order])]
