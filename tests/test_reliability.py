"""Tests that a few reliability trials of each kind find no failure, and that a failure fails the run."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring_serve import LookupReply, RowStatus

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def program(import_program: Any) -> Any:
    return import_program("reliability.__main__")


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("snapshot_kills", 8),
        ("training_kills", 8),
        ("snapshot_damage", 55),
        ("snapshot_space", 15),
        ("snapshot_calls", 44),
        ("serving_channel", 24),
        ("serving_deltas", 24),
        ("serving_filters", 30_000),
        pytest.param("part_kills", 4, marks=pytest.mark.slow),  # starts many processes
        pytest.param("serving_skew", 20_000, marks=pytest.mark.long),
        ("parameter_faults", 200),
        ("parameter_kills", 1),
        pytest.param("parameter_kills", 3, marks=pytest.mark.long),
        ("follower_crashes", 60),
        pytest.param("follower_crashes", 2000, marks=pytest.mark.long),
        pytest.param("follower_kills", 4, marks=pytest.mark.long),
        ("gate_alarms", 2000),
        pytest.param("mixed_versions", 2000, marks=pytest.mark.long),
        pytest.param("stream_crashes", 4, marks=pytest.mark.slow),
        pytest.param("stream_crashes", 300, marks=pytest.mark.long),
        pytest.param("stream_kills", 12, marks=pytest.mark.long),
        # Its restarts take minutes if other tests use the processors.
        pytest.param("elastic_training", 1, marks=[pytest.mark.alone, pytest.mark.long]),
        # It measures the latency of replies. Tests of sparring-serve also kill and stop replicas.
        pytest.param("serving_faults", 6, marks=[pytest.mark.alone, pytest.mark.long]),
    ],
)
def test_a_few_trials_find_nothing(
    program: Any, name: str, trials: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = program.main([name, "--trials", str(trials)])
    out = capsys.readouterr().out
    assert code == 0, out
    if "not run: " in out:
        pytest.skip(out)
    assert f"{trials:,} │" in out
    assert "failures" in out


def test_sigterm_ends_the_trials_and_is_not_a_failure(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends early on SIGTERM, with fewer steps than expected."""
    module = program.find_modules()["stream_crashes"]
    steps: list[int] = []

    def kill(self: Any, step: int, loss: float, samples: int) -> None:
        steps.append(step)
        if len(steps) == 20:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module._Progress, "on_step", kill)
    with pytest.raises(SystemExit, match=r"ended by SIGTERM after step \d+"):
        module.run(2)
    assert len(steps) < 26


def test_each_hostile_snapshot_is_counted(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["hostile_snapshots"]) == 0
    out = capsys.readouterr().out
    counts = [int(line.split("│")[2]) for line in out.splitlines() if "refused" in line]
    assert counts[0] >= 25


def test_a_wrong_row_without_a_flag_is_found(program: Any) -> None:
    served = importlib.import_module("reliability.served_rows")
    keys = np.arange(5, dtype=np.int64)

    def wrong(change: Callable[[Any, Any, Any], None]) -> str:
        rows, found, status = served.rows_of(1, keys), np.ones(5, bool), np.zeros(5, np.uint8)
        change(rows, found, status)
        answer = LookupReply({"item": rows}, {"item": found}, {"item": status}, (), 0.0)
        return str(served.wrong_rows(answer, keys))

    def put(array: Any, value: object) -> None:
        array[2] = value

    assert wrong(lambda rows, found, status: None) == ""
    assert "without a flag" in wrong(lambda rows, found, status: put(rows[:, 1], 7))
    assert "versions [1.0, 2.0]" in wrong(lambda rows, found, status: put(rows[:, 0], 2))
    assert "not found" in wrong(lambda rows, found, status: put(found, False))
    assert "not NaN" in wrong(lambda rows, found, status: put(status, RowStatus.FAILED))
    assert "are not initial values" in wrong(
        lambda rows, found, status: put(status, RowStatus.INITIAL)
    )


def test_a_violation_fails_the_run(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules = program.find_modules()
    assert {"snapshot_kills", "snapshot_damage", "snapshot_space", "snapshot_calls"} <= set(modules)
    report = program.Report(3, {"killed": 3}, ["trial 2: lost"])
    monkeypatch.setattr(modules["snapshot_kills"], "run", lambda trials: report)
    assert program.main(["snapshot_kills"]) == 1
    assert "trial 2: lost" in capsys.readouterr().out
    skipped = program.Report(0, skipped="no server")
    monkeypatch.setattr(modules["snapshot_kills"], "run", lambda trials: skipped)
    assert program.main(["snapshot_kills"]) == 0
    assert "not run: no server" in capsys.readouterr().out
    assert program.main(["snapshot_kils"]) == 2
    assert "unknown trials 'snapshot_kils'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("is_replicated", lambda self, position: True),
        ("_joins", lambda self, each: True),
        ("serves", lambda self: self.is_leader),  # also after the end of its lease
    ],
)
def test_the_simulation_finds_a_broken_replica(program: Any, method: str, broken: Any) -> None:
    crashes = importlib.import_module("reliability.follower_crashes")
    replica = type("Broken", (crashes.Replica,), {method: broken})
    assert any(crashes.run_trial(seed, replica).failures for seed in range(400))


def _attempt(first: int, last: int, *saved: int) -> list[dict[str, Any]]:
    steps = [{"event": "step", "step": each} for each in range(first, last + 1)]
    return [*steps, *({"event": "saved", "step": each} for each in saved)]


@pytest.mark.parametrize(
    ("attempts", "message"),
    [
        ([_attempt(1, 60, 50), _attempt(51, 70)], ""),
        ([_attempt(1, 60, 50), _attempt(62, 70)], "step 61 was lost"),
        ([_attempt(1, 60, 50), _attempt(50, 70)], "made step 50 again, 50 was saved"),
        ([_attempt(1, 60) + _attempt(62, 70)], "steps are missing or repeated"),
    ],
    ids=["none", "lost", "counted twice", "gap"],
)
def test_lost_and_repeated_steps_of_restarted_ranks_are_found(
    program: Any, attempts: list[list[dict[str, Any]]], message: str
) -> None:
    check = importlib.import_module("reliability.elastic_training")._check_steps
    found = check(attempts)
    assert (message in found[0]) if message else not found
