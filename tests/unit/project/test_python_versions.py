"""Each supported Python of this machine: sources compile, the locks install, all can be imported; in the long
run, the unit tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import interpreters

ROOT = Path(__file__).parents[3]
SOURCES = ("agent", "memory", "tests", "scripts", "deploy")
LOCKS = ("requirements/dev.txt", "requirements/models.txt")

# Imports every module of the project; those that need what the lock does not hold would be named.
_IMPORT_ALL = """
import importlib, pkgutil, sys
wrong = []
for package in ("agent", "memory"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not module.name.endswith("__main__") and ".migrations." not in module.name:
            try:
                importlib.import_module(module.name)
            except Exception as error:
                wrong.append(f"{module.name}: {error!r}")
sys.exit("\\n".join(wrong) or 0)
"""


@pytest.fixture(params=interpreters.MINORS)
def interpreter(request: pytest.FixtureRequest) -> interpreters.Interpreter:
    found = interpreters.found().get(request.param)
    if found is None:
        pytest.skip(f"needs Python {request.param} (on PATH, or by pyenv or uv)")
    return found


def test_this_python_is_supported() -> None:
    assert ".".join(map(str, sys.version_info[:2])) in interpreters.found()


def test_the_classifiers_name_the_versions_that_are_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert [minor for minor in interpreters.MINORS if f'"Programming Language :: Python :: {minor}"' not in text] == []


def test_every_source_compiles(interpreter: interpreters.Interpreter) -> None:
    """Also without a warning, such as of an escape sequence that a later Python refuses. Nothing is written."""
    code = (
        "import pathlib, sys\n"
        "paths = [path for root in sys.argv[1:] for path in pathlib.Path(root).rglob('*.py')]\n"
        "for path in paths: compile(path.read_text(encoding='utf-8'), str(path), 'exec', dont_inherit=True)\n"
        "print(len(paths))"
    )
    command = [str(interpreter.executable), "-I", "-W", "error", "-c", code, *SOURCES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.fixture(scope="module", params=interpreters.MINORS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that the locks hold."""
    found = interpreters.found().get(request.param)
    if found is None:
        pytest.skip(f"needs Python {request.param} (on PATH, or by pyenv or uv)")
    if found.version.startswith("{}.{}.".format(*sys.version_info)):
        return Path(sys.executable)  # this one has them
    venv = tmp_path_factory.mktemp(request.param) / "venv"
    run("sh", "scripts/setup.sh", venv, *LOCKS, PYTHON=str(found.executable))
    return venv / "bin" / "python"


def run(*words: str | Path, **environment: str) -> None:
    env = {**os.environ, **environment}
    done = subprocess.run([*map(str, words)], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = f"{done.stdout}\n{done.stderr}".splitlines()
        tests = [line for line in lines if line.startswith("tests/") and "PASSED" not in line]
        pytest.fail("\n".join([" ".join(map(str, words[:4])), *tests[:20], "…", *lines[-40:]]), pytrace=False)


@pytest.mark.timeout(600)
def test_the_locks_install_and_everything_can_be_imported(installed: Path) -> None:
    run(installed, "-c", _IMPORT_ALL)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_the_unit_tests_pass(installed: Path) -> None:
    run(installed, "-m", "pytest", "-v", "tests/unit", "--ignore", "tests/unit/project")
