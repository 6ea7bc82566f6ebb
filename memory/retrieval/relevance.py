"""Whether anything remembered bears on a query at all. A ranking always has a first; this says if it is worth showing.

Above: index. Below: query. Plain numbers, no arrays.

Two absolute measures: ``cosine`` of a turn with the query, and ``share``, the part of the query's information (idf,
small talk left out) that the turn and its neighbours hold as words.

Measured with LongMemEval's questions against histories of 5 to 800 turns, with the evidence in them ("evidence") or
without ("unrelated"; its questions are all about the caller, and large histories do hold something on most topics),
28 hand-written pairs of a fact and a question in other words ("reworded"), 89 lines of small talk, and 30 requests
that have nothing to do with a user's past ("general"). Share of queries that get anything, in percent, and hits each:

    history         5        20       100       400       800
    evidence    98 2.2    98 3.3    98 5.5    98 7.1    98 7.5
    reworded    96 2.5    96 3.1    98 3.5    96 4.2    96 4.2
    unrelated   49 1.3    63 3.6    82 5.9    90 7.1    94 7.5
    general      1 0.0    13 0.6    26 1.6    39 2.8    40 3.1
    small talk   2 0.1     5 0.2     5 0.4     7 0.6     7 0.6

What it costs: recall@10 on LoCoMo 83.7 instead of 84.1, on LongMemEval's pool 85.9 instead of 87.1.
The best cosine of n turns grows with n by chance alone, so the threshold does too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memory.retrieval.query import Query

COSINE_AT_20 = 0.22  # for a history of 20 turns, and a query about the caller
COSINE_PER_DECADE = 0.07
COSINE_MIN, COSINE_MAX = 0.22, 0.36
COSINE_IMPERSONAL = 0.10  # more is wanted where the query is not about the caller
COSINE_SMALL_TALK = 0.45  # where the query names nothing
COSINE_WITH_WORDS = 0.10  # less is wanted where the words agree too
SHARE_PERSONAL, SHARE_IMPERSONAL = 0.3, 0.5
SHARE_WITHOUT_VECTORS = 0.3  # rather too much than nothing while vectors are late or the script is foreign to them

# Of a single hit: below all three it is only there because the list had room.
HIT_COSINE, HIT_SHARE, HIT_SCORE = 0.25, 0.25, 0.5
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for one hit. ``score`` is a part of the best hit's; ``cosine`` is ``None`` without a vector."""

    share: float
    cosine: float | None
    score: float
    time: float  # epoch seconds


def bears(query: Query, found: Sequence[Evidence], turns: int, *, names_speaker: bool) -> bool:
    """Whether memory has something on ``query``. Without any vector, words decide alone.

    ``turns``: how long the history is. ``names_speaker``: the query names somebody who speaks in it.
    """
    personal = query.personal or names_speaker
    if query.memory or (personal and query.periods):
        return True
    share = max((hit.share for hit in found), default=0.0)
    # Across scripts the embedder sees the script rather than the meaning: any two Arabic sentences are "close".
    cosines = [hit.cosine for hit in found if hit.cosine is not None] if query.latin else []
    if not query.content:
        return max(cosines, default=0.0) >= COSINE_SMALL_TALK
    if any(hit.cosine is None and hit.share >= SHARE_WITHOUT_VECTORS for hit in found):
        return True  # what was just said has no vector yet: its words speak for it
    if not cosines:
        return share >= SHARE_WITHOUT_VECTORS
    enough_words = share >= (SHARE_PERSONAL if personal else SHARE_IMPERSONAL)
    wanted = cosine_wanted(turns, personal=personal)
    return max(cosines) >= wanted or (enough_words and max(cosines) >= wanted - COSINE_WITH_WORDS)


def cosine_wanted(turns: int, *, personal: bool) -> float:
    """The cosine that is enough by itself in a history of so many turns."""
    threshold = COSINE_AT_20 + COSINE_PER_DECADE * math.log10(max(turns, 1) / 20)
    return min(max(threshold, COSINE_MIN), COSINE_MAX) + (0.0 if personal else COSINE_IMPERSONAL)


def worth_showing(query: Query, hit: Evidence) -> bool:
    """Whether a single hit has anything to say on the query."""
    if hit.share >= HIT_SHARE or hit.score >= HIT_SCORE:
        return True
    if query.latin and hit.cosine is not None and hit.cosine >= HIT_COSINE:
        return True
    return any(period.start - _DAY_S <= hit.time <= period.end + _DAY_S for period in query.periods)
