"""Promises of `send` and `receive`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring.contracts import NUM_TAGS, Collective, WorkContext
from sparring.errors import InvalidArgumentError, PeerFailure

__all__ = ["MessageTests"]

_NUM_TINY = int(os.environ.get("SPARRING_KIT_MESSAGES", "100000"))
_LARGE_BYTES = int(os.environ.get("SPARRING_KIT_LARGE_BYTES", str(64 << 20)))

_DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "bfloat16",
           "float32", "float64", "complex64")  # fmt: skip


class MessageTests:
    """Messages arrive once, complete and in order."""

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_every_dtype_arrives_byte_for_byte(self, run_ranks: Any, dtype: str) -> None:
        assert all(run_ranks(2, swap_dtype, dtype))

    @pytest.mark.parametrize("shape", [(0,), (1,), (3, 0, 2), (5, 7), ()], ids=str)
    def test_every_shape_arrives(self, run_ranks: Any, shape: tuple[int, ...]) -> None:
        assert all(run_ranks(2, swap_shape, shape))

    def test_tags_are_kept_apart_and_their_order_is_kept(self, run_ranks: Any) -> None:
        assert run_ranks(2, receive_in_another_order)[1] == [100, 2, 102, 0, 101, 1]

    def test_the_largest_tag_is_usable(self, run_ranks: Any) -> None:
        assert run_ranks(2, use_largest_tag) == [7, 7]

    def test_messages_from_two_ranks_do_not_mix(self, run_ranks: Any) -> None:
        assert run_ranks(3, receive_from_both)[0] == [1, 2] * 50

    def test_a_buffer_may_change_once_its_send_is_done(self, run_ranks: Any) -> None:
        assert run_ranks(2, change_after_send)[1] == list(range(200))

    def test_a_receive_completes_by_polling(self, run_ranks: Any) -> None:
        assert run_ranks(2, poll_until_done) == [True, True]

    def test_a_work_may_be_waited_for_twice(self, run_ranks: Any) -> None:
        assert run_ranks(2, wait_twice) == [1, 0]

    def test_a_late_peer_is_waited_for(self, run_ranks: Any) -> None:
        assert run_ranks(2, start_late, 0.3)[0] == 5

    def test_many_tiny_messages_arrive(self, run_ranks: Any) -> None:
        assert run_ranks(2, stream_tiny, _NUM_TINY, deadline_seconds=60.0)[1] == _NUM_TINY

    def test_large_messages_both_ways_at_once(self, run_ranks: Any) -> None:
        assert all(run_ranks(2, swap_large, _LARGE_BYTES, deadline_seconds=60.0))

    @pytest.mark.parametrize(("sent", "room"), [(4, 8), (8, 4), (0, 4), (4, 0), (100_000, 16)])
    def test_a_message_of_another_size_is_rejected(
        self, run_ranks: Any, sent: int, room: int
    ) -> None:
        assert run_ranks(2, disagree_on_size, sent, room, deadline_seconds=0.3)[1] == "refused"

    def test_wrong_calls_are_rejected(self, run_ranks: Any) -> None:
        for refused in run_ranks(2, call_wrongly):
            assert refused == ["rank", "rank", "tag", "tag", "contiguous", "read-only"]

    def test_anything_with_dlpack_is_a_buffer(self, run_ranks: Any) -> None:
        assert run_ranks(2, send_dlpack)[1] == [3.0, 4.0]


class _Exporting:
    """A foreign array that supports only DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def swap_dtype(collective: Collective, name: str) -> bool:
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
    other = 1 - collective.rank
    # Arbitrary bytes, so NaNs with payloads are included; a bool has only two valid values.
    most = 2 if name == "bool" else 256
    bytes_of = [
        np.random.default_rng(rank).integers(0, most, 17 * dtype.itemsize, np.uint8)
        for rank in range(2)
    ]
    got = np.empty(17, dtype)
    works = [
        collective.receive(got, other),
        collective.send(bytes_of[collective.rank].view(dtype), other),
    ]
    for work in works:
        work.wait()
    return got.tobytes() == bytes_of[other].tobytes()


def swap_shape(collective: Collective, shape: tuple[int, ...]) -> bool:
    other = 1 - collective.rank
    mine = np.full(shape, collective.rank, np.float32)
    got = np.full(shape, -1, np.float32)
    receiving, sending = collective.receive(got, other), collective.send(mine, other)
    receiving.wait()
    sending.wait()
    return bool((got == other).all())


def receive_in_another_order(collective: Collective) -> list[int]:
    if collective.rank == 0:
        # The two tags alternate here, while the receiver posts all receives of one tag first.
        messages = [np.array([place + 100 * (tag == 9)]) for place in range(3) for tag in (9, 0)]
        works = [
            collective.send(message, 1, tag=9 if message[0] >= 100 else 0) for message in messages
        ]
        for work in works:
            work.wait()
        return []
    first, second = np.empty((2, 3), np.int64)
    # Receives are posted in order within a tag, and waited for in a different order.
    zero = [collective.receive(first[place : place + 1], 0, tag=0) for place in range(3)]
    nine = [collective.receive(second[place : place + 1], 0, tag=9) for place in range(3)]
    got = []
    for work, buffer in (
        (nine[0], second[0:]), (zero[2], first[2:]), (nine[2], second[2:]),
        (zero[0], first[0:]), (nine[1], second[1:]), (zero[1], first[1:]),
    ):  # fmt: skip
        work.wait()
        got.append(int(buffer[0]))
    return got


def use_largest_tag(collective: Collective) -> int:
    other, got = 1 - collective.rank, np.zeros(1, np.int32)
    sending = collective.send(np.array([7], np.int32), other, NUM_TAGS - 1)
    collective.receive(got, other, NUM_TAGS - 1).wait()
    sending.wait()
    return int(got[0])


def receive_from_both(collective: Collective) -> list[int]:
    if collective.rank:
        for _ in range(50):
            collective.send(np.array([collective.rank]), 0, tag=4).wait()
        return []
    got = []
    for _ in range(50):
        for source in (1, 2):
            buffer = np.empty(1, np.int64)
            collective.receive(buffer, source, tag=4).wait()
            got.append(int(buffer[0]))
    return got


def change_after_send(collective: Collective) -> list[int]:
    buffer = np.zeros(5000, np.int64)
    got = []
    for value in range(200):
        if collective.rank == 0:
            buffer[:] = value
            collective.send(buffer, 1).wait()
        else:
            collective.receive(buffer, 0).wait()
            assert buffer.min() == buffer.max()
            got.append(int(buffer[0]))
    return got


def poll_until_done(collective: Collective) -> bool:
    other, got = 1 - collective.rank, np.zeros(1000)
    receiving = collective.receive(got, other)
    if collective.rank == 1:
        assert not receiving.done(), "nothing was sent yet"
        collective.send(np.ones(1), other, tag=1).wait()
    else:
        collective.receive(np.zeros(1), other, tag=1).wait()
    sending = collective.send(np.ones(1000), other)
    limit = time.monotonic() + 60
    while not (receiving.done() and sending.done()) and time.monotonic() < limit:
        time.sleep(0.001)
    assert got.all(), "a work that is done has filled its buffer"
    start = time.monotonic()
    receiving.wait()
    sending.wait()
    return time.monotonic() - start < 5


def wait_twice(collective: Collective) -> int:
    other, got = 1 - collective.rank, np.empty(1, np.int64)
    works = [collective.receive(got, other), collective.send(np.array([collective.rank]), other)]
    for work in works + works:
        work.wait()
        assert work.done()
    return int(got[0])


def start_late(collective: Collective, seconds: float) -> int:
    if collective.rank == 1:
        time.sleep(seconds)
        collective.send(np.array([5]), 0).wait()
        return 0
    got = np.empty(1, np.int64)
    collective.receive(got, 1).wait()
    return int(got[0])


def stream_tiny(collective: Collective, count: int) -> int:
    window = 1000
    values = np.arange(count, dtype=np.int64)
    got = np.full(count, -1, np.int64)
    for begin in range(0, count, window):
        places = range(begin, min(begin + window, count))
        if collective.rank == 0:
            works = [collective.send(values[place : place + 1], 1) for place in places]
        else:
            works = [collective.receive(got[place : place + 1], 0) for place in places]
        for work in works:
            work.wait()
    return int((got == values).sum())


def swap_large(collective: Collective, num_bytes: int) -> bool:
    other = 1 - collective.rank
    mine = np.full(num_bytes, 1 + collective.rank, np.uint8)
    mine[-1] = 10 + collective.rank
    got = np.zeros(num_bytes, np.uint8)
    receiving, sending = collective.receive(got, other), collective.send(mine, other)
    sending.wait()
    receiving.wait()
    # Compares the minimum and maximum, because comparing all elements would double the memory used.
    same = got[:-1].min() == got[:-1].max() == 1 + other
    return bool(same and got[-1] == 10 + other)


def disagree_on_size(collective: Collective, sent: int, room: int) -> str:
    collective.context = WorkContext("exchange of sizes")
    if collective.rank == 0:
        work = collective.send(np.ones(sent, np.uint8), 1, tag=3)
        try:
            work.wait()
        # It depends on the transport whether the sender notices the mismatch.
        except (InvalidArgumentError, PeerFailure):
            return "noticed"
        return "sent"
    try:
        collective.receive(np.zeros(room, np.uint8), 0, tag=3).wait()
    except (InvalidArgumentError, PeerFailure):
        return "refused"
    return "taken"


def call_wrongly(collective: Collective) -> list[str]:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: collective.send(np.zeros(1), 2), "rank"),
        (lambda: collective.receive(np.zeros(1), -1), "rank"),
        (lambda: collective.send(np.zeros(1), 0, NUM_TAGS), "tag"),
        (lambda: collective.receive(np.zeros(1), 0, -1), "tag"),
        (lambda: collective.send(np.zeros((3, 3))[:, 1], 0), "contiguous"),
        (lambda: collective.receive(frozen, 0), "read-only"),
    ]
    refused = []
    for call, word in wrong:
        with pytest.raises(InvalidArgumentError, match=word):
            call()
        refused.append(word)
    return refused


def send_dlpack(collective: Collective) -> list[float]:
    buffer = np.array([3.0, 4.0]) if collective.rank == 0 else np.zeros(2)
    if collective.rank == 0:
        collective.send(_Exporting(buffer), 1).wait()
    else:
        collective.receive(_Exporting(buffer), 0).wait()
    return [float(value) for value in buffer]
