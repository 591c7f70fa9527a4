"""Without the native library some commands start, and others report why they cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REASON = "libsomething.so.7: undefined symbol: missing"

# Python imports it at its start, so the finder comes before all others.
BREAKING = f"""
import sys

class Breaking:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sparring._native":
            raise ImportError({REASON!r})

sys.meta_path.insert(0, Breaking)
"""

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs Python in an environment whose native library is broken."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BREAKING)

    # An installed one may be found by it, too.
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "100"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_doctor_reports_it_first_and_fails(run_python: RunPython) -> None:
    ran = run_python("-m", "sparring", "doctor")
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.startswith("problem: the native library of sparring cannot be loaded")
    assert REASON in ran.stdout.splitlines()[0]
    assert "pip install --force-reinstall sparring" in ran.stdout.splitlines()[0]
    assert "usable cores" in ran.stdout
    assert ran.stderr == ""


def test_doctor_also_reports_it_first_in_json(run_python: RunPython) -> None:
    ran = run_python("-m", "sparring", "doctor", "--json")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert next(iter(found)) == "problems"
    assert REASON in found["problems"][0]
    assert found["native"] is None
    assert found["versions"]["sparring"]


@pytest.mark.parametrize(
    "command",
    [
        ("train", "run.yaml", "seed=3", "--json"),
        pytest.param(("config", "show", "run.yaml"), marks=pytest.mark.slow),
        pytest.param(("inspect", "runs"), marks=pytest.mark.slow),
    ],
)
def test_other_commands_report_why_they_cannot_run(
    run_python: RunPython, command: tuple[str, ...]
) -> None:
    ran = run_python("-m", "sparring", *command)
    assert ran.returncode == 2
    assert REASON in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_version_and_help_are_given(run_python: RunPython) -> None:
    assert run_python("-m", "sparring", "--version").stdout.startswith("sparring ")
    assert "doctor" in run_python("-m", "sparring", "--help").stdout


def test_pytest_runs_if_sparring_is_installed_but_unused(
    run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert True\n")
    ran = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


@pytest.mark.parametrize(
    "code",
    ["import sparring; sparring.StepContainer", "from sparring import StepContainer",
     "import sparring.kernels.functions"],
)  # fmt: skip
def test_imports_that_need_native_code_report_the_reason(run_python: RunPython, code: str) -> None:
    ran = run_python("-c", code)
    assert ran.returncode == 1
    assert "ImportError" in ran.stderr.splitlines()[-1]
    assert REASON in ran.stderr.splitlines()[-1]
