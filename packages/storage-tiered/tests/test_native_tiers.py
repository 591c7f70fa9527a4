"""A stack over an in-memory tier is read without the interpreter, with the same results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import Columns, TableConfig
from sparring_tiered import TieredStorage

pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")

TABLE = TableConfig("films", 5).with_state(2, "adagrad")
NUM_KEYS, CAPACITY = 6_000, 960
ABOVE = {"backend": "hkv", "options": {"capacity": CAPACITY, "policy": "lru"}}


def stack_over(*below: Any, **options: Any) -> Any:
    return open_storage("tiered", TABLE, tiers=[ABOVE, *below], **options)


@pytest.fixture(params=["always", "second_touch", "never"])
def stacks(request: pytest.FixtureRequest) -> Iterator[list[TieredStorage]]:
    """Two stacks that differ in how their lower tiers are read, and one with a tier in between."""
    made = [
        stack_over(*below, promote=request.param)
        for below in (["memory"], ["hkv"], [{**ABOVE, "options": {"capacity": 1_920}}, "hkv"])
    ]
    yield made
    for stack in made:
        stack.close()


def test_rows_and_counters_equal_a_stack_that_python_reads(
    stacks: list[TieredStorage],
) -> None:
    generator = np.random.default_rng(5)
    model: dict[int, Any] = {}
    whole = Columns(0, TABLE.width)
    for number in range(60):
        keys = generator.permutation(NUM_KEYS)[: generator.integers(1, 3_000)]
        columns = (whole, Columns(0, TABLE.dim), Columns(3, 6))[number % 3]
        expected = np.zeros((len(keys), TABLE.width), np.float32)
        for place, key in enumerate(keys.tolist()):
            expected[place] = model.get(key, 0)
        for stack in stacks:
            result = stack.find(keys, columns)
            assert result.found.tolist() == [key in model for key in keys.tolist()]
            assert np.array_equal(result.rows, expected[:, columns.begin : columns.end])
        written = keys[: max(1, len(keys) // 4)]
        rows = generator.random((len(written), TABLE.width), np.float32)
        for stack in stacks:
            stack.upsert(written, rows)
            assert stack.erase(written[::7]) == len(written[::7])
            stack.upsert(written[::14], rows[::14])
        model.update(zip(written.tolist(), rows, strict=True))
        for key in set(written[::7].tolist()) - set(written[::14].tolist()):
            del model[key]
        assert {stack.size for stack in stacks} == {len(model)}
        if number % 20 == 10:
            for stack in stacks:
                stack.flush()
    by_interpreter, in_memory = (
        [
            replace(each, backend="", read_seconds=0.0, write_seconds=0.0, wait_seconds=0.0)
            for each in stack.tier_counters()
        ]
        for stack in stacks[:2]
    )
    # A sample of many keys may pass the filter although one of the others would not.
    below = [by_interpreter[1], in_memory[1]]
    assert below[0].bloom_skips - below[1].bloom_skips <= 0.01 * below[0].bloom_skips
    alike = {"bloom_skips": 0, "bloom_false_positives": 0, "misses": 0}
    assert replace(below[0], **alike) == replace(below[1], **alike)
    assert by_interpreter[0] == in_memory[0]


def test_time_and_bytes_of_a_tier_in_memory_are_counted() -> None:
    with stack_over("hkv") as stack:
        keys = np.arange(NUM_KEYS)
        stack.upsert(keys, np.ones((NUM_KEYS, TABLE.width), np.float32))
        stack.find(keys)
        first, last = stack.tier_counters()
        assert last.hits == NUM_KEYS - first.hits
        assert last.read_bytes == last.hits * TABLE.row_bytes
        assert 0 < last.read_seconds < 10


def test_an_overridden_find_of_a_lower_tier_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with stack_over("hkv") as stack:
        keys = np.arange(NUM_KEYS)
        stack.upsert(keys, np.ones((NUM_KEYS, TABLE.width), np.float32))
        last = stack.tiers[-1]
        asked: list[int] = []
        find = last._find_impl

        def watched(keys: Any, *arguments: Any) -> None:
            asked.append(len(keys))
            find(keys, *arguments)

        monkeypatch.setattr(last, "_find_impl", watched)
        assert stack.find(keys).found.all()
        assert sum(asked) == NUM_KEYS - stack.tier_counters()[0].hits
