"""Runs one trial of each kind of `reliability.redis_faults`; a separate command runs all of them."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import pytest

from sparring_testing.processes.deadlines import check_with_deadlines

pytestmark = pytest.mark.alone

# A check after the fault ran out of time.
_ENDED_HALFWAY = re.compile(r"untyped: .*, afterwards: (DeadlineError|StorageIOError)\(")


def test_every_fault_of_redis_keeps_all_guarantees(import_program: Any) -> None:
    testing = pytest.importorskip("sparring_redis.testing")
    if reason := testing.redis_server_missing():
        pytest.skip(reason)
    faults = import_program("reliability.redis_faults")
    wrong: list[str] = []

    def check(deadline: float) -> None:
        counts = faults.run_trials(len(faults.KINDS), deadline_seconds=deadline, seed=7)
        # After a trial that ended halfway, the following ones are affected by its leftovers.
        trusted = takewhile(lambda line: not _ENDED_HALFWAY.match(line), counts.broken)
        wrong.extend(line for line in trusted if not line.startswith("late: "))
        assert not counts.broken, "\n".join(counts.broken)
        assert set(counts.num_trials) == set(faults.KINDS)

    check_with_deadlines(check, (0.5, 2.0))
    # A slow machine cannot cause a wrong row or a different error.
    assert not wrong, "\n".join(wrong)
