"""Results are bit-identical to training; invalid requests are rejected."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring import StepContainer, TableConfig, open_storage
from sparring.adapter import initial_rows
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    UnknownTableError,
    UnsupportedError,
)
from sparring_packed.library import set_simd_level, simd_level

from .conftest import bits

LEVELS = ("portable", "avx2", "avx512")
EXTREMES = (-1, 0, -(2**63), 2**63 - 1)


def ids_of(training: Any, count: int, seed: int = 3) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Known and unknown ids in random order, some of them repeated."""
    rng = np.random.default_rng(seed)
    known = rng.choice(np.array(list(training.rows)), count)
    strange = rng.integers(-(2**63), 2**63 - 1, count // 4)
    return rng.permutation(np.concatenate([known, strange, EXTREMES]))


def test_rows_equal_training_bit_by_bit_P3(trained: Any) -> None:
    ids = ids_of(trained, 5_000)
    with sparring_packed.open(trained.served) as tables:
        assert (bits(tables.lookup("item", ids)) == bits(trained.expected(ids))).all()
        found = tables.find("item", ids)
        known = np.isin(ids, list(trained.rows))
        assert (found.found == known).all()
        assert (bits(found.rows[known]) == bits(trained.expected(ids[known]))).all()
        assert not found.rows[~known].any()


def test_rows_equal_a_trained_storage_P3(trained: Any) -> None:
    keys = np.array(list(trained.rows), np.int64)
    with open_storage("memory", trained.config) as storage:
        storage.upsert(keys, np.array(list(trained.rows.values())))
        with sparring_packed.open(trained.served) as tables:
            asked = np.concatenate([keys, np.arange(100)])
            asked = np.unique(asked)
            ours, theirs = tables.find("item", asked), storage.find(asked)
    assert (ours.found == theirs.found).all()
    assert (bits(ours.rows) == bits(theirs.rows)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "initializer",
    [
        "zeros",
        {"kind": "constant", "value": 0.3},
        "uniform",
        {"kind": "uniform", "low": 1e-3, "high": 1.0001e-3},
        {"kind": "normal", "mean": 1.0, "stddev": 3.0},
        "truncated_normal",
        "xavier",
    ],
    ids=str,
)
def test_an_id_without_a_row_reads_as_its_initial_value_P3(
    new_training: Any, dtype: str, initializer: Any
) -> None:
    config = TableConfig("item", dim=37, dtype=dtype, initializer=initializer, seed=-(2**63))
    training = new_training(config)
    training.save(training.draw([3], 1))
    training.publish()
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 2_000)
    with sparring_packed.open(training.served) as tables:
        rows = tables.lookup("item", ids)
    assert (bits(rows) == bits(initial_rows(ids, config).astype(np.float32))).all()


def test_a_table_without_rows_is_served(training: Any) -> None:
    training.save({})
    training.publish()
    with sparring_packed.open(training.served) as tables:
        assert (bits(tables.lookup("item", [1, 2])) == bits(training.expected([1, 2]))).all()
        assert tables.lookup("item", []).shape == (0, 24)
        assert list(tables.scan("item")) == []
        assert tables.tables["item"].num_rows == 0


@pytest.mark.parametrize("file_bytes", [1 << 16, 1 << 30])
def test_one_file_and_many_have_the_same_rows(training: Any, file_bytes: int) -> None:
    training.save(training.draw(np.arange(5_000), 1))
    options = sparring_packed.WriteOptions(file_bytes=file_bytes)
    training.publish(options=options)
    rows = [
        file
        for file in sparring_packed.read_manifest(training.served_url()).files
        if file.kind == "rows"
    ]
    assert len(rows) == (1 if file_bytes == 1 << 30 else 16)
    ids = ids_of(training, 3_000)
    with sparring_packed.open(training.served) as tables:
        assert (bits(tables.lookup("item", ids)) == bits(training.expected(ids))).all()
        assert sum(len(each) for each, _ in tables.scan("item", 999)) == 5_000


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_sum_adds_looked_up_rows_in_their_order_P9(
    trained: Any, mode: Any, is_weighted: bool
) -> None:
    ids = ids_of(trained, 2_000)
    rng = np.random.default_rng(4)
    offsets = np.sort(np.append(rng.integers(0, len(ids), 300), [0, 0, len(ids), len(ids)]))
    weights = rng.normal(size=len(ids)).astype(np.float32) if is_weighted else None
    with sparring_packed.open(trained.served) as tables:
        sums = tables.pool("item", ids, offsets, weights, mode=mode)
        rows = tables.lookup("item", ids)
    for bag, (begin, end) in enumerate(pairwise(offsets)):
        expected = np.zeros(24, np.float32)
        for i in range(begin, end):
            if weights is None:
                expected = expected + rows[i]
            else:
                # In float64 the product is exact: one rounding, as of a fused multiply-add.
                expected = (
                    np.float64(rows[i]) * np.float64(weights[i]) + np.float64(expected)
                ).astype(np.float32)
        if mode == "mean" and end > begin:
            expected = expected / np.float32(end - begin)
        if is_weighted:
            np.testing.assert_allclose(sums[bag], expected, rtol=1e-6, atol=1e-6)
        else:
            assert (bits(sums[bag]) == bits(expected)).all(), bag


@pytest.mark.parametrize("dim", [1, 3, 16, 37, 64, 200])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8", "int4"])
def test_all_simd_levels_give_the_same_bits_P9(new_training: Any, dim: int, dtype: str) -> None:
    training = new_training(TableConfig("item", dim=dim, seed=1))
    training.save(training.draw(np.arange(300), 1))
    training.publish(quantize={"item": dtype})
    ids = np.random.default_rng(2).integers(-30, 330, 700)
    weights = np.random.default_rng(3).normal(size=700)
    offsets = np.arange(0, 701, 7)
    before, answers = simd_level(), {}
    try:
        with sparring_packed.open(training.served) as tables:
            for level in LEVELS:
                try:
                    set_simd_level(level)
                except InvalidArgumentError:
                    continue
                answers[level] = (
                    tables.lookup("item", ids).tobytes(),
                    tables.pool("item", ids, offsets).tobytes(),
                    tables.pool("item", ids, offsets, weights, mode="mean").tobytes(),
                    # If all ids have rows, another loop sums the bags.
                    tables.pool("item", ids % 300, offsets).tobytes(),
                    tables.pool("item", ids % 300, offsets, mode="mean").tobytes(),
                )
    finally:
        set_simd_level(before)
    assert set(answers.values()) == {answers["portable"]}


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8", "int4"])
@pytest.mark.parametrize("dim", [5, 64, 150])
def test_sums_of_ids_with_rows_are_in_their_order_P9(
    new_training: Any, dim: int, dtype: str
) -> None:
    training = new_training(TableConfig("item", dim=dim, seed=1))
    training.save(training.draw(np.arange(300), 1))
    training.publish(quantize={"item": dtype})
    rng = np.random.default_rng(2)
    # Empty bags, bags of one id, and bags longer than a group of the search.
    lengths = np.concatenate([[0, 0, 1, 100, 0, 33, 32, 31], rng.integers(0, 9, 200), [0]])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, 300, offsets[-1])
    with sparring_packed.open(training.served) as tables:
        rows = tables.lookup("item", ids)
        sums, means = (tables.pool("item", ids, offsets, mode=mode) for mode in ("sum", "mean"))
    for bag, (begin, end) in enumerate(pairwise(offsets)):
        expected = np.zeros(dim, np.float32)
        for row in rows[begin:end]:
            expected = expected + row
        assert (bits(sums[bag]) == bits(expected)).all(), bag
        mean = expected / np.float32(max(end - begin, 1))
        assert (bits(means[bag]) == bits(mean)).all(), bag


def test_int8_tables_are_served_as_they_were_trained(tmp_path: Path) -> None:
    """Codes and scales are copied, and initial values are rounded as in training."""
    ids = np.arange(-20, 400)
    with StepContainer() as container:
        container.declare(TableConfig("item", 17, "int8", initializer="normal"))
        rows = np.random.default_rng(0).normal(size=(300, 17)).astype(np.float32)
        scales = np.float32(10.0) ** np.random.default_rng(1).integers(-7, 4, (300, 1))
        container.set_state("item", np.zeros(1, np.float32), "rowwise_adagrad")
        container.assign("item", np.arange(300), rows * scales)
        container.save(str(tmp_path / "trained"))
        expected = container.lookup("item", ids, is_registered=False).rows
    result = sparring_packed.write(tmp_path / "trained", tmp_path / "served" / "1")
    assert (result.row_bytes, result.relative_error) == ({"item": 21}, {"item": 0.0})
    with sparring_packed.open(tmp_path / "served") as tables:
        assert (bits(tables.lookup("item", ids)) == bits(expected)).all()
    options = {"path": str(tmp_path / "served")}
    with pytest.raises(UnsupportedError, match=r"not return rows of int8.*training snapshot"):
        open_storage("packed", TableConfig("item", 17, "int8", initializer="normal"), **options)
    wide = {"item": "fp32"}
    result = sparring_packed.write(tmp_path / "trained", tmp_path / "wide" / "1", quantize=wide)
    assert result.row_bytes == {"item": 68}
    with sparring_packed.open(tmp_path / "wide") as tables:
        assert (bits(tables.lookup("item", ids)) == bits(expected)).all()


def test_a_call_gives_rows_of_several_tables_of_one_version(training: Any) -> None:
    training.save(training.draw([1, 2], 1))
    training.publish()
    with sparring_packed.open(training.served) as tables:
        pulled = tables.pull({"item": [2, 9]})
        assert pulled.found["item"].tolist() == [True, False]
        assert (bits(pulled.rows["item"]) == bits(training.expected([2, 9]))).all()
        assert pulled.version == tables.version
        assert 0 <= pulled.version.age_seconds < 600
        zeros = tables.pull({"item": [9]}, missing="zeros")
        assert not zeros.rows["item"].any()
        assert tables.pull({}).rows == {}
        # Rows can be written to any memory, which need not be aligned.
        dim = pulled.rows["item"].shape[1]
        out = np.frombuffer(bytearray(1 + 8 * dim), np.float32, 2 * dim, 1).reshape(2, dim)
        assert tables.pull({"item": [2, 9]}, out={"item": out}).rows["item"] is out
        assert (bits(out.copy()) == bits(pulled.rows["item"])).all()
        with pytest.raises(InvalidArgumentError, match=r"pull: out for table 'item' .*found float"):
            tables.pull({"item": [2]}, out={"item": out})


def test_large_results_have_the_same_rows(training: Any) -> None:
    training.config = TableConfig("item", dim=64)
    training.save(training.draw(np.arange(500), 1))
    training.publish()
    ids = np.random.default_rng(0).integers(0, 500, 40_000)
    with sparring_packed.open(training.served) as tables:
        once = tables.lookup("item", np.arange(500))
        aligned = np.empty(40_000 * 64 + 16, np.float32)
        begin = -aligned.ctypes.data % 64 // 4
        out = aligned[begin : begin + 40_000 * 64].reshape(-1, 64)
        assert tables.lookup("item", ids, out=out) is out
        assert (bits(out) == bits(once[ids])).all()


def test_invalid_requests_are_rejected(trained: Any) -> None:
    with sparring_packed.open(trained.served) as tables:
        with pytest.raises(UnknownTableError, match="did you mean 'item'"):
            tables.lookup("itme", [1])
        with pytest.raises(InvalidArgumentError, match=r"must be a \(n,\) array of int64"):
            tables.lookup("item", [[1]])
        with pytest.raises(InvalidArgumentError, match="found float64"):
            tables.lookup("item", [1.5])
        with pytest.raises(InvalidArgumentError, match="found uint64"):
            tables.lookup("item", np.array([1], np.uint64))
        with pytest.raises(InvalidArgumentError, match="writable C-contiguous"):
            tables.lookup("item", [1], out=np.empty((2, 24), np.float32))
        with pytest.raises(InvalidArgumentError, match="from 0 to 2"):
            tables.pool("item", [1, 2], [0, 1])
        with pytest.raises(InvalidArgumentError, match="at bag 1"):
            tables.pool("item", [1, 2], [0, 2, 1, 2])
        with pytest.raises(InvalidArgumentError, match="one more element"):
            tables.pool("item", [], [])
        with pytest.raises(InvalidArgumentError, match="weights must have the shape"):
            tables.pool("item", [1, 2], [0, 2], [1.0])
        with pytest.raises(InvalidArgumentError, match="mode must be sum or mean"):
            tables.pool("item", [1], [0, 1], mode="max")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"is not kept; .*kept"):
            tables.pull({"item": [1]}, version="0" * 32)
        with pytest.raises(InvalidArgumentError, match="dtype must be fp32 or stored"):
            tables.pull({"item": [1]}, dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ClosedError, match="open it again"):
        tables.lookup("item", [1])
    tables.close()
    for settings in ({"keep_versions": 0}, {"keep_versions": 9}, {"verify": "none"}):
        with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
            sparring_packed.open(trained.served, **settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="cannot be mapped"):
        sparring_packed.open("s3://bucket/served")


def test_partitions_that_are_not_open_are_rejected_and_not_mapped(training: Any) -> None:
    training.save(training.draw(np.arange(4_000), 1))
    training.publish(options=sparring_packed.WriteOptions(file_bytes=1 << 16))
    from sparring.contracts import partition

    ids = np.arange(5_000)
    ours = partition(ids) < 1024
    with (
        sparring_packed.open(training.served) as whole,
        sparring_packed.open(training.served, partitions=(0, 1024)) as part,
    ):
        assert part.mapped_bytes < whole.mapped_bytes / 3
        assert (bits(part.lookup("item", ids[ours])) == bits(training.expected(ids[ours]))).all()
        with pytest.raises(InvalidArgumentError, match="partitions 0 to 1023"):
            part.lookup("item", ids)
        scanned = np.concatenate([keys for keys, _ in part.scan("item")])
        assert sorted(scanned) == sorted(ids[:4_000][ours[:4_000]])
    for wrong in ((5, 5), (-1, 3), (0, 4097)):
        with pytest.raises(InvalidArgumentError, match=r"within \[0, 4096\)"):
            sparring_packed.open(training.served, partitions=wrong)


def test_tables_that_are_closed_while_they_are_read_are_read_to_the_end(trained: Any) -> None:
    tables = sparring_packed.open(trained.served)
    handle = tables._handle
    tables.close()
    assert handle is not None
    del handle
    gc.collect()
    with pytest.raises(ClosedError):
        _ = tables.version
