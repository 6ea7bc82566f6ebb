"""What tests of recall look for: a remembered sentence, and the one block that it is in."""

from __future__ import annotations

from memory.context.block import CLOSE, OPEN
from tests.support.scripted_llm import Request
from tests.support.sessions import ScriptedRetriever, passage

BISCUIT = "My cat is called Biscuit."


def remembering(text: str = BISCUIT) -> ScriptedRetriever:
    return ScriptedRetriever([passage(text)])


def check_one_block(request: Request) -> None:
    """One block, at the start of the last user message, and none anywhere else."""
    everything = "\n".join(text for _, text in request.messages)
    assert everything.count(OPEN) == everything.count(CLOSE) == 1
    assert request.last_user.startswith(OPEN)
    assert BISCUIT in request.last_user
    assert request.messages[-1][0] == "user" or request.last_user in [text for _, text in request.messages[-3:]]
