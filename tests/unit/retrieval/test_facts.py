"""The index of facts: whatever came in whatever order, what is found are the facts that hold, in their newest state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.errors import SnapshotError
from memory.limits import FACTS_MAX
from memory.models import Fact, Source
from memory.retrieval import facts as facts_module
from memory.retrieval.current import together
from memory.retrieval.facts import SOURCES_MAX, FactIndex
from memory.retrieval.facts_snapshot import dump_facts, load_facts
from memory.retrieval.index import Hit, IndexedTurn
from memory.retrieval.profile import PROFILE_QUERIES
from tests.support.fact_source import fact
from tests.support.turns import DIMENSION, KEY, vector_of

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
WORDS = ("Leeds", "York", "peanut", "tea", "parcel", "حساسية", "花生")


def day(number: int) -> datetime:
    return NOW + timedelta(days=number)


DAYS = st.integers(-9, 9).map(day)


@st.composite
def states(draw: st.DrawFn) -> Fact:
    """A fact in some state; there are few ids, so that states of one follow each other."""
    key, words = draw(st.sampled_from("abcdef")), draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
    turns = draw(st.lists(st.sampled_from(["t1", "t2", "t3"]), min_size=1, max_size=2, unique=True))
    return fact(
        f"The user: {' '.join(words)}",
        key=key,
        turns=turns,
        session=draw(st.sampled_from(["s1", "s2"])),
        said_at=draw(DAYS),
        valid_at=draw(st.none() | DAYS),
        invalid_at=draw(st.none() | DAYS),
    )


COMMITS = st.lists(st.lists(states(), max_size=4), max_size=6)


def index_of(*commits: Sequence[Fact], dimension: int | None = DIMENSION, now: datetime = NOW) -> FactIndex:
    index = FactIndex(KEY, dimension)
    for commit in commits:
        index.apply(commit, now)
    return index


def newest(commits: Sequence[Sequence[Fact]]) -> dict[str, Fact]:
    return {one.id: one for commit in commits for one in commit}


def holds(one: Fact, now: datetime) -> bool:
    return (one.valid_at is None or one.valid_at <= now) and (one.invalid_at is None or one.invalid_at > now)


def found(index: FactIndex, query: str, now: datetime = NOW, **how: object) -> list[str]:
    return [one.fact.text for one in index.find(query, vector=None, k=50, now=now, **how)]  # type: ignore[arg-type]


def give_vectors(index: FactIndex) -> None:
    missing = index.index.missing_vectors(len(index) + 1)
    if missing:
        index.index.set_vectors([one for one, _ in missing], np.stack([vector_of(text) for _, text in missing]))


@pytest.mark.promise("P-current")
@given(COMMITS, st.integers(-2, 12))
def test_P_current_whatever_came_only_what_holds_is_found_as_it_is_now(commits: list[list[Fact]], later: int) -> None:
    index, known, now = index_of(*commits), newest(commits), day(max(later, 0))
    assert len(index) == len(known)
    for word in WORDS:
        for one in index.find(f"my {word}", vector=None, k=50, now=now):
            assert holds(one.fact, now)
            assert one.fact == known[one.fact.id]
            assert one.turns == set(one.fact.sources[0].turns)
    told = {one.fact.id for one in index.profile(PROFILE_QUERIES, None, limit=50, now=now)}
    assert told == {one.id for one in known.values() if holds(one, now)}


@given(COMMITS)
def test_parts_and_order_of_reading_make_no_difference(commits: list[list[Fact]]) -> None:
    known = list(newest(commits).values())
    one, other = index_of(*commits), index_of(*([each] for each in known))
    for word in WORDS:
        assert sorted(found(one, f"my {word}")) == sorted(found(other, f"my {word}"))
    for turn_id in ("t1", "t2", "t3"):
        hit = Hit(IndexedTurn(turn_id, "s1", day(-9), "user", "words"), 1.0, 1.0, None)
        assert one.out_of_date(hit, NOW) == other.out_of_date(hit, NOW)
        ended = any(
            each.invalid_at is not None and each.invalid_at <= NOW and turn_id in each.sources[0].turns
            for each in known
        )
        assert one.out_of_date(hit, NOW) == ended


@given(COMMITS, COMMITS)
def test_a_snapshot_gives_the_same_index_back(commits: list[list[Fact]], more: list[list[Fact]]) -> None:
    index = index_of(*commits)
    index.version = 12
    give_vectors(index)
    back = load_facts(dump_facts(index, KEY, epoch=3, model="m"), KEY, epoch=3, model="m", now=NOW)
    assert (back.version, back.rows()) == (12, index.rows())
    assert back.index.missing_vectors(10) == []
    for one in (index, back):
        for commit in more:
            one.apply(commit, NOW)
    for word in WORDS:
        assert sorted(found(back, f"my {word}")) == sorted(found(index, f"my {word}"))
    assert sorted(back.index.missing_vectors(50)) == sorted(index.index.missing_vectors(50))


@given(st.integers(0, 4_000), st.integers(0, 255))
@example(where=15, value=1)  # the version's last byte: nothing but its own checksum tells
def test_a_damaged_snapshot_is_refused_or_the_same(where: int, value: int) -> None:
    index = index_of([fact(f"The user: {word}", turns=["t1"]) for word in WORDS])
    blob = dump_facts(index, KEY, epoch=3, model="m")
    where %= len(blob)
    broken = blob[:where] + bytes([value]) + blob[where + 1 :]
    try:
        back = load_facts(broken, KEY, epoch=3, model="m", now=NOW)
    except SnapshotError:
        return
    assert (back.version, back.rows()) == (index.version, index.rows())


@pytest.mark.parametrize("how", [{"epoch": 4}, {"model": "other"}, {"key": b"another key"}])
def test_a_snapshot_of_another_time_model_or_key_is_refused(how: dict[str, object]) -> None:
    blob = dump_facts(index_of([fact("The user: tea")]), KEY, epoch=3, model="m")
    right: dict[str, object] = {"key": KEY, "epoch": 3, "model": "m", "now": NOW}
    assert load_facts(blob, **right).rows()  # type: ignore[arg-type]
    for cut in (b"", blob[:10], blob[:40]):
        with pytest.raises(SnapshotError):
            load_facts(cut, **right)  # type: ignore[arg-type]
    with pytest.raises(SnapshotError):
        load_facts(blob, **(right | how))  # type: ignore[arg-type]


def test_a_fact_said_again_keeps_its_vector_and_one_put_otherwise_does_not() -> None:
    index = index_of([fact("The user: tea", key="a"), fact("The user: York", key="b")])
    give_vectors(index)
    index.apply([fact("The user: tea", key="a", said_at=day(-1)), fact("The user: Leeds", key="b")], NOW)
    assert [text for _, text in index.index.missing_vectors(9)] == ["The user: Leeds"]
    assert index.known(fact("any", key="a").id).said_at == day(-1)


def test_many_sources_are_told_by_the_first_and_the_newest() -> None:
    sources = [Source(session_id="s", turns=(f"t{number}",), said_at=day(number)) for number in range(30)]
    (known,) = index_of([Fact(text="The user: tea", sources=tuple(sources))]).find("my tea", vector=None, k=5, now=NOW)
    assert len(known.fact.sources) == SOURCES_MAX
    assert (known.fact.sources[0], known.fact.sources[-1]) == (sources[0], sources[-1])
    assert len(known.turns) == 30


def test_what_has_ended_goes_first_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FACTS_MAX >= 10_000
    monkeypatch.setattr(facts_module, "FACTS_MAX", 20)
    ended = [fact(f"The user: parcel {number}", invalid_at=day(-number - 1), turns=["t"]) for number in range(5)]
    lasting = [fact(f"The user: tea {number}", said_at=day(number - 60)) for number in range(20)]
    index = index_of(ended, lasting)
    assert len(index) == 19
    assert sorted(found(index, "my tea")) == sorted(one.text for one in lasting[1:])
    hit = Hit(IndexedTurn("t", "past", day(-80), "user", "words"), 1.0, 1.0, None)
    assert not index.out_of_date(hit, NOW)


# -- the profile


def test_the_profile_is_what_most_queries_find_and_the_name_adds_words_only() -> None:
    plain = [fact(f"Errand number {number} was run") for number in range(40)]
    index = index_of([*plain, fact("The user prefers tea"), fact("Zoë likes York")])
    told = [one.fact.text for one in index.profile(PROFILE_QUERIES, None, limit=3, now=NOW)]
    assert told[0] == "The user prefers tea"
    named = index.profile([f"Zoë {query}" for query in PROFILE_QUERIES], None, limit=3, now=NOW)
    assert "Zoë likes York" in [one.fact.text for one in named]
    assert index_of().profile(PROFILE_QUERIES, None, limit=3, now=NOW) == []


def test_the_profile_goes_by_meaning_once_there_are_vectors() -> None:
    facts = [fact(f"Errand number {number} was run") for number in range(40)]
    index = index_of(facts)
    vectors: NDArray[np.float32] = np.stack([vector_of(facts[7].text)] * len(PROFILE_QUERIES))
    give_vectors(index)
    (best, *_) = index.profile(PROFILE_QUERIES, vectors, limit=3, now=NOW)
    assert best.fact == facts[7]


# -- facts and turns together


def hit(text: str, turn_id: str, *, role: str = "user", said: int = -5, session: str = "past") -> Hit:
    return Hit(IndexedTurn(turn_id, session, day(said), role, text), 1.0, 1.0, None)


def told(index: FactIndex, *hits: Hit, query: str = "where is my home") -> tuple[list[tuple[str, bool]], list[str]]:
    passages, facts = together(hits, index.find(query, vector=None, k=6, now=NOW), index, NOW)
    return [(one.text, one.changed) for one in passages], [one.text for one in facts]


HOME = fact("The user's home is in York", turns=["t1"], said_at=day(-5), valid_at=day(-5))
OLD_HOME = fact(
    "The user's home is in Leeds", turns=["t0"], said_at=day(-9), valid_at=day(-9), invalid_at=day(-5), session="old"
)


@pytest.mark.parametrize("text", ["My home is in York.", "York.", "Yes."])
def test_a_turn_that_says_no_more_than_its_fact_is_not_told_beside_it(text: str) -> None:
    assert told(index_of([HOME]), hit(text, "t1")) == ([], [HOME.text])


def test_a_turn_that_says_more_is_told_in_place_of_its_fact() -> None:
    text = "My home is in York with my sister Mia and her parrot, above the old bakery."
    assert told(index_of([HOME]), hit(text, "t1")) == ([(text, False)], [])


def test_a_fact_that_was_said_again_later_is_told_beside_it() -> None:
    text = "My home is in York with my sister Mia and her parrot, above the old bakery."
    again = fact(HOME.text, key=HOME.text, turns=["t1", "t7"], said_at=day(-1))
    assert told(index_of([again]), hit(text, "t1")) == ([(text, False)], [HOME.text])


@pytest.mark.promise("P-current")
def test_P_current_beside_a_turn_that_is_out_of_date_the_fact_that_holds_is_told() -> None:
    more = "My home is in York with my sister Mia and her parrot, above the old bakery."
    passages, facts = told(index_of([OLD_HOME, HOME]), hit("My home is in Leeds.", "t0", said=-9), hit(more, "t1"))
    assert passages == [("My home is in Leeds.", True), (more, False)]
    assert facts == [HOME.text]


@pytest.mark.promise("P-current")
@pytest.mark.parametrize(
    ("text", "said", "session", "changed"),
    [
        ("So your home is in Leeds, noted.", -9, "old", True),
        ("Leeds is lovely.", -9, "old", False),
        ("So your home is in Leeds, noted.", -9, "another", False),
        ("Your home was in Leeds, then.", -4, "old", False),
    ],
)
def test_P_current_a_reply_that_repeats_what_has_ended_is_out_of_date(
    text: str, said: int, session: str, changed: bool
) -> None:
    passages, _ = told(index_of([OLD_HOME, HOME]), hit(text, "a1", role="assistant", said=said, session=session))
    assert passages == [(text, changed)]
