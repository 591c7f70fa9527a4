from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from sparring.runtime.threads import read_ahead

_SECONDS = 30.0


def _names() -> list[str]:
    return [each.name for each in threading.enumerate() if "sparring-snapshot-read" in each.name]


def test_the_next_item_is_created_while_one_is_in_use() -> None:
    begun = [threading.Event() for _ in range(4)]

    def items() -> Generator[int, None, None]:
        for number in range(3):
            begun[number].set()
            yield number
        begun[3].set()

    seen = []
    for item in read_ahead(items()):
        assert begun[item + 1].wait(_SECONDS)
        # One item ahead, not all of them, because each takes memory.
        assert not any(each.is_set() for each in begun[item + 2 :])
        seen.append(item)
    assert seen == [0, 1, 2]
    assert _names() == []


def test_a_failure_while_reading_ahead_is_raised_in_its_turn() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise ValueError("the second cannot be read")

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="the second cannot be read"):
        next(ahead)
    assert _names() == []


def test_an_iteration_that_stops_early_leaves_no_thread_and_nothing_open() -> None:
    made, ended = list[int](), threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            for number in range(1000):
                made.append(number)
                yield number
        finally:
            ended.set()

    kept = items()
    ahead = read_ahead(kept)
    assert next(ahead) == 0
    assert len(_names()) == 1
    ahead.close()  # type: ignore[attr-defined]
    assert _names() == []
    # Closed, like the files that it reads, although a reference to it exists.
    assert ended.is_set()
    assert made == [0, 1]


def test_reading_ahead_of_an_empty_iterator_reads_nothing() -> None:
    assert list(read_ahead(number for number in ())) == []
