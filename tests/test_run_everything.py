"""All that needs a GPU: what does not run is said once, and is a failure where there is a GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """It, with two stages: one that runs anywhere, and one whose program is missing."""
    monkeypatch.syspath_prepend(str(ROOT))
    found: Any = importlib.import_module("benchmarks.gpu.run_everything")
    chosen = [
        found.Stage("short", "nothing", ("python", "-c", "")),
        found.Stage("much longer", "more", ("a-program-that-nobody-has",)),
    ]
    monkeypatch.setattr(found, "stages", lambda device: chosen)
    return found


def test_with_a_gpu_what_could_not_run_is_a_failure(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "look_for_gpu", lambda python: program.Found(True, ""))
    assert program.main(["--no-build", "--only", "short"]) == 0
    assert program.main(["--no-build"]) == 1
    out = capsys.readouterr().out
    assert "not run: much longer\n  because a-program-that-nobody-has is neither on" in out
    assert "there is a GPU, and not everything ran on it" in out


def test_with_a_gpu_that_the_packages_cannot_use_nothing_passes(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program.Found(True, "built without nvcc")
    monkeypatch.setattr(program, "look_for_gpu", lambda python: found)
    assert program.main(["--no-build", "--only", "short"]) == 1


def test_without_a_gpu_it_says_once_what_did_not_run(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        program, "look_for_gpu", lambda python: program.Found(False, "no driver here")
    )
    assert program.main(["--no-build"]) == 0
    out = capsys.readouterr().out
    assert out.strip() == "not run: short, much longer\n  because no driver here"


def test_stages_are_listed_with_what_they_are(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--list"]) == 0
    assert capsys.readouterr().out == "short        nothing\nmuch longer  more\n"


def test_a_machine_without_a_driver_has_no_gpu_to_look_for(program: Any) -> None:
    from sparring import inspect_gpus

    gpus = inspect_gpus()
    if gpus.reason is None:
        pytest.skip("there is a GPU here")
    assert program.look_for_gpu(sys.executable) == program.Found(False, gpus.reason)


def test_files_of_all_stages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    program: Any = importlib.import_module("benchmarks.gpu.run_everything")
    named = [
        word for stage in program.stages("cuda") for word in stage.command if word.endswith(".py")
    ]
    assert named
    assert all((ROOT / each).is_file() for each in named)
