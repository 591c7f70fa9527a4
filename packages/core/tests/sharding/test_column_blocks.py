"""Tables whose columns are divided train the bits of one process, and refuse what they cannot divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring_testing.sharded_jobs import DIM, joined, opened, stored, train
from sparring.contracts.admission import Frequency
from sparring.contracts.collective import Collective
from sparring.contracts.expiry import Expiry
from sparring_testing.rank_threads import run_ranks

DIVIDED = ("column_wise", "table_column_wise", "grid")


@pytest.mark.parametrize("method", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_blocks_train_the_bits_of_one_process(world_size: int, method: str) -> None:
    with opened(None, 1, "", method) as alone:
        train(alone, range(world_size), method)
        expected = joined([stored(alone)])
    assert len(expected) > 20
    for kind in DIVIDED:

        def body(collective: Collective, kind: str = kind) -> Any:
            with opened(collective, world_size, kind, method) as container:
                train(container, [collective.rank], method)
                is_divided = len(container.entry("user").parts) > 1
                return stored(container), container.counters.rows_updated, is_divided

        held = run_ranks(world_size, body)
        assert joined([each for each, _, _ in held]) == expected
        assert all(is_divided == (world_size > 1) for _, _, is_divided in held)
        assert sum(counted for _, counted, _ in held) == alone.counters.rows_updated
