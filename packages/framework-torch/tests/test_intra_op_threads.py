"""Loops of tables on torch's intra-op threads: equal results, and no additional threads."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sparring.adapter
from sparring import _native
from sparring.adapter import borrow_threads
from sparring.errors import InvalidArgumentError
from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, Optimizer
from sparring_torch.device.intra_op_threads import borrow_intra_op_threads

NUM_TABLES, NUM_BAGS, DIM = 4, 20_000, 8


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    sparring.adapter.configure_pool(None)
    borrow_intra_op_threads()


def trained(threads: int, is_borrowing: bool) -> tuple[list[bytes], list[np.ndarray]]:
    """Returns outputs of some steps, and the rows afterwards."""
    sparring.adapter.configure_pool(threads)
    torch.set_num_threads(threads)
    features = [f"f{i}" for i in range(NUM_TABLES)]
    module = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=DIM, feature_names=[name])
            for i, name in enumerate(features)
        ]
    )
    optimizer = Optimizer(module, "adagrad", lr=0.1)
    if not is_borrowing:
        _native.give_back_threads()
    generator = torch.Generator().manual_seed(7)
    outputs = []
    for _ in range(3):
        ids = torch.randint(0, 5_000, (2 * NUM_TABLES * NUM_BAGS,), generator=generator)
        batch = KeyedJaggedTensor(
            keys=features, values=ids, lengths=torch.full((NUM_TABLES * NUM_BAGS,), 2)
        )
        pooled = module(batch).values()
        torch.sin(pooled).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(pooled.detach().numpy().tobytes())
    keys = np.arange(5_000)
    storages = [optimizer.container.storage(f"t{i}") for i in range(NUM_TABLES)]
    rows = [storage.find(keys).rows for storage in storages]
    optimizer.container.close()
    return outputs, rows


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_are_the_same_on_both_kinds_of_threads(threads: int) -> None:
    ours, theirs = trained(threads, False), trained(threads, True)
    assert ours[0] == theirs[0]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert one.tobytes() == other.tobytes()


# One process imports torch, starts no thread, and forks a process for each of the scripts.
SOURCE = """
import json, os, signal, sys, textwrap, traceback
import torch, sparring.adapter
from sparring import _native
from sparring_torch import EmbeddingBag, EmbeddingBagCollection, EmbeddingBagConfig
from sparring_torch import KeyedJaggedTensor, Optimizer


def loop():
    return max(_native.pool_threads_of_loop(64, 1, 0.001) for _ in range(20))


def count():
    print(len(os.listdir("/proc/self/task")))


def run(script):
    torch.set_num_threads(2)
    sparring.adapter.configure_pool(2)
    torch.ones(1_000_000).add(1)
    exec(textwrap.dedent(script), globals())


for name, script in json.loads(sys.argv[1]).items():
    print(name, flush=True)
    process = os.fork()
    if not process:
        try:
            signal.alarm(100)
            run(script)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print("status", status, flush=True)
"""
SCRIPTS = {
    "module": """
        count()
        bags = EmbeddingBag(4)
        assert loop() == 2
        count()
        _native.give_back_threads()
        assert loop() == 2
        count()
    """,
    "fork": """
        bags = EmbeddingBag(4)
        assert loop() == 2
        child = os.fork()
        if not child:
            signal.alarm(60)
            loop()
            EmbeddingBag(4)
            loop()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
    """,
    # Fewer tables than threads: the loops of each table run inside a loop over tables.
    "steps": """
        torch.set_num_threads(4)
        sparring.adapter.configure_pool(4)

        def count_in_child():
            child = os.fork()
            if not child:
                print(_native.pool_num_threads(), flush=True)
                os._exit(0)
            os.waitpid(child, 0)

        names = ["a", "b"]
        bags = EmbeddingBagCollection(
            [EmbeddingBagConfig(name=n, embedding_dim=8, feature_names=[n]) for n in names]
        )
        optimizer = Optimizer(bags, "adagrad", lr=0.1)
        count_in_child()
        for _ in range(10):
            values = torch.randint(0, 50_000, (80_000,))
            lengths = torch.full((40_000,), 2)
            batch = KeyedJaggedTensor(keys=names, values=values, lengths=lengths)
            bags(batch).values().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        count_in_child()
    """,
}


@pytest.fixture(scope="module")
def printed() -> dict[str, list[int]]:
    """Returns the numbers that each script prints."""
    found = subprocess.run(
        [sys.executable, "-c", SOURCE, json.dumps(SCRIPTS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    lines = found.stdout.split()
    numbers = {}
    for name in SCRIPTS:
        begin = lines.index(name)
        end = lines.index("status", begin)
        assert lines[end + 1] == "0", found.stderr
        numbers[name] = [int(each) for each in lines[begin + 1 : end]]
    return numbers


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
@pytest.mark.slow
def test_a_thread_that_creates_a_module_needs_only_the_threads_of_torch(
    printed: dict[str, list[int]],
) -> None:
    before, during, after = printed["module"]
    assert before == during
    assert after > before


def test_a_pool_with_more_threads_than_torch_is_used_itself() -> None:
    sparring.adapter.configure_pool(2)
    torch.set_num_threads(1)
    borrow_intra_op_threads()
    assert any(_native.pool_threads_of_loop(64, 1, 0.001) == 2 for _ in range(20))


@pytest.mark.slow
def test_a_forked_child_can_compute(printed: dict[str, list[int]]) -> None:
    assert printed["fork"] == []


@pytest.mark.slow
def test_a_fork_after_steps_over_two_tables_keeps_its_pool(printed: dict[str, list[int]]) -> None:
    before, after = printed["steps"]
    assert before == after == 4


@pytest.mark.parametrize(
    ("num_tables", "num_bags", "is_spread"), [(1, 64, False), (26, 64, False), (26, 1_024, True)]
)
def test_steps_of_small_batches_call_no_other_thread(
    num_tables: int, num_bags: int, is_spread: bool
) -> None:
    asked: list[int] = []

    @ctypes.CFUNCTYPE(
        ctypes.c_int32, *[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p
    )  # of torch_parallel_for
    def parallel_for(_begin: int, end: int, *_: Any) -> int:
        asked.append(end)
        return 1  # the caller runs all of it

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_uint32))
    def get_num_threads(found: Any) -> int:
        found[0] = 2
        return 0

    sparring.adapter.configure_pool(2)
    features = [f"f{i}" for i in range(num_tables)]
    module = EmbeddingBagCollection(
        [EmbeddingBagConfig(name=f"t{f}", embedding_dim=DIM, feature_names=[f]) for f in features]
    )
    optimizer = Optimizer(module, torch.optim.Adam, lr=0.1)
    functions = [
        ctypes.cast(each, ctypes.c_void_p).value for each in (parallel_for, get_num_threads)
    ]
    borrow_threads(*functions)
    num_ids = num_tables * num_bags
    for _ in range(2):
        ids, lengths = torch.randint(0, 9_000, (num_ids,)), torch.ones(num_ids, dtype=torch.int64)
        module(KeyedJaggedTensor(features, ids, lengths=lengths)).values().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert set(asked) == ({2} if is_spread else set())


def test_the_address_zero_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        borrow_threads(0, 0)
