"""One trial of each kind of `reliability.redis_faults`; the whole number has a command of its own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[1]


def test_redis_breaks_in_every_way_and_no_promise_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    testing = pytest.importorskip("sparring_redis.testing")
    if reason := testing.redis_server_missing():
        pytest.skip(reason)
    monkeypatch.syspath_prepend(str(ROOT))
    faults = importlib.import_module("reliability.redis_faults")
    counts = faults.run_trials(len(faults.KINDS), deadline_seconds=0.5, seed=7)
    assert not counts.broken, "\n".join(counts.broken)
    assert set(counts.num_trials) == set(faults.KINDS)
