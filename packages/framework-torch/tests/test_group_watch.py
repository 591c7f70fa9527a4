"""What a rank concludes from notices of the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sparring.contracts import NO_RANK, NOTICE_TAG, Failure, Notice, NoticeKind
from sparring_torch.distributed.group_watch import GroupWatch


class _Said:
    """A notice from a peer or, without one, a wait that ends with the connection."""

    def __init__(
        self, message: torch.Tensor, notice: Notice | None, is_over: threading.Event
    ) -> None:
        self._is_over = is_over
        self._has_come = notice is not None
        if notice is not None:
            message.copy_(torch.from_numpy(notice.encode()))

    def wait(self, _timeout: Any) -> None:
        if not self._has_come:
            self._is_over.wait(10)
            raise RuntimeError("the connection is closed")


@pytest.fixture
def watch() -> Iterator[GroupWatch]:
    """On rank 2 of 4: rank 1 has left, and rank 0, which did not notice, has given up."""
    said = {0: Failure.left(1).notice(), 1: Notice(NoticeKind.LEFT)}
    is_over = threading.Event()

    def receive(message: torch.Tensor, peer: int, tag: int) -> Any:
        if tag != NOTICE_TAG:
            is_over.set()
        return _Said(message, said.pop(peer, None), is_over)

    made = GroupWatch(2, 4, 20.0, send=lambda *_: None, receive=receive)  # type: ignore[arg-type]
    yield made
    made.close()


def test_ranks_that_miss_one_that_left_do_not_disturb_the_others(watch: GroupWatch) -> None:
    limit = time.monotonic() + 20.0
    while not {0, 1} <= watch._gone.keys():
        assert time.monotonic() < limit
        time.sleep(0.01)
    time.sleep(0.2)  # earlier messages may still arrive until then
    assert watch.poll_failure(3, limit) is None
    failure = watch.poll_failure(0, limit)
    assert failure == Failure(1, "rank 0 reports that rank 1 left the group", has_left=True)


def test_a_rank_that_waits_in_another_collective_answers_for_which_rank(watch: GroupWatch) -> None:
    assert watch._find_awaited_rank() == NO_RANK
    watch.note_wait(3)
    assert watch._find_awaited_rank() == 3
