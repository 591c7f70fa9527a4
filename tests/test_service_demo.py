"""Runs the demo of the parameter service with real processes, and kills a shard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _name in ("sparring_serve", "sparring_torch", "torch"):
    pytest.importorskip(_name)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "packages/serve/examples"))
    import service_demo

    return service_demo


@pytest.mark.slow  # trains, and starts servers three times
@pytest.mark.alone
def test_a_shard_that_is_killed_loses_no_push_and_trainers_wait_for_it(
    demo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = demo.kill_a_shard(tmp_path, 1.0)
    assert before.shape == (demo.NUM_ITEMS, demo.DIM)
    assert np.array_equal(before.view(np.uint32), after.view(np.uint32))
    text = capsys.readouterr().out
    (saved,) = map(int, re.findall(r"saved at step (\d+)", text))
    first, second = map(int, re.findall(r"is back at step (\d+)", text))
    # Both restarts load the same save, so later steps come from the log.
    assert saved < first < second
    trainers = re.findall(r"trainer \d: (\d+) steps, last loss \S+, longest step (\S+) s", text)
    # Each step is a push to both shards.
    assert second == sum(int(steps) for steps, _ in trainers)
    assert len(trainers) == 2
    assert all(float(longest) >= demo.OUTAGE_SECONDS for _, longest in trainers)


@pytest.mark.parametrize(("num_lost", "code"), [(0, 0), (3, 1)])
def test_the_demo_fails_if_rows_differ_after_the_kill(
    demo: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_lost: int,
    code: int,
) -> None:
    before = np.ones((demo.NUM_ITEMS, demo.DIM), np.float32)
    after = before.copy()
    after[:num_lost, 1] = 0
    monkeypatch.setattr(demo, "kill_a_shard", lambda *_, **__: (before, after))
    assert demo.main() == code
    assert f"{demo.NUM_ITEMS - num_lost} of {demo.NUM_ITEMS} rows are" in capsys.readouterr().out
