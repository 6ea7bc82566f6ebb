"""Whether somebody who pauses has evidently not said everything: by the words that Whisper heard up to the pause.

Of a sentence that breaks off Whisper writes no full stop: dots, a dash, or nothing. Beside that, some words end no
sentence, and digits of a number come in groups. English, as the listener. Above: stt. Below: nothing.
"""

from __future__ import annotations

import re

_CLOSED = re.compile(r"(?<!\.)[.!?][\"')\]]*$")
_WORD = re.compile(r"[a-z']+")
_NEVER_LAST = frozenset(
    ["a", "an", "the", "my", "your", "our", "their", "and", "or", "but", "because", "if", "than", "of", "i'm", "we're"]
)
_DIGITS = r"[\d\s().,+-]*\d\W*$"
_DICTATED = re.compile(
    rf"(?:^{_DIGITS}|\b(?:number|code|phone|mobile|card|account|reference|postcode|zip|id)\b.*\s{_DIGITS})",
    re.IGNORECASE,
)


def is_unfinished(text: str) -> bool:
    """Whether ``text`` breaks off: without a full stop, after a word that ends no sentence, or among digits of a number
    that is being dictated. Nothing heard is nothing unfinished."""
    text = text.strip()
    if not text:
        return False
    if not _CLOSED.search(text):
        return True
    if text[-1] != ".":
        return False
    words = _WORD.findall(text.lower())
    return bool(words and words[-1] in _NEVER_LAST) or _DICTATED.search(text) is not None
