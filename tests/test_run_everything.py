"""Tests of the program that runs everything on a GPU: skipped stages are reported and are failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def program(import_program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with two stages: one that always runs, and one whose program is missing."""
    found = import_program("benchmarks.gpu.run_everything")
    missing = found.Stage("much longer", "more", ("a-program-that-nobody-has",))
    chosen = [found.Stage("short", "nothing", ("python", "-c", "")), missing]
    monkeypatch.setattr(found, "stages", lambda device: chosen)
    return found


def test_with_a_gpu_tests_that_could_not_run_are_failures(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_gpu", lambda python: program.Found(True, ""))
    assert program.main(["--no-build", "--only", "short"]) == 0
    assert program.main(["--no-build"]) == 1
    out = capsys.readouterr().out
    assert "not run: much longer\n  because a-program-that-nobody-has is neither in PATH" in out
    assert "there is a GPU, but not everything ran on it" in out


def test_nothing_passes_with_a_gpu_that_the_packages_cannot_use(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program.Found(True, "built without nvcc")
    monkeypatch.setattr(program, "find_gpu", lambda python: found)
    assert program.main(["--no-build", "--only", "short"]) == 1


def test_without_a_gpu_skipped_stages_are_reported_once(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_gpu", lambda python: program.Found(False, "no driver here"))
    assert program.main(["--no-build", "--allow-no-gpu"]) == 0
    out = capsys.readouterr().out
    assert out.strip() == "not run: short, much longer\n  because no driver here"


def test_a_stage_passes_only_if_it_has_run(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        "no GPU": program.Found(False, "no driver here"),
        "a GPU that the driver does not find": program.Found(True, "cuInit failed"),
        "no answer": program.Found(False, "No module named sparring", True),
    }
    for name, found in answers.items():
        monkeypatch.setattr(program, "find_gpu", lambda python, found=found: found)
        assert program.main(["--no-build"]) == 1, name
        assert (program.main(["--no-build", "--allow-no-gpu"]) == 0) == (name == "no GPU")
    assert "looking for a GPU  FAILED: No module named sparring" in capsys.readouterr().out


def test_a_failed_query_for_a_gpu_is_reported_as_a_failure(program: Any, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no module of that name >&2\nexit 1\n")
    broken.chmod(0o755)
    found = program.find_gpu(str(broken))
    assert (found.reason, found.has_failed) == ("no module of that name", True)


def test_files_of_a_driver_indicate_a_gpu(
    program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho False\necho cuInit failed\n")
    broken.chmod(0o755)
    monkeypatch.setattr(program, "DRIVER_FILES", (tmp_path / "nvidia0",))
    assert program.find_gpu(str(broken)) == program.Found(False, "cuInit failed")
    (tmp_path / "nvidia0").touch()
    assert program.find_gpu(str(broken)) == program.Found(True, "cuInit failed")


def test_a_budget_ends_the_run(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_gpu", lambda python: program.Found(True, ""))
    slow = program.Stage("slow", "waits", ("python", "-c", "import time; time.sleep(60)"))
    short = program.Stage("short", "nothing", ("python", "-c", ""))
    monkeypatch.setattr(program, "stages", lambda device: [slow, short])
    assert program.main(["--no-build", "--budget", "1"]) == 1
    out = capsys.readouterr().out
    assert "slow  FAILED: not finished in 1 s" in out
    assert "not run: short\n  because the time of --budget is used up" in out


def test_a_sanitizer_that_fails_to_start_is_reported_and_not_passed(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "find_gpu", lambda python: program.Found(True, ""))
    monkeypatch.setattr(program, "why_unchecked", lambda python: "it is not supported here")
    checked = program.Stage("check", "a check", ("python", "-c", ""), is_check=True)
    monkeypatch.setattr(program, "stages", lambda device: [checked])
    assert program.main(["--no-build"]) == 1
    assert "not run: check\n  because it is not supported here" in capsys.readouterr().out


def test_missing_requirements_are_named_with_their_stage(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Known:
        def __init__(self, requires: list[str]) -> None:
            self.requires = requires

    here = {
        "pydantic": Known(["pydantic-core==2", "annotated_types", "email; extra == 'email'"]),
        "annotated-types": Known([]),
        "torch": Known(["sympy"]),
    }

    def distribution(name: str) -> Known:
        if name not in here:
            raise program.metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(program.metadata, "distribution", distribution)
    assert program.missing_packages(["pydantic", "torch", "tbb"]) == ["tbb", "pydantic-core"]


def test_stages_are_listed_with_a_description(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--list"]) == 0
    assert capsys.readouterr().out == "short        nothing\nmuch longer  more\n"


def test_a_machine_without_a_driver_is_not_searched_for_a_gpu(program: Any) -> None:
    from sparring_cli import inspect_gpus

    gpus = inspect_gpus()
    if gpus.reason is None:
        pytest.skip("there is a GPU here")
    assert program.find_gpu(sys.executable) == program.Found(False, gpus.reason)


def test_files_of_all_stages_exist(import_program: Any) -> None:
    program = import_program("benchmarks.gpu.run_everything")
    named = [
        word for stage in program.stages("cuda") for word in stage.command if word.endswith(".py")
    ]
    assert named
    assert all((ROOT / each).is_file() for each in named)
