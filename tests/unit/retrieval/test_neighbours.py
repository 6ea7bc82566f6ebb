"""Links follow each session's own order, however turns arrive."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory.retrieval.neighbours import NONE, Neighbours

ARRIVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9).map(float)), max_size=25)


def _expected(arrivals: list[tuple[int, float]]) -> list[tuple[int, int, int, int]]:
    expected = [(NONE,) * 4 for _ in arrivals]
    for session in {session for session, _ in arrivals}:
        order = sorted(
            (number for number, (of, _) in enumerate(arrivals) if of == session), key=lambda n: arrivals[n][1]
        )
        padded = [NONE, NONE, *order, NONE, NONE]
        for at, number in enumerate(order, 2):
            expected[number] = (padded[at - 1], padded[at + 1], padded[at - 2], padded[at + 2])
    return expected


def _links(neighbours: Neighbours) -> list[tuple[int, ...]]:
    links = neighbours.links()
    columns = (links.before, links.after, links.before2, links.after2)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(ARRIVALS)
def test_neighbours_are_those_of_the_same_session_in_time(arrivals: list[tuple[int, float]]) -> None:
    neighbours = Neighbours()
    times = np.array([moment for _, moment in arrivals], np.float64)
    for number, (session, _) in enumerate(arrivals):
        neighbours.add(session, times[: number + 1])
    assert _links(neighbours) == _expected(arrivals)


@given(ARRIVALS)
def test_rebuilding_gives_the_same_links(arrivals: list[tuple[int, float]]) -> None:
    neighbours = Neighbours()
    sessions, times = np.array([s for s, _ in arrivals], np.int32), np.array([t for _, t in arrivals], np.float64)
    neighbours.rebuild(sessions, times)
    assert _links(neighbours) == _expected(arrivals)
    neighbours.add(1, np.append(times, 4.0))
    assert _links(neighbours) == _expected([*arrivals, (1, 4.0)])
