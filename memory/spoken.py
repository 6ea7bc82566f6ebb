"""Which words of a text were heard by a given moment of its audio, from what the audio itself shows.

A synthesiser that gives the times of its words says so exactly. Of any other only text and sound are known: pauses in
the sound are matched with punctuation, and between two such sure moments time is shared out by how long words look.
What is uncertain is left out: the result lags behind what was heard by a word or two rather than being ahead of it.

Pure. Above: heard. Below: nothing of the project (numpy is in every process that runs livekit-agents).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP_S = 0.01
SLOW_SECONDS_PER_LETTER = 0.075  # a slow speaker: until the session's own voice has been measured
MEASURED_LETTERS_MIN = 20

# Measured on a neural voice whose true word times are known (tests/unit/plugin/test_spoken.py keeps them so).
_QUIET = 0.03  # of the loud tenth: what is below is silence
_GAP_S = 0.1  # shorter silences are inside a word
_LONG_GAP_S = 0.2
# How far a word's end may be from where its length puts it: times the root of the seconds to a sure moment.
_SPREAD = 0.24
_NUMBER_SPREAD = 1.5  # numbers are read in many ways
_EDGE_S = 0.03
_LOOKBACK = 3  # pauses or marks that may be skipped between two matches

_LONE = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"  # scripts without spaces: a word each
_WORD = re.compile(rf"[{_LONE}][^\w\s]*|[^\s{_LONE}]+")
_STOP = re.compile(r"[.!?…。！？؟।][\"'”’)\]*_]*$")
_COMMA = re.compile(r"[,;:،；，、：—–-][\"'”’)\]*_]*$")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_SYMBOLS = {"$": 7, "€": 5, "£": 6, "%": 8, "&": 3, "+": 4, "=": 6, "@": 2, "#": 6, "°": 7}


class Word(NamedTuple):
    """A word of a text. ``end``: the index behind it. ``letters``: how long it sounds. ``pause``: 2 after a full stop,
    1 after a comma, else 0."""

    end: int
    letters: float
    pause: int
    number: bool = False


class Piece(NamedTuple):
    """Text whose place in the audio is known, in seconds. ``end_s`` None: up to the next piece."""

    text: str
    start_s: float
    end_s: float | None = None


@dataclass
class Loudness:
    """The loudness of audio that is given frame by frame, in steps of ``STEP_S``."""

    _parts: list[NDArray[np.float32]] = field(default_factory=list)
    _rest: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))

    def add(self, samples: NDArray[np.int16], rate: int) -> None:
        """Take the next mono samples, ``rate`` of them a second."""
        step = max(1, round(rate * STEP_S))
        audio = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(audio) // step * step
        if whole:
            squares = np.square(audio[:whole].astype(np.float32)).reshape(-1, step)
            self._parts.append(np.sqrt(squares.mean(axis=1)))
        self._rest = audio[whole:].copy()

    def steps(self) -> NDArray[np.float32]:
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0] if self._parts else np.zeros(0, np.float32)


@dataclass
class Spoken:
    """A text and its audio, as far as it was made. ``complete``: the audio is that of the whole text."""

    text: str
    pieces: Sequence[Piece]
    loudness: NDArray[np.float32]
    complete: bool
    seconds_per_letter: float | None = None


def heard(spoken: Spoken, position_s: float) -> str:
    """The part of the text that was heard once ``position_s`` seconds of the audio had been played."""
    done = 0
    for span in _spans(spoken):
        if position_s < span.end_s:
            return spoken.text[: done + _end_inside(spoken, spoken.text[done : span.end], span, position_s)]
        done = span.end
    return spoken.text[:done]


def seconds_per_letter(spoken: Spoken) -> float | None:
    """How quickly this voice speaks; ``None`` where there is too little to tell."""
    letters = sum(word.letters for word in split(spoken.text))
    voiced = _Sound(spoken.loudness).voiced_s
    return voiced / letters if spoken.complete and letters >= MEASURED_LETTERS_MIN and voiced > 0 else None


def split(text: str) -> list[Word]:
    """The words of ``text`` that are spoken; marks without a letter or a digit belong to the word before."""
    words: list[Word] = []
    for match in _WORD.finditer(text):
        letters = _letters(match[0])
        pause = 2 if _STOP.search(match[0]) else 1 if _COMMA.search(match[0]) else 0
        if letters:
            words.append(Word(match.end(), letters, pause, _NUMBER.search(match[0]) is not None))
        elif words:
            words[-1] = words[-1]._replace(end=match.end(), pause=max(words[-1].pause, pause))
    return words


def _letters(word: str) -> float:
    number = _NUMBER.search(word)
    if number is not None:
        return _number_letters(number[0]) + _letters(word[: number.start()]) + _letters(word[number.end() :])
    return sum((2.5 if re.match(f"[{_LONE}]", c) else 1.0) if c.isalpha() else _SYMBOLS.get(c, 0) for c in word)


def _number_letters(number: str) -> float:
    """About as many letters as the number has when it is written out."""
    groups = re.split(r"[.,:]", number)
    return sum(6.0 * len(group) + (7.0 if len(group) >= 3 else 0.0) for group in groups) + 6.0 * (len(groups) - 1)


class _Span(NamedTuple):
    """Text up to index ``end`` that is spoken in ``start_s..end_s``; infinite where the end isn't known."""

    end: int
    start_s: float
    end_s: float


def _spans(spoken: Spoken) -> list[_Span]:
    """The pieces by their place in the text; the whole text as one span where they don't fit to it."""
    until = len(spoken.loudness) * STEP_S if spoken.complete else math.inf
    spans: list[_Span] = []
    cursor, now_s = 0, 0.0
    for index, piece in enumerate(spoken.pieces):
        word = piece.text.strip()
        found = spoken.text.find(word, cursor)
        following = spoken.pieces[index + 1].start_s if index + 1 < len(spoken.pieces) else until
        if found < 0 or piece.start_s < now_s:
            return [_Span(len(spoken.text), 0.0, until)]
        cursor, now_s = found + len(word), piece.start_s
        spans.append(_Span(cursor, piece.start_s, following if piece.end_s is None else piece.end_s))
    if not spans:
        return [_Span(len(spoken.text), 0.0, until)]
    return spans


def _end_inside(spoken: Spoken, text: str, span: _Span, position_s: float) -> int:
    """The index behind the last word of ``text`` that was surely heard, when the playing stopped inside the span."""
    words = split(text)
    if len(words) < 2 or position_s <= span.start_s:
        return 0
    first = int(span.start_s / STEP_S)
    last = None if span.end_s == math.inf else int(span.end_s / STEP_S)
    sound = _Sound(spoken.loudness[first:last])
    voice_s = spoken.seconds_per_letter or SLOW_SECONDS_PER_LETTER
    letters = _Matching(sound, words, last is not None, voice_s).letters_by(position_s - span.start_s)
    end = 0
    for word in words:
        letters -= word.letters
        if letters < -1e-6:
            break
        end = word.end
    return end


class _Gap(NamedTuple):
    """A pause: when it begins, how much voice lies before it, and how long it is."""

    at_s: float
    voiced_s: float
    length_s: float


class _Sound:
    """Where there is voice. ``voiced_by`` counts the seconds of voice, which pauses don't add to."""

    def __init__(self, loudness: NDArray[np.float32]) -> None:
        loud = loudness > max(1.0, _QUIET * float(np.percentile(loudness, 90))) if len(loudness) else np.zeros(0, bool)
        edges = np.flatnonzero(np.diff(np.concatenate([[True], loud, [True]]).astype(np.int8)))
        silences = [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
        inner = [(a, b) for a, b in silences if a > 0 and b < len(loud)]
        for a, b in inner:
            if (b - a) * STEP_S < _GAP_S:
                loud[a:b] = True
        self._voiced = np.concatenate([[0.0], np.cumsum(loud) * STEP_S])
        self.gaps = [
            _Gap(a * STEP_S, float(self._voiced[a]), (b - a) * STEP_S) for a, b in inner if (b - a) * STEP_S >= _GAP_S
        ]

    @property
    def voiced_s(self) -> float:
        return float(self._voiced[-1])

    def voiced_by(self, position_s: float) -> float:
        return float(self._voiced[min(int(position_s / STEP_S), len(self._voiced) - 1)])


class _Anchor(NamedTuple):
    """A sure moment: so much voice, so many letters. ``at_s``: when it is reached."""

    at_s: float
    voiced_s: float
    letters: float


class _Mark(NamedTuple):
    letters: float
    pause: int


class _Matching:
    """Pauses of the sound matched with punctuation, in order, at the least cost; the anchors are what came out."""

    def __init__(self, sound: _Sound, words: list[Word], whole: bool, voice_s: float) -> None:
        self._sound, self._words, self._whole = sound, words, whole
        self._total = sum(word.letters for word in words)
        self._rate = sound.voiced_s / self._total if whole else voice_s
        self._marks: list[_Mark] = []
        letters = 0.0
        for word in words[:-1]:
            letters += word.letters
            if word.pause:
                self._marks.append(_Mark(letters, word.pause))
        self._letters = [mark.letters for mark in self._marks]
        # What it costs to skip all before an index: unmarked pauses, unpaused marks.
        self._gap_costs = [0.0, *accumulate(1.5 if g.length_s >= _LONG_GAP_S else 0.3 for g in sound.gaps)]
        self._mark_costs = [0.0, *accumulate(2.0 if m.pause == 2 else 0.7 for m in self._marks)]
        self._anchors = self._matched()

    def letters_by(self, position_s: float) -> float:
        """How many letters were heard at least."""
        before = [anchor for anchor in self._anchors if anchor.at_s <= position_s][-1]
        after = next((anchor for anchor in self._anchors if anchor.at_s > position_s), None)
        voiced_s = self._sound.voiced_by(position_s) - before.voiced_s
        if voiced_s <= 0:
            return before.letters
        if after is None:
            return self._open_ended(before, voiced_s)
        length_s = after.voiced_s - before.voiced_s
        unsure_s = self._unsure_s(before, after, math.sqrt(voiced_s * max(0.0, length_s - voiced_s) / length_s))
        share = max(0.0, voiced_s - unsure_s) / length_s
        return before.letters + share * (after.letters - before.letters)

    def _open_ended(self, before: _Anchor, voiced_s: float) -> float:
        # What is made but not yet matched: not beyond the next full stop, for which a pause would be there.
        stop = next((m.letters - 0.1 for m in self._marks if m.pause == 2 and m.letters > before.letters), self._total)
        unsure_s = self._unsure_s(before, None, math.sqrt(voiced_s))
        return min(stop, before.letters + max(0.0, voiced_s - unsure_s) / self._rate)

    def _unsure_s(self, before: _Anchor, after: _Anchor | None, root: float) -> float:
        letters, number = 0.0, False
        for word in self._words:
            inside = letters >= before.letters - 1e-6 and (after is None or letters < after.letters - 1e-6)
            number = number or (inside and word.number)
            letters += word.letters
        return _EDGE_S + root * _SPREAD * (_NUMBER_SPREAD if number else 1.0)

    def _matched(self) -> list[_Anchor]:
        gaps, marks = self._sound.gaps, self._marks
        best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(-1, -1): (0.0, (-1, -1))}
        for gap in range(len(gaps)):
            for mark in self._near(gaps[gap]):
                ways = [
                    (best[last][0] + self._cost(last, (gap, mark)), last)
                    for last in self._before(gap, mark)
                    if last in best
                ]
                if ways:
                    best[gap, mark] = min(ways)
        pair = min(best, key=lambda pair: best[pair][0] + self._cost_of_rest(pair))
        anchors = [_Anchor(math.inf, self._sound.voiced_s, self._total)] if self._whole else []
        while pair != (-1, -1):
            anchors.append(_Anchor(gaps[pair[0]].at_s, gaps[pair[0]].voiced_s, marks[pair[1]].letters))
            pair = best[pair][1]
        return [_Anchor(0.0, 0.0, 0.0), *reversed(anchors)]

    def _near(self, gap: _Gap) -> range:
        """The marks that may be ``gap``: not all of them, or a long reply would take long."""
        slack_s = 2.0 + (0.2 if self._whole else 0.6) * gap.voiced_s
        from_letters, to_letters = ((gap.voiced_s + sign * slack_s) / self._rate for sign in (-1, 1))
        return range(bisect_left(self._letters, from_letters), bisect_right(self._letters, to_letters))

    @staticmethod
    def _before(gap: int, mark: int) -> list[tuple[int, int]]:
        near = [(g, m) for g in range(max(0, gap - _LOOKBACK), gap) for m in range(max(0, mark - _LOOKBACK), mark)]
        return [(-1, -1), *near] if gap < _LOOKBACK and mark < _LOOKBACK else near

    def _cost(self, last: tuple[int, int], pair: tuple[int, int]) -> float:
        """Of taking ``pair`` for the next match after ``last``: how odd the speed is, and what is skipped."""
        from_s, from_letters = self._place(last)
        to_s, to_letters = self._place(pair)
        return self._oddness(to_s - from_s, to_letters - from_letters) + self._skipped(last, pair)

    def _cost_of_rest(self, pair: tuple[int, int]) -> float:
        from_s, from_letters = self._place(pair)
        voiced_s = self._sound.voiced_s - from_s
        if self._whole:
            end = (len(self._sound.gaps), len(self._marks))
            return self._oddness(voiced_s, self._total - from_letters) + self._skipped(pair, end)
        passed = bisect_right(self._letters, from_letters + (voiced_s - 0.2) / (1.2 * self._rate))
        return self._skipped(pair, (len(self._sound.gaps), max(pair[1] + 1, passed)))

    def _place(self, pair: tuple[int, int]) -> tuple[float, float]:
        return (self._sound.gaps[pair[0]].voiced_s, self._letters[pair[1]]) if pair[0] >= 0 else (0.0, 0.0)

    def _skipped(self, last: tuple[int, int], pair: tuple[int, int]) -> float:
        gaps = self._gap_costs[pair[0]] - self._gap_costs[last[0] + 1]
        return gaps + self._mark_costs[pair[1]] - self._mark_costs[last[1] + 1]

    def _oddness(self, voiced_s: float, letters: float) -> float:
        expected_s = letters * self._rate
        return float(((voiced_s - expected_s) / (0.12 + 0.2 * expected_s)) ** 2)
