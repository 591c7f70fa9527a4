"""What a forked child makes anew."""

from __future__ import annotations

import logging
import os
import weakref

import pytest

from sparring.runtime import fork_safety as forking
from sparring.runtime.fork_safety import Forkable


class Counted(Forkable):
    """Counts how often it began anew; may fail to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.num_begun = 0
        self.failure = failure
        super().__init__()

    def begin_anew(self) -> None:
        self.num_begun += 1
        if self.failure is not None:
            raise self.failure


def test_one_that_cannot_begin_anew_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_made", weakref.WeakSet())  # not what other tests left
    made = [Counted(RuntimeError("a bug")) for _ in range(2)] + [Counted() for _ in range(2)]
    with caplog.at_level(logging.ERROR):
        forking._after_fork_in_child()
    assert [each.num_begun for each in made] == [1, 1, 1, 1]
    assert caplog.text.count("a Counted could not begin again") == 2


def test_it_is_called_in_the_child_alone() -> None:
    made = Counted()
    child = os.fork()
    if not child:
        os._exit(made.num_begun)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert made.num_begun == 0
