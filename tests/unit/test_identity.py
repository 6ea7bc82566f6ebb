"""Identity: one name for one memory, different names for different ones, however the ids are chosen."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memory.errors import InvalidIdentity
from memory.identity import Assurance, group_digest, group_id, identify, normalise_phone
from memory.models import Scope
from tests.support.services import L02_IDS


def scope(user: str, org: str = "acme", agent: str = "helper", kind: str = "user") -> Scope:
    return Scope.from_dict({"org_id": org, "agent_id": agent, "user_id": user, "kind": kind})


DIGEST = "0123456789abcdef01234567"
MARKERS = ["org", "agent", "user", "session", "_user_", "_agent_", "org_"]
LOOK_ALIKES = ["p", "p923136", "+923136", "+", f"h{DIGEST}", f"_h{DIGEST}", "_h0", "x" * 64, "_", "__"]
LETTERS = ["a", "A", "b", "1", "-", "@", ".", "/", " ", "é", "e\u0301", "ل", "م", "ı", "I"]
PIECES = st.sampled_from(MARKERS + LOOK_ALIKES + LETTERS)
ADVERSARIAL = st.lists(PIECES, min_size=1, max_size=5).map("".join)
ORDINARY = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
PARTS = st.tuples(*[ADVERSARIAL | ORDINARY] * 3, st.sampled_from(["user", "session"]))


def of(parts: tuple[str, str, str, str]) -> Scope:
    org, agent, user, kind = parts
    return scope(user, org, agent, kind)


@pytest.mark.promise("P-isolated")
@given(PARTS, PARTS)
@example(("a", "b", "c_user_d", "user"), ("a", "b_user_c", "d", "user"))
@example(("a_agent_b", "c", "d", "user"), ("a", "b_agent_c", "d", "user"))
@example(("a", "b", "+923136488867", "user"), ("a", "b", "p923136488867", "user"))
@example(("a", "b", "x", "user"), ("a", "b", "x", "session"))
@example(("a", "b", "é", "user"), ("a", "b", "e\u0301", "user"))
def test_P_isolated_group_ids_are_one_to_one(one: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> None:
    names = group_id(of(one)), group_id(of(other))
    assert (names[0] == names[1]) == (one == other)
    assert (group_digest(of(one)) == group_digest(of(other))) == (one == other)


@given(PARTS)
def test_nobody_can_take_anothers_name_for_an_id(parts: tuple[str, str, str, str]) -> None:
    """Whoever knows somebody's group id can't choose ids that lead to it."""
    target = group_id(of(parts))
    found = re.fullmatch(r"org_(.*)_agent_(.*)_(user|session)_(.*)", target)
    assert found is not None
    for user in (found[4], target, target.removeprefix("org_")):
        forged = (found[1] or "x", found[2] or "x", user or "x", found[3])
        assert (group_id(of(forged)) == target) == (forged == parts)


@given(PARTS)
def test_group_ids_are_safe_names(parts: tuple[str, str, str, str]) -> None:
    name = group_id(of(parts))
    assert re.fullmatch(r"org_[A-Za-z0-9_-]+", name)
    assert len(name) <= 300
    assert name == group_id(of(parts))


@pytest.mark.case("L02")
def test_L02_every_id_has_a_name_of_its_own() -> None:
    names = [group_id(scope(user)) for user in L02_IDS]
    assert len(set(names)) == len(L02_IDS)
    assert not {"_", "default_db"} & set(names)
    for one, other in itertools.combinations(L02_IDS, 2):
        assert group_digest(scope(one)) != group_digest(scope(other))


def test_the_formats_examples_hold() -> None:
    assert group_id(scope("+923136488867")) == "org_acme_agent_helper_user_p923136488867"
    assert group_id(scope("u-42")) == "org_acme_agent_helper_user_u-42"
    assert group_id(scope("sarah")) == "org_acme_agent_helper_user_sarah"
    assert group_id(scope("user@example.org")).startswith("org_acme_agent_helper_user_user_example_org_h")


def test_a_digest_in_logs_does_not_tell_the_number() -> None:
    digest = group_digest(scope("+923136488867"))
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert "923136" not in digest


@pytest.mark.parametrize(
    "text",
    [
        "+15550109999",
        "+1 (555) 010-9999",
        "+1 555 010 9999",
        "+1.555.010.9999",
        "%2B15550109999",
        "tel:+15550109999",
        "TEL:+1-555-010-9999",
        "sip:+15550109999@carrier.example",
        "sips:+15550109999@carrier.example;transport=tls",
        "+15550109999;cpc=ordinary",
        "0015550109999",
        "  +15550109999\n",
    ],
)
def test_spellings_of_one_number_meet(text: str) -> None:
    assert normalise_phone(text) == "+15550109999"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "anonymous",
        "Anonymous@anonymous.invalid",
        "unavailable",
        "Restricted",
        "+",
        "123",
        "+0123456789",
        "0000000000",
        "+000000",
        "+266696687",
        "+7378742833",
        "86282452253",
        "+1555010999912345678",
        "sip:alice@example.org",
        "+1555010\x00",
    ],
)
def test_a_withheld_number_is_nobodys(text: str) -> None:
    assert normalise_phone(text) is None
    found = identify("sip_x", is_sip=True, attributes={"sip.phoneNumber": text})
    assert (found.user_id, found.assurance, found.channel) == (None, Assurance.ANONYMOUS, "phone")


def test_a_region_completes_a_national_number() -> None:
    assert normalise_phone("(555) 010-9999", "US") == "+15550109999"
    assert normalise_phone("0313 6488867", "PK") == "+923136488867"
    assert normalise_phone("555 010 9999") == "tel:5550109999"  # without a region nobody can tell whose
    assert normalise_phone("tel:555-010-9999") == "tel:5550109999"


@pytest.mark.promise("P-isolated")
@pytest.mark.parametrize("text", ["1042", "555 010 9999", "15550109999"])
def test_P_isolated_a_number_that_may_be_anybodys_is_no_id_from_elsewhere(text: str) -> None:
    """An app's own ids are often numbers, and a phone may claim any number: an extension, say, or one without a +."""
    digits = text.replace(" ", "")
    phone = identify(f"sip_{text}", is_sip=True, attributes={"sip.phoneNumber": text})
    user = identify(digits, is_sip=False, attributes={})
    assert phone.user_id is not None
    assert user.user_id == digits
    assert group_id(scope(phone.user_id)) != group_id(scope(digits))


def test_the_caller_is_the_user_and_the_trunk_never_is() -> None:
    attributes = {"sip.phoneNumber": "+1 (555) 010-9999", "sip.trunkPhoneNumber": "+15550100000"}
    found = identify("sip_+15550109999", is_sip=True, attributes=attributes)
    assert (found.user_id, found.assurance) == ("+15550109999", Assurance.CALLER_ID)
    only_trunk = identify("sip_x", is_sip=True, attributes={"sip.trunkPhoneNumber": "+15550100000"})
    assert only_trunk.user_id is None


@pytest.mark.case("L06")
def test_L06_attributes_a_web_client_may_edit_are_not_looked_at() -> None:
    found = identify("guest-7", is_sip=False, attributes={"user_id": "victim", "sip.phoneNumber": "+15550109999"})
    assert (found.user_id, found.assurance, found.channel) == ("guest-7", Assurance.SIGNED, "webrtc")


def test_a_web_participant_without_identity_is_refused() -> None:
    with pytest.raises(InvalidIdentity, match="with_identity"):
        identify("", is_sip=False, attributes={})


def test_ids_from_elsewhere_are_opaque() -> None:
    assert identify("+1 (555) 010-9999", is_sip=False, attributes={}).user_id == "+1 (555) 010-9999"


def test_assurance_is_ordered() -> None:
    assert Assurance.ANONYMOUS < Assurance.CALLER_ID < Assurance.SIGNED < Assurance.VERIFIED
