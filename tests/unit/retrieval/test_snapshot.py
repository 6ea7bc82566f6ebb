"""A snapshot gives the same index back, or says that it can't."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.errors import SnapshotError
from memory.retrieval.bm25 import TermHasher
from memory.retrieval.index import IndexedTurn, UserIndex
from memory.retrieval.snapshot import VERSION, Snapshot, dump, load
from memory.retrieval.text import stems
from tests.support.turns import DIMENSION, HISTORIES, KEY, TEXTS, find, index_of, turn, vector_of, with_vectors


def _blob(index: UserIndex, **kept: Any) -> bytes:
    return dump(index, KEY, **{"position": "5-1", "epoch": 2, "model": "m", **kept})


def _world() -> UserIndex:
    return with_vectors(index_of([turn("alpha beta"), turn("gamma \ud800 ñ 花生", session="t")], dimension=DIMENSION))


@given(HISTORIES, TEXTS, st.booleans(), st.booleans())
def test_a_loaded_index_answers_as_the_dumped_one(
    history: list[IndexedTurn], query: str, vectors: bool, more: bool
) -> None:
    index = index_of(history, dimension=DIMENSION if vectors else None)
    vector = vector_of(query) if vectors else None
    with_vectors(index)
    loaded = load(_blob(index), KEY).index
    if more:
        for each in (index, loaded):
            each.add(turn(query, "new", minute=7, session="b"))
            each.remove([history[0].id])
            with_vectors(each)
    assert find(loaded, query, k=99, vector=vector) == find(index, query, k=99, vector=vector)
    assert loaded.ids() == index.ids()


def test_what_is_kept_besides_comes_back() -> None:
    snapshot = load(_blob(_world(), position="1-2\ud800", epoch=7, model="mini"), KEY)
    assert (snapshot.position, snapshot.epoch, snapshot.model) == ("1-2\ud800", 7, "mini")
    assert isinstance(snapshot, Snapshot)
    assert load(_blob(UserIndex(KEY, None)), KEY).index.ids() == []


@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    blob = bytearray(_blob(_world()))
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SnapshotError):
        load(bytes(blob), KEY)


@given(st.integers(0, 5000))
def test_a_snapshot_cut_short_is_refused(length: int) -> None:
    blob = _blob(_world())
    with pytest.raises(SnapshotError):
        load(blob[: min(length, len(blob) - 1)], KEY)


@given(st.binary(max_size=200))
def test_anything_else_is_refused(blob: bytes) -> None:
    with pytest.raises(SnapshotError):
        load(blob, KEY)


def test_another_key_does_not_open_it() -> None:
    with pytest.raises(SnapshotError, match="another key"):
        load(_blob(_world()), b"another key")


def test_another_version_is_told() -> None:
    blob = bytearray(_blob(_world()))
    struct.pack_into("<I", blob, 4, VERSION + 1)
    with pytest.raises(SnapshotError, match=f"version {VERSION + 1}"):
        load(bytes(blob), KEY)


def test_errors_hold_nothing_of_what_was_said() -> None:
    blob = bytearray(_blob(_world()))
    blob[-1] ^= 1
    with pytest.raises(SnapshotError) as raised:
        load(bytes(blob), KEY)
    assert "alpha" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.promise("P-erased")
def test_P_erased_nothing_of_a_removed_turn_is_in_the_snapshot() -> None:
    index = index_of(
        [
            IndexedTurn(
                "gone-id", "gone-session", turn("x").timestamp, "user", "Zanzibar secret", "Goneril", "voice", "xx"
            ),
            turn("peanut butter", "stays", session="t"),
        ],
        dimension=DIMENSION,
    )
    with_vectors(index)
    index.remove(["gone-id"])
    blob = _blob(index)
    for trace in (b"gone-id", b"gone-session", b"Zanzibar", b"secret", b"Goneril", b'"xx"'):
        assert trace not in blob
    for word in ("Zanzibar", "secret", "Goneril"):
        assert struct.pack("<Q", TermHasher(KEY)(stems(word)[0])) not in blob
    assert b"peanut butter" in blob


def test_keywords_are_hashes_under_the_key() -> None:
    index = index_of([turn("peanut")])
    hashed = struct.pack("<Q", TermHasher(KEY)("peanut"))
    assert hashed in _blob(index)
    assert zlib.crc32(hashed) != zlib.crc32(struct.pack("<Q", TermHasher(b"other")("peanut")))
