"""How a model server goes wrong, on demand: one ``Fault`` for one request. Above: openai_server. Below: nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

LOGIN_PAGE = b"<!doctype html><html><body><h1>Sign in to continue</h1></body></html>"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with an answer; the defaults change nothing.

    A piece is one event of a stream, one part of a sound, or half of a JSON answer.
    """

    status: int = 200  # another one: refused, with OpenAI's error body
    retry_after_s: int | None = None
    silent: bool = False  # takes the request and never answers
    delay_s: float = 0.0  # headers at once, the first piece so much later
    hold: asyncio.Event | None = None  # headers at once, the first piece when this is set
    cut_after: int | None = None  # the connection breaks after so many pieces
    garbled: bool = False  # each piece ends in its middle
    body: bytes | None = None  # sent in place of the answer
    content_type: str | None = None  # in place of the right one


RATE_LIMITED = Fault(status=429, retry_after_s=20)
UNAUTHORIZED = Fault(status=401)
BROKEN = Fault(status=500)
SILENT = Fault(silent=True)
GARBLED = Fault(garbled=True)
MISLABELLED = Fault(content_type="text/plain")
LOGIN = Fault(body=LOGIN_PAGE, content_type="text/html")  # what a captive portal or a proxy says to everything


def cut(after: int) -> Fault:
    return Fault(cut_after=after)


NAMED = {
    "429": RATE_LIMITED,
    "401": UNAUTHORIZED,
    "500": BROKEN,
    "silent": SILENT,
    "slow": Fault(delay_s=3.0),
    "cut-1": cut(1),
    "garbled": GARBLED,
    "mislabelled": MISLABELLED,
    "login": LOGIN,
}


def label(value: object) -> str:
    """What a test with this parameter is called."""
    if not isinstance(value, Fault):
        return str(value)
    known = next((name for name, fault in NAMED.items() if fault == value), None)
    return known or f"cut-{value.cut_after}"
