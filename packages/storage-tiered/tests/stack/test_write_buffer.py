"""The newest row of a key in flight is found, whichever rows depart, land or return."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparring.contracts.storage.results import Columns
from sparring_tiered.stack import write_buffer
from sparring_tiered.stack.write_buffer import WriteBuffer

WHOLE = Columns(0, 1)
PARTS = st.lists(st.lists(st.integers(0, 20), unique=True), max_size=12)


def add(buffer: WriteBuffer, keys: list[int], number: int) -> None:
    scores = np.full(len(keys), number, np.uint64)
    buffer.add(np.array(keys, np.int64), np.full((len(keys), 1), number, np.float32), scores)


def found_in(buffer: WriteBuffer, keys: range) -> dict[int, int]:
    rows = np.zeros((len(keys), 1), np.float32)
    found = np.zeros(len(keys), np.bool_)
    count = buffer.find(np.array(keys, np.int64), WHOLE, rows, found)
    assert count == found.sum()
    assert np.array_equal(buffer.contains(np.array(keys, np.int64)), found)
    return {key: int(row) for key, row, is_in in zip(keys, rows[:, 0], found, strict=True) if is_in}


@given(parts=PARTS, num_before=st.integers(0, 12), comes_back=st.booleans())
def test_the_newest_row_of_each_key_is_kept(
    parts: list[list[int]], num_before: int, comes_back: bool
) -> None:
    buffer = WriteBuffer(1, np.float32)
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


def test_rows_that_wait_for_long_are_not_copied_by_each_write() -> None:
    buffer = WriteBuffer(1, np.float32)
    add(buffer, list(range(100_000)), 0)
    oldest = buffer._contents.waiting[-1]
    for number in range(1, 9):
        add(buffer, list(range(1000 * number, 1000 * number + 1000)), number)
        assert buffer._contents.waiting[-1] is oldest
        assert len(buffer._contents.waiting) <= 5


def test_a_reader_finds_each_row_in_the_buffer_or_the_tier_at_every_line_that_moves_it() -> None:
    buffer = WriteBuffer(1, np.float32)
    keys = list(range(5))
    below = 0  # version of each key in the tier
    allowed = {0}
    num_looks = 0

    def look(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal num_looks
        if frame.f_code.co_filename == write_buffer.__file__:
            num_looks += 1
            met = found_in(buffer, range(5))
            rows = {met.get(key, below) for key in keys}
            assert rows <= allowed, f"at line {frame.f_lineno}"
        return look

    def watched(call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(look)
        try:
            call()
        finally:
            sys.settrace(before)

    add(buffer, keys, 0)
    for number in range(1, 13):
        watched(buffer.depart)
        allowed = {number - 1, number}  # a new row becomes visible at one of these lines
        watched(partial(add, buffer, keys, number))
        allowed = {number}
        if number % 3:
            below = number - 1
            watched(buffer.land)
        else:
            watched(buffer.put_back)
    assert num_looks > 100
