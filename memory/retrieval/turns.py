"""The turns of one user as columns: who said what when, in which session, and what the ranking wants to know of it.

Above: index, snapshot. Below: columns, neighbours, ranking (the arrays it reads), text, dates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from memory.retrieval.columns import Column
from memory.retrieval.dates import tells_time
from memory.retrieval.neighbours import Neighbours
from memory.retrieval.ranking import Turns

RULE_CHARS_MAX = 20_000  # of a turn that are looked through for words of time
# "?" of other scripts; closing quotes and brackets may follow.
_QUESTION_ENDS = ("?", "？", "؟", ";", "՞", "⁇", "⁈")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class IndexedTurn:
    """A turn as the index keeps it. ``timestamp`` is aware; it comes back in UTC, to the microsecond."""

    id: str
    session_id: str
    timestamp: datetime
    role: str
    text: str
    name: str | None = None
    mode: str = "voice"
    language: str = ""


COLUMNS = ("session_codes", "label_codes", "times", "asks", "tells_time", "log_words")  # of TurnTable

Label = tuple[str, str | None, str, str]  # role, name, mode, language
_Value = TypeVar("_Value", bound=Hashable)


class Interned(Generic[_Value]):
    """Small numbers for values that repeat, in the order in which they first came."""

    def __init__(self, values: Iterable[_Value] = ()) -> None:
        self.values = list(values)
        self._codes = {value: code for code, value in enumerate(self.values)}

    def code(self, value: _Value) -> int:
        code = self._codes.setdefault(value, len(self.values))
        if code == len(self.values):
            self.values.append(value)
        return code

    def find(self, value: _Value) -> int | None:
        return self._codes.get(value)

    def keep(self, codes: NDArray[np.int32]) -> tuple[Interned[_Value], NDArray[np.int32]]:
        """Only the values that ``codes`` still names, and ``codes`` renumbered."""
        used, renumbered = np.unique(codes, return_inverse=True)
        return Interned(self.values[code] for code in used.tolist()), renumbered.astype(np.int32)


class TurnTable:
    """All turns, numbered 0..n-1 in the order of their ``add``."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._texts: list[bytes] = []  # UTF-8: smaller, and a snapshot loads without decoding what nobody asks for
        self.sessions: Interned[str] = Interned()
        self.labels: Interned[Label] = Interned()
        self.session_codes = Column(np.int32)
        self.label_codes = Column(np.int32)
        self.times = Column(np.float64)
        self.asks = Column(np.bool_)
        self.tells_time = Column(np.bool_)
        self.log_words = Column(np.float32)
        self._neighbours = Neighbours()
        self._positions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._positions

    def position(self, turn_id: str) -> int | None:
        return self._positions.get(turn_id)

    def add(self, turn: IndexedTurn, word_count: int) -> None:
        """Add a turn whose id is not there yet."""
        self._positions[turn.id] = len(self.ids)
        self.ids.append(turn.id)
        self._texts.append(turn.text.encode(errors="surrogatepass"))
        session = self.sessions.code(turn.session_id)
        self.session_codes.append(session)
        self.label_codes.append(self.labels.code((turn.role, turn.name, turn.mode, turn.language)))
        self.times.append(turn.timestamp.timestamp())
        self.asks.append(is_question(turn.text))
        self.tells_time.append(tells_time(turn.text[:RULE_CHARS_MAX]))
        self.log_words.append(math.log1p(word_count))
        self._neighbours.add(session, self.times.values)

    def turn(self, position: int) -> IndexedTurn:
        role, name, mode, language = self.labels.values[self.label_codes.values[position]]
        # fromtimestamp() would round through a local clock's range; this is exact for every datetime there is.
        said = _EPOCH + timedelta(microseconds=round(float(self.times.values[position]) * 1e6))
        session_id = self.sessions.values[self.session_codes.values[position]]
        return IndexedTurn(self.ids[position], session_id, said, role, self.text(position), name, mode, language)

    def text(self, position: int) -> str:
        return self._texts[position].decode(errors="surrogatepass")

    def features(self) -> Turns:
        """What the ranking reads."""
        return Turns(
            times=self.times.values,
            asks=self.asks.values,
            tells_time=self.tells_time.values,
            log_words=self.log_words.values,
            links=self._neighbours.links(),
        )

    def in_session(self, session_id: str) -> NDArray[np.bool_]:
        """A mask of the session's turns."""
        code = self.sessions.find(session_id)
        return np.equal(self.session_codes.values, -1 if code is None else code)

    def said_by(self, name: str) -> NDArray[np.bool_]:
        """A mask of the turns under a name."""
        codes = [code for code, label in enumerate(self.labels.values) if label[1] == name]
        return np.isin(self.label_codes.values, codes)

    def names(self) -> set[str]:
        return {label[1] for label in self.labels.values if label[1]}

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Drop the turns whose ``mask`` is False, and every id, name and text that only they had."""
        places = np.flatnonzero(mask).tolist()
        self.ids = [self.ids[place] for place in places]
        self._texts = [self._texts[place] for place in places]
        for column in (self.times, self.asks, self.tells_time, self.log_words):
            column.keep(mask)
        self.sessions, codes = self.sessions.keep(self.session_codes.values[mask])
        self.session_codes.fill(codes)
        self.labels, codes = self.labels.keep(self.label_codes.values[mask])
        self.label_codes.fill(codes)
        self._relink()

    def texts(self) -> list[bytes]:
        """All texts, as UTF-8 (with surrogates, if any)."""
        return self._texts

    def fill(
        self,
        ids: list[str],
        texts: list[bytes],
        sessions: Iterable[str],
        labels: Iterable[Label],
        columns: dict[str, NDArray[Any]],
    ) -> None:
        """Take over what a snapshot holds.

        Raises:
            KeyError: a column is missing.
            ValueError: the parts contradict each other.
        """
        self.ids, self._texts = ids, texts
        self.sessions, self.labels = Interned(sessions), Interned(labels)
        for name in COLUMNS:
            getattr(self, name).fill(columns[name])
        if {len(self.ids), len(texts), *(len(columns[name]) for name in COLUMNS)} != {len(ids)}:
            raise ValueError("columns of unequal length")
        for codes, values in ((self.session_codes, self.sessions.values), (self.label_codes, self.labels.values)):
            if len(ids) and not 0 <= codes.values.min() <= codes.values.max() < len(values):
                raise ValueError("a code without a value")
        self._relink()

    def _relink(self) -> None:
        self._positions = {turn_id: position for position, turn_id in enumerate(self.ids)}
        self._neighbours.rebuild(self.session_codes.values, self.times.values)


def is_question(text: str) -> bool:
    """Whether the turn ends by asking."""
    return text[-64:].rstrip(" \t\r\n\"'”’»)]").endswith(_QUESTION_ENDS)
