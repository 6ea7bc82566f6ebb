"""What the demo refuses before it starts anything."""

from __future__ import annotations

import argparse

import pytest

from agent.commands.demo import DemoRefused, run
from agent.models import ModelUnavailable


def arguments(*, say: str = "I like peanuts.", ask: str = "Which food do I like?") -> argparse.Namespace:
    return argparse.Namespace(say=say, ask=ask, user=None, json=False)


def test_without_the_local_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", lambda: ["hibari"])
    with pytest.raises(ModelUnavailable, match=r"hibari.*pip install .*\[local\]"):
        run(arguments())


@pytest.mark.parametrize("ask", ["Do I like peanuts?", "Peanuts: who likes them?"])
def test_a_question_that_says_it_all_shows_nothing(monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", list)
    with pytest.raises(DemoRefused, match="Ask in other words"):
        run(arguments(ask=ask))


@pytest.mark.parametrize("say", ["Yes.", "It is.", "…"])
def test_a_saying_without_a_fact_shows_nothing(monkeypatch: pytest.MonkeyPatch, say: str) -> None:
    monkeypatch.setattr("agent.local.models.missing_packages", list)
    with pytest.raises(DemoRefused, match="Say a fact"):
        run(arguments(say=say))
