"""How many tokens a text may take, without any tokenizer.

``estimate_tokens`` weighs characters by what byte-pair tokenizers make of their script. Against GPT-2's tokenizer,
which needs more tokens than its successors, it over-counts English conversation (1.25 times over all, never less
than 1) and under-counts code, other languages and other scripts by a third at most (checked by a test). Dense text
without words, such as base64, it under-counts by more than half. Pass another ``TokenCounter`` where the model's own
is at hand. Above: truncation, block. Below: nothing.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

TokenCounter = Callable[[str], int]
Message = Mapping[str, Any]

MESSAGE_TOKENS = 4  # role and delimiters of one message in chat templates
ELLIPSIS = "…"

_PARTS = 12  # weights are twelfths of a token


def _weights() -> bytes:
    """Twelfths of a token by byte of UTF-8: a character's first byte carries its whole weight."""
    table = bytearray(256)
    table[0x00:0x80] = bytes([9]) * 128  # punctuation and controls: hardly ever two to a token
    for letter in string.ascii_letters.encode():
        table[letter] = 3
    table[ord(" ")] = 3
    for digit in string.digits.encode():
        table[digit] = 12  # some models take digits one by one
    table[0xC0:0xE0] = bytes([12]) * 32  # accented Latin, Greek, Cyrillic, Hebrew, Arabic
    table[0xE0:0xF0] = bytes([18]) * 16  # Devanagari, Thai, Han, kana
    table[0xEA:0xEE] = bytes([24]) * 4  # Hangul
    table[0xE2] = 12  # dashes, curly quotes, symbols
    table[0xF0:] = bytes([36]) * 16  # emoji
    return bytes(table)


_WEIGHTS = _weights()


def estimate_tokens(text: str) -> int:
    """How many tokens ``text`` takes at most, as a rule; 0 for "".

    Never less for a longer text with the same start, and ``count(a + b)`` is ``count(a) + count(b)`` or one less.
    """
    total = sum(text.encode("utf-8", "surrogatepass").translate(_WEIGHTS))
    return -(-total // _PARTS)


def message_tokens(message: Message, count: TokenCounter = estimate_tokens) -> int:
    """The tokens of one chat message: its texts, whatever else it carries, and its delimiters."""
    return MESSAGE_TOKENS + sum(count(text) for text in _texts(message))


def count_tokens(messages: Iterable[Message], count: TokenCounter = estimate_tokens) -> int:
    """The tokens of a list of chat messages (``{"role": …, "content": …}``)."""
    return sum(message_tokens(message, count) for message in messages)


def _texts(message: Message) -> Iterable[str]:
    for key, value in message.items():
        if key != "role" and value is not None:
            yield from _texts_in(value)


def _texts_in(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)
    else:
        yield str(value)


def cut_end(text: str, tokens_max: int, count: TokenCounter = estimate_tokens) -> str:
    """``text``, or its start with ``…`` within ``tokens_max``; "" where not even that fits."""
    return _cut(text, tokens_max, count, lambda kept: text[:kept].rstrip() + ELLIPSIS)


def cut_middle(text: str, tokens_max: int, count: TokenCounter = estimate_tokens) -> str:
    """``text``, or its two ends with ``…`` between, within ``tokens_max``: a text's question often comes last."""

    def ends(kept: int) -> str:
        tail = kept // 2
        return f"{text[: kept - tail].rstrip()} {ELLIPSIS} {text[len(text) - tail :].lstrip()}"

    return _cut(text, tokens_max, count, ends)


def _cut(text: str, tokens_max: int, count: TokenCounter, keeping: Callable[[int], str]) -> str:
    if count(text) <= tokens_max:
        return text
    low, high = 0, min(len(text), max(tokens_max, 1))  # what keeps `low` characters fits, or nothing does
    while high < len(text) and count(keeping(high)) <= tokens_max:
        low, high = high, min(2 * high, len(text))  # from below: a huge text costs no more than what is kept of it
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(keeping(middle)) <= tokens_max else (low, middle)
    return keeping(low) if low else ""
