"""Precedence: of all threads of a process that leads its session, where the system allows it, and given up again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory import scheduling
from memory.scheduling import Precedence

NICE = -7
USUAL = os.getpriority(os.PRIO_PROCESS, 0)
_TELLS = f"""
import json, os, subprocess, sys, threading
from memory.scheduling import Precedence, as_usual

usual = os.getpriority(os.PRIO_PROCESS, 0)

def may():
    try:
        os.setpriority(os.PRIO_PROCESS, 0, {NICE})
    except OSError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, usual)
    return True

def nice():
    found, there, done = [], threading.Event(), threading.Event()
    def run():
        found.append(threading.get_native_id())
        there.set()
        done.wait(10)
    threading.Thread(target=run).start()
    assert there.wait(10)
    threads = (0, *found) if sys.platform == "linux" else (0, 0)  # elsewhere a thread has no id that is a process's
    precedence.take()
    taken = [os.getpriority(os.PRIO_PROCESS, tid) for tid in threads]
    precedence.give()
    given = [os.getpriority(os.PRIO_PROCESS, tid) for tid in threads]
    done.set()
    return {{"taken": taken, "given": given}}

system_allows = may()
precedence = Precedence(int(sys.argv[1]))
report = nice()
precedence.take()
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
as_usual(child.pid)
report["child"] = os.getpriority(os.PRIO_PROCESS, child.pid)
child.communicate()
print(json.dumps({{"system": system_allows, "allowed": precedence.allowed, **report}}))
"""


def told(nice: int, *, leads: bool) -> dict[str, Any]:
    argv = [sys.executable, "-c", _TELLS, str(nice)]
    root = Path(__file__).parents[2]
    done = subprocess.run(argv, start_new_session=leads, capture_output=True, check=True, cwd=root, timeout=30)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_precedence_is_of_all_threads_and_only_until_it_is_given_up() -> None:
    report = told(NICE, leads=True)
    assert report["allowed"] == report["system"]
    assert report["taken"] == ([NICE, NICE] if report["system"] else [USUAL, USUAL])
    assert report["given"] == [USUAL, USUAL]
    assert report["child"] == USUAL


@pytest.mark.parametrize(("nice", "leads"), [(NICE, False), (USUAL, True)])
def test_a_process_among_others_or_that_is_not_to_keeps_its_priority(nice: int, leads: bool) -> None:
    report = told(nice, leads=leads)
    assert (report["allowed"], report["taken"]) == (False, [USUAL, USUAL])


def test_where_the_system_refuses_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(which: int, who: int, nice: int) -> None:
        tried.append(nice)
        raise PermissionError

    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(os, "setpriority", refuse)
    precedence = Precedence(NICE)
    precedence.take()
    precedence.give()
    assert (precedence.allowed, tried) == (False, [NICE])


def test_what_the_system_lets_change_only_now_and_then_is_changed_when_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    lets = True

    def set_group(nice: int) -> bool:
        if lets:
            groups.append(nice)
        return lets

    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(scheduling, "_set", lambda _: True)
    monkeypatch.setattr(scheduling, "_group_nice", lambda: 3)
    monkeypatch.setattr(scheduling, "_set_group", set_group)
    precedence = Precedence(USUAL - 1)
    precedence.take()
    precedence.take()
    lets = False
    assert not precedence.give()
    assert not precedence.give()
    lets = True
    assert precedence.give()
    assert precedence.give()
    assert groups == [USUAL - 1, 3]
