"""Rows on their way: the newest of a key is met, whatever departs, lands or comes back meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.storage.contract import Columns
from sparring.storage.tiered.holding import HoldingBuffer

WHOLE = Columns(0, 1)
PARTS = st.lists(st.lists(st.integers(0, 20), unique=True), max_size=12)


def add(buffer: HoldingBuffer, keys: list[int], number: int) -> None:
    scores = np.full(len(keys), number, np.uint64)
    buffer.add(np.array(keys, np.int64), np.full((len(keys), 1), number, np.float32), scores)


def found_in(buffer: HoldingBuffer, keys: range) -> dict[int, int]:
    rows = np.zeros((len(keys), 1), np.float32)
    found = np.zeros(len(keys), np.bool_)
    count = buffer.find(np.array(keys, np.int64), WHOLE, rows, found)
    assert count == found.sum()
    assert np.array_equal(buffer.contains(np.array(keys, np.int64)), found)
    return {key: int(row) for key, row, is_in in zip(keys, rows[:, 0], found, strict=True) if is_in}


@given(parts=PARTS, num_before=st.integers(0, 12), comes_back=st.booleans())
def test_the_newest_row_of_each_key_is_held(
    parts: list[list[int]], num_before: int, comes_back: bool
) -> None:
    buffer = HoldingBuffer(1, np.float32)
    expected: dict[int, int] = {}
    landed: dict[int, int] = {}
    for number, keys in enumerate(parts):
        if number == num_before:
            departed = buffer.depart()
            assert (0 if departed is None else len(departed)) == len(expected)
            landed = dict(expected)
        add(buffer, keys, number)
        expected |= dict.fromkeys(keys, number)
    assert found_in(buffer, range(21)) == expected
    merged = buffer.merged()
    assert dict(zip(merged.keys.tolist(), merged.rows[:, 0].tolist(), strict=True)) == expected
    assert merged.scores.tolist() == merged.rows[:, 0].tolist()
    if comes_back:
        buffer.put_back()
    else:
        buffer.land()
        expected = {
            key: number for key, number in expected.items() if number >= num_before or not landed
        }
    assert found_in(buffer, range(21)) == expected
    assert buffer.num_rows == len(expected)
    buffer.remove(np.arange(10))
    assert found_in(buffer, range(21)) == {k: n for k, n in expected.items() if k >= 10}
    buffer.clear()
    assert not buffer


def test_what_has_waited_for_long_is_not_copied_by_each_write() -> None:
    buffer = HoldingBuffer(1, np.float32)
    add(buffer, list(range(100_000)), 0)
    oldest = buffer._contents.waiting[-1]
    for number in range(1, 9):
        add(buffer, list(range(1000 * number, 1000 * number + 1000)), number)
        assert buffer._contents.waiting[-1] is oldest
        assert len(buffer._contents.waiting) <= 5


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_readers_beside_meet_a_row_here_or_below(many_switches: None) -> None:
    buffer = HoldingBuffer(1, np.float32)
    keys = np.arange(5)
    below: list[int] = [0]
    is_over = threading.Event()
    complaints: list[str] = []

    def read() -> None:
        latest = 0
        while not is_over.is_set():
            rows, found = np.zeros((5, 1), np.float32), np.zeros(5, np.bool_)
            buffer.find(keys, WHOLE, rows, found)
            number = int(rows[0, 0]) if found.all() else below[0]
            if found.any() != found.all():
                complaints.append(f"half of the rows were met: {found}")
            if number < latest:
                complaints.append(f"{number} was met after {latest}")
            latest = number

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 2000):
        add(buffer, keys.tolist(), number)
        departed = buffer.depart()
        assert departed is not None
        if number % 3:
            below[0] = int(departed.rows[0, 0])
            buffer.land()
        else:
            buffer.put_back()
    is_over.set()
    for reader in readers:
        reader.join()
    assert not complaints, complaints[0]
