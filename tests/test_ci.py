"""Tests of `tools/ci.py`: limits of stages, and the repetition of failed tests."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="pip install psutil py-spy")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]

TESTS = """
import pathlib
import pytest

def passes_again(name):
    file = pathlib.Path(__file__).with_name(name)
    existed = file.exists()
    file.touch()
    assert existed

@pytest.mark.parametrize("number", [1, 2])
def test_flaky(number):
    passes_again(f"flaky-{number}")

def test_broken():
    assert False

@pytest.mark.exact
def test_of_rows():
    passes_again("rows")
"""


@pytest.fixture
def ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with reports in a folder of the test."""
    spec = importlib.util.spec_from_file_location("ci", ROOT / "tools/ci.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ci", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "REPORTS", tmp_path)
    return module


def run_tests(tmp_path: Path, *options: str) -> tuple[int, Path]:
    """Runs `TESTS` as a stage does; returns the exit code and the file of failed tests."""
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = exact\n")
    file, failed = tmp_path / "test_some.py", tmp_path / "failed_tests"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(file)]
    environment = {"SPARRING_FAILED_TESTS": str(failed), "SPARRING_KIT_ROWS": "7"}
    return subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode, failed


@pytest.mark.parametrize("parallel", [(), ("-n", "2")])
def test_a_test_that_passes_when_repeated_is_flaky(
    ci: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if parallel:
        pytest.importorskip("xdist", reason="pip install pytest-xdist")
    code, failed = run_tests(tmp_path, *parallel, "-k", "flaky or broken")
    assert code == 0
    (record,) = map(json.loads, failed.read_text().splitlines())
    assert record["variables"]["SPARRING_KIT_ROWS"] == "7"
    flaky = [f"test_some.py::test_flaky[{number}]" for number in (1, 2)]
    assert record["tests"] == ["test_some.py::test_broken", *flaky]
    monkeypatch.setattr(ci, "ROOT", tmp_path)
    assert ci.repeat(failed) == ["FAILED test_some.py::test_broken"]
    assert (tmp_path / "flaky.txt").read_text().splitlines() == flaky
    assert [f"FLAKY {each}" for each in flaky] == capsys.readouterr().out.splitlines()[-2:]
    monkeypatch.setattr(ci, "MAX_FLAKY", 1)
    record["tests"] = flaky
    failed.write_text(json.dumps(record))
    assert len(ci.repeat(failed)) == 1


def test_a_failed_test_of_rows_fails_the_run(tmp_path: Path) -> None:
    code, failed = run_tests(tmp_path, "-k", "rows or flaky")
    assert code == 1
    assert not failed.exists()


def test_a_stage_that_exceeds_its_limit_prints_stacks_and_fails(ci: Any, tmp_path: Path) -> None:
    sleeping = "import time; time.sleep(99)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{sleeping}'])"
    stage = ci.Stage("waiting", (sys.executable, "-c", program), 2)
    with (tmp_path / "log").open("w+") as log:
        result = ci.run(stage, log, time.monotonic() + 60)
    assert "limit of 2 s" in result.problem
    assert result.wall_seconds < 40
    text = (tmp_path / "log").read_text()
    assert sleeping in text
    assert text.count("<module> (<string>:1)") == 2, "the stacks of both processes"
    assert "not run" in ci.run(stage, None, time.monotonic()).problem


def test_stages_report_their_exit_code_and_processor_time(ci: Any) -> None:
    program = "import time\nwhile time.process_time() < 0.5: pass\nraise SystemExit(3)"
    result = ci.run(
        ci.Stage("busy", (sys.executable, "-c", program), 60), None, time.monotonic() + 60
    )
    assert result.problem == "failed with exit code 3"
    assert result.processor_seconds >= 0.5
