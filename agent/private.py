"""Keeps what users say, and who they are, out of logs and traces that LiveKit writes.

LiveKit marks what it logs of a conversation (``lk.pii.…``), but logs it; and it logs room names and identities, which
hold the caller's number on phone calls. Above: worker, job. Below: livekit's conventions.
"""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any

from livekit.agents.telemetry import trace_types

_PLAIN = (int, float, bool, type(None))
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
# What stands for a person or a call by a name somebody has chosen; server-made ids (room_id, job_id) stay.
_NAMES = frozenset({"room", "room_name", "participant", "participant_identity", "identity", "user_input", "text"})
_WHOLE_JOBS = frozenset({"job", "job_request"})

_SIP_IDENTITY = re.compile(r"\bsip_[^\s'\",;)}\]]*")
_NUMBER = re.compile(r"\+\d[\d ().-]{5,18}\d(?!\d)|(?<![\w.:-])\d{9,15}(?![\w:-]|\.\d)|(?<=\btel:)\d+")


# What a model server answers to a request that it refuses may repeat the request: all that was said, in several lines.
# It is in an error's text, or in what livekit calls its body; in a traceback the next error comes behind an empty line.
_ANSWER = re.compile(
    r"(Error code: \d+(?= - )|(?:retryable=\w+|request_id=[\w'-]+|Error\((?:'[^'\n]*'|\"[^\"\n]*\")), body="
    r"|(?:openai\.|caused by )APIError: ).*?(?=\n\n(?:The above|During handling)|\Z)",
    re.DOTALL,
)


def mask(text: str) -> str:
    """``text`` without phone numbers, the identities that are made of them, and what model servers answer."""
    return _NUMBER.sub("(number)", _SIP_IDENTITY.sub("sip_(number)", _ANSWER.sub(r"\1", text)))


def is_private(key: str) -> bool:
    """Whether a record's field of this name may say who somebody is or what was said."""
    return "pii" in key.split(".") or key in _NAMES or key in _WHOLE_JOBS


class PrivateFilter(logging.Filter):
    """Takes private fields off every record, and numbers out of the rest."""

    def filter(self, record: logging.LogRecord) -> bool:
        for key in [key for key in record.__dict__ if key not in _STANDARD]:
            if is_private(key):
                delattr(record, key)
            else:
                setattr(record, key, _masked(getattr(record, key)))
        record.msg, record.args = mask(_message(record)), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text, record.exc_info = mask(record.exc_text), None
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # what is wrong with a line of the log must not end what has written it
        return str(record.msg)


def _masked(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, str):
        return mask(value)
    try:
        if isinstance(value, dict | list | tuple):
            return mask(json.dumps(value, default=str, ensure_ascii=False))
        return mask(f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value))
    except Exception:
        return type(value).__name__


_filter = PrivateFilter()


def keep_logs_private() -> None:
    """Put the filter on every handler there is. A job's records come to its worker's handlers too."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_filter)


def keep_traces_private() -> None:
    """Have LiveKit strip personal data from what it hands to other exporters than LiveKit Cloud's."""
    os.environ.setdefault("LIVEKIT_TELEMETRY_ALLOW_PII", "0")
    # Of a SIP participant's attributes only the number is marked; a header or the host name may hold it as well.
    trace_types.ATTR_SIP_PREFIX = "lk.pii.sip."
