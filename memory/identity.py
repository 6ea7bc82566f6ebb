"""From a participant to a user, and from a Scope to the name of its memory (``group_id``).

Spellings of a number meet only where it is a phone number by its source; ids from elsewhere are opaque.
Above: service, plugin, stores. Below: models, errors.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote

from memory.errors import InvalidIdentity
from memory.models import Scope

GROUP_DIGEST_HEX = 24  # 96 bits: somebody who picks ids at will can't find one that meets a given other

_PLAIN = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_PHONE = re.compile(r"\+[0-9]{4,15}")
_LOOKS_LIKE_PHONE_FORM = re.compile(r"p[0-9]+")
_LOOKS_LIKE_DIGEST = re.compile(rf"h[0-9a-f]{{{GROUP_DIGEST_HEX}}}")
_MARKERS = frozenset({"org", "agent", "user", "session"})
_PART_CHARS_MAX = 64

_DIGITS = re.compile(r"\+?[0-9]{4,15}")
_E164 = re.compile(r"\+[1-9][0-9]{3,14}")  # no country's code starts with 0
# What carriers send for a number they withhold: BLOCKED, RESTRICTED, ANONYMOUS, UNKNOWN, UNAVAILABLE on a keypad.
_WITHHELD = frozenset({"2562533", "7378742833", "266696687", "8566696", "86282452253"})
_SEPARATORS = re.compile(r"[\s().\-/\u00a0\u2010-\u2015]")


class Assurance(IntEnum):
    """How sure we are of who it is; each use of memory has a minimum."""

    ANONYMOUS = 0  # withheld number, guest
    CALLER_ID = 1  # a number the network claims: can be spoofed, can be a family's
    SIGNED = 2  # a LiveKit token, a signed claim
    VERIFIED = 3  # a hook of the deployment: PIN, link, agent tool


@dataclass(frozen=True, slots=True)
class Identity:
    """Who takes part: ``user_id`` is ``None`` when nobody in particular (withheld number, guest)."""

    user_id: str | None
    assurance: Assurance
    channel: str = "webrtc"  # "phone" | "webrtc"
    name: str | None = None


def group_id(scope: Scope) -> str:
    """The name of the scope's memory: ``org_{org}_agent_{agent}_user_{user}`` of ``[A-Za-z0-9_-]``.

    ``+923136488867`` becomes ``p923136488867``, other characters ``_``, as users of the format expect. Wherever
    that mapping alone could let two scopes meet, a digest of all fields is appended, so that it is one-to-one.
    """
    parts = (scope.org_id, scope.agent_id, scope.user_id)
    base = f"org_{_fold(parts[0])}_agent_{_fold(parts[1])}_{scope.kind}_{_fold(parts[2])}"
    if all(_folds_alone(part) for part in parts):
        return base
    text = json.dumps([*parts, scope.kind], ensure_ascii=True).encode()
    return f"{base}_h{hashlib.sha256(text).hexdigest()[:GROUP_DIGEST_HEX]}"


def _fold(part: str) -> str:
    if _PHONE.fullmatch(part):
        return "p" + part[1:]
    return re.sub(r"[^A-Za-z0-9_-]", "_", part)[:_PART_CHARS_MAX]


def _folds_alone(part: str) -> bool:
    """Whether folding ``part`` loses nothing and can't be mistaken for a separator, a phone form or a digest."""
    if _PHONE.fullmatch(part):
        return True
    words = part.split("_")
    return (
        _PLAIN.fullmatch(part) is not None
        and len(part) <= _PART_CHARS_MAX
        and not _LOOKS_LIKE_PHONE_FORM.fullmatch(part)
        and not any(word in _MARKERS or _LOOKS_LIKE_DIGEST.fullmatch(word) for word in words)
    )


def group_digest(scope: Scope) -> str:
    """A short name of the scope for logs and file names: stable, and says nothing about who it is to a reader."""
    return hashlib.sha256(group_id(scope).encode()).hexdigest()[:16]


def normalise_phone(text: str, region: str | None = None) -> str | None:
    """The E.164 form of a phone number as SIP delivers it, or ``None`` where it is none.

    Takes ``+1 (555) 010-9999``, ``+1555…;cpc=ordinary``, ``%2B1555…``, ``tel:+1555…`` and ``sip:+1555…@host``.
    A number without ``+`` is completed only when ``region`` (ISO 3166, such as ``US``) says how; otherwise it is
    ``tel:`` and its digits, which alone may be an id of somebody else's from elsewhere. A number that stands for a
    withheld one (``+266696687``, zeros) is none.
    """
    number = unquote(text).strip()
    number = re.sub(r"^(?:tel|sips?):", "", number, flags=re.IGNORECASE)
    number = _SEPARATORS.sub("", number.split(";", 1)[0].split("@", 1)[0])
    if number.startswith("00") and len(number) > 8:
        number = "+" + number[2:]
    digits = number.removeprefix("+")
    if not _DIGITS.fullmatch(number) or digits in _WITHHELD or not digits.strip("0"):
        return None
    if number.startswith("+"):
        return number if _E164.fullmatch(number) else None
    return _completed(number, region)


def _completed(digits: str, region: str | None) -> str:
    if region is None:
        return f"tel:{digits}"
    import phonenumbers  # only where a region is set: 5 MB of tables

    try:
        parsed = phonenumbers.parse(digits, region)
    except phonenumbers.NumberParseException:
        return f"tel:{digits}"
    return phonenumbers.format_number(parsed, phonenumbers.PhoneNumberFormat.E164)


def identify(identity: str, *, is_sip: bool, attributes: Mapping[str, str], region: str | None = None) -> Identity:
    """Who a LiveKit participant is, from what the server vouches for: its identity, kind and SIP attributes.

    Display name, metadata and other attributes are the client's to edit and are never looked at. On an inbound
    call the user is the caller (``sip.phoneNumber``); ``sip.trunkPhoneNumber`` is the deployment's own number
    and never a user. A withheld or missing number is anonymous.

    Raises:
        InvalidIdentity: a WebRTC participant without an identity.
    """
    if not is_sip:
        if not identity:
            raise InvalidIdentity("The participant has no identity; issue tokens with one (with_identity).")
        return Identity(identity, Assurance.SIGNED)
    number = normalise_phone(attributes.get("sip.phoneNumber") or "", region)
    if number is None:
        return Identity(None, Assurance.ANONYMOUS, "phone")
    return Identity(number, Assurance.CALLER_ID, "phone")
