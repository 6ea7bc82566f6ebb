"""Frames of the recall host's protocol as another program would write them, whatever is in them."""

from __future__ import annotations

import json
from typing import Any


def frame(**message: Any) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body
