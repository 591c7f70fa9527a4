"""Tests how the samples and the faults of a soak run are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def soak(import_program: Any) -> Any:
    """Returns a function that imports a module of the folder ``soak``."""
    return lambda name: import_program(f"soak.{name}")


def _life(soak: Any, pid: int, growth: float, *, begin: int = 0, descriptors: int = 0) -> list[Any]:
    """Returns the samples of ten minutes at 5 steps per second.

    Args:
        growth: growth of the memory per 1,000 steps, as a share of it.
        descriptors: number of descriptors that the process opens in this time.
    """
    draw = np.random.default_rng(pid)
    found = []
    for second in range(600):
        steps = begin + 5 * second
        # Memory rises in the first minute, and in a fault that lasts for some seconds.
        extra = min(second, 60) * 2**20 + (2**28 if 300 <= second < 320 else 0)
        memory = 2**28 * (1 + growth * steps / 1000) + extra + draw.normal() * 2**16
        opened = 20 + descriptors * second // 600
        found.append(
            soak("processes").Sample(
                begin + second, "rank 0", pid, steps, int(memory), None, opened, 9
            )
        )
    return found


def test_growth_is_found_over_several_lives_despite_noise_and_restarts(soak: Any) -> None:
    judge = soak("verdicts").judge_resources
    constant = judge(_life(soak, 1, 0) + _life(soak, 2, 0, begin=3000))["rank 0"]
    assert constant.problems == []
    assert (constant.num_lives, constant.num_steps) == (2, 2 * (2995 - 1000))
    assert constant.slope == pytest.approx(0, abs=1e-4)
    leaking = judge(_life(soak, 1, 0.004) + _life(soak, 2, 0.004, begin=3000))["rank 0"]
    assert leaking.slope == pytest.approx(0.004, rel=0.25)
    assert [each.split(" by ")[0] for each in leaking.problems] == ["the heap grows"]
    assert judge(_life(soak, 1, 0.004)[:250])["rank 0"].slope is None


@pytest.mark.parametrize("grows", ["heap", "kept by malloc"])
def test_only_growth_of_the_heap_is_a_leak(soak: Any, grows: str) -> None:
    growing, constant = _life(soak, 1, 0.004), _life(soak, 1, 0)
    heaps = growing if grows == "heap" else constant
    life = [
        replace(each, heap_bytes=heap.anonymous_bytes // 2)
        for each, heap in zip(growing, heaps, strict=True)
    ]
    found = soak("verdicts").judge_resources(life)["rank 0"]
    assert bool(found.problems) == (grows == "heap")
    assert found.anonymous_slope == pytest.approx(0.004, rel=0.25)


def test_a_preloaded_process_tells_its_heap(soak: Any, tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    source = ROOT / "soak/shim.c"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "SOAK_HEAPS": str(tmp_path)}
    script = "import time; kept = [bytes(10_000) for _ in range(10_000)]; time.sleep(60)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env={**environment, "PYTHONMALLOC": "malloc"}) as child:
        processes, at, end = soak("processes"), tmp_path / str(child.pid), time.monotonic() + 30
        while (processes.heap_bytes(at) or 0) < 10**8 and time.monotonic() < end:
            time.sleep(0.05)
        child.kill()
    assert 10**8 < processes.heap_bytes(at) < 1.5 * 10**8


def test_descriptors_that_accumulate_are_a_problem(soak: Any) -> None:
    found = soak("verdicts").judge_resources(_life(soak, 1, 0, descriptors=12))["rank 0"]
    assert found.problems == ["descriptors increase from 25 to 30"]
    # Connections to another replica of each shard are opened once; a slow leak is found in a long life.
    judge = soak("verdicts").judge_resources
    life = [replace(each, descriptors=20 + 2 * (each.seconds >= 400)) for each in _life(soak, 1, 0)]
    assert judge(life)["rank 0"].problems == []
    slow = [each for part in range(10) for each in _life(soak, 1, 0, begin=3000 * part)]
    slow = [replace(each, seconds=at, descriptors=20 + at // 1000) for at, each in enumerate(slow)]
    assert judge(slow)["rank 0"].problems == ["descriptors increase from 21 to 25"]


def test_a_process_without_a_long_life_is_a_finding_of_a_long_run(soak: Any) -> None:
    program = soak("__main__")
    judge = soak("verdicts").judge_resources
    short, long = judge(_life(soak, 1, 0)[:250]), judge(_life(soak, 1, 0))
    assert program._not_judged(short, 9_000) == [
        "rank 0: no life was long enough to judge its memory"
    ]
    assert program._not_judged(long, 9_000) == program._not_judged(short, 300) == []


def test_a_fault_without_effect_is_attempted_again(
    soak: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, faults = soak("__main__"), soak("faults")
    monkeypatch.setattr(program, "_ATTEMPT_SECONDS", 0)
    errors = [faults.NoEffectError("no rank was running"), FileNotFoundError()]

    def fault(*_: Any) -> str:
        if errors:
            raise errors.pop()
        return "rank 1"

    monkeypatch.setitem(program.FAULTS, "kill", fault)
    assert program._attempt("kill", None, None) == "rank 1"
    errors += [OSError()] * 9
    assert program._attempt("kill", None, None) == ""


def test_each_round_contains_each_fault_once_and_depends_on_the_seed(soak: Any) -> None:
    faults = soak("faults")
    rounds = [list(islice(faults.order(seed, ()), 20)) for seed in (1, 1, 2)]
    for each in rounds:
        assert sorted(each[:10]) == sorted(each[10:]) == sorted(faults.FAULTS)
    assert rounds[0] == rounds[1] != rounds[2]


def test_a_finding_names_the_fault_before_it(soak: Any, tmp_path: Path) -> None:
    report = soak("report")
    result = report.Result({"steps_per_second": 5.0})
    result.faults = [report.FaultRecord(60, "kill", "rank 1"), report.FaultRecord(120, "stop")]
    result.progress = [
        (float(each), 5 * min(each, 60) if each < 90 else 5 * each, 0) for each in range(150)
    ]
    result.findings = [f"{result.fault_before(70)}: a process ended"]
    page = report.write_report(result, tmp_path).read_text()
    assert "10 s after kill (rank 1): a process ended" in page
    assert "| 60 s | kill | rank 1 | 30.0 s | never |" in page
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == result.findings
    assert (tmp_path / "timeline.png").stat().st_size > 1000
