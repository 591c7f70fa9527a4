"""The best rows of queries equal sorting all scores, for any chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparring_packed
from sparring import TableConfig, open_storage
from sparring.errors import InvalidArgumentError, UnknownTableError
from sparring_packed import TopK, TopKSearch, top_k
from sparring_packed.library import set_simd_level, simd_level
from sparring_packed.top_k_search import Jagged

DTYPES = ("fp32", "fp16", "bf16", "int8", "int4")
METRICS = ("dot", "cosine", "l2")


def scores_of(rows: Any, queries: Any, metric: str) -> npt.NDArray[np.float64]:
    """All scores in float64."""
    rows, queries = np.asarray(rows, np.float64), np.asarray(queries, np.float64)
    if metric == "l2":
        return -((queries[:, None] - rows[None]) ** 2).sum(axis=2)
    products = queries @ rows.T
    if metric == "dot":
        return products
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(rows, axis=1)
    return products / np.where(lengths > 0, lengths, 1)


def by_sorting(
    keys: Any, scores: npt.NDArray[np.float64], k: int, exclude: Jagged | None = None
) -> list[list[int]]:
    """The best keys of each query, with the smaller key first for equal scores."""
    found = []
    for query, each in enumerate(scores):
        order = np.lexsort((keys, -each))
        ids, offsets = ([], [0] * (len(scores) + 1)) if exclude is None else exclude
        unwanted = ids[offsets[query] : offsets[query + 1]]
        is_wanted = ~np.isnan(each[order]) & ~np.isin(keys[order], unwanted)
        found.append(keys[order][is_wanted][:k].tolist())
    return found


def lists_of(found: TopK) -> list[list[int]]:
    """Returns the filled results, after checking the marks of the others."""
    is_filled = np.arange(found.keys.shape[1]) < found.counts[:, None]
    assert (found.keys[~is_filled] == -1).all()
    assert (found.scores[~is_filled] == -np.inf).all()
    return [row[:count].tolist() for row, count in zip(found.keys, found.counts, strict=True)]


@pytest.fixture(params=["portable", "avx2", "avx512"])
def level(request: Any) -> Iterator[str]:
    before = simd_level()
    try:
        set_simd_level(request.param)
    except InvalidArgumentError as error:
        pytest.skip(str(error))
    yield request.param
    set_simd_level(before)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_of_a_table_equal_sorting_its_rows(
    new_training: Any, dtype: str, metric: Any
) -> None:
    training = new_training(TableConfig("item", dim=21))
    keys = np.random.default_rng(0).choice(10**9, 2 * 4096 + 77, replace=False) - 5 * 10**8
    training.save(training.draw(keys, 1))
    training.publish(quantize={"item": dtype})
    queries = np.random.default_rng(2).normal(size=(40, 21)).astype(np.float32)
    with sparring_packed.open(training.served) as tables:
        found = tables.top_k("item", queries, 15, metric=metric)
        rows = tables.lookup("item", keys)
    expected = scores_of(rows, queries, metric)
    best = np.sort(expected, axis=1)[:, :-16:-1]
    assert found.scores == pytest.approx(best, rel=1e-4, abs=1e-4)
    # Each key has its score; if the order differs from sorting, scores differ by rounding.
    places = {int(key): at for at, key in enumerate(keys)}
    at = np.array([[places[int(key)] for key in each] for each in found.keys])
    assert np.take_along_axis(expected, at, axis=1) == pytest.approx(best, rel=1e-4, abs=1e-4)
    assert (found.counts == 15).all()
    assert all(len(set(each)) == 15 for each in found.keys.tolist())


def test_deltas_are_ranked_by_their_newest_rows(trained: Any) -> None:
    old = list(trained.rows)[:3]
    axis = np.eye(24, dtype=np.float32)[:1]
    trained.save({old[0]: 90 * axis[0], 77: 80 * axis[0]}, erased=[old[1]])
    trained.publish()
    with sparring_packed.open(trained.served) as tables:
        found = tables.top_k("item", axis, 3_000)
        everything = tables.top_k("item", axis, 5_000)
    assert found.keys[0, :2].tolist() == [old[0], 77]
    assert sorted(lists_of(everything)[0]) == sorted(trained.rows)


@pytest.mark.parametrize("metric", METRICS)
def test_scores_have_the_same_bits_at_each_level_and_in_any_blocks(level: str, metric: Any) -> None:
    random = np.random.default_rng(7)
    keys, rows = np.arange(700), random.normal(size=(700, 21)).astype(np.float32)
    queries = random.normal(size=(50, 21)).astype(np.float32)
    found = top_k([(keys, rows)], queries, 9, metric=metric)
    set_simd_level("portable")
    for some in (range(0, 50), range(3, 4), range(5, 45)):
        blocks = ((keys[at : at + 33], rows[at : at + 33]) for at in range(0, 700, 33))
        again = top_k(blocks, queries[some], 9, metric=metric)
        assert (again.keys == found.keys[some]).all()
        assert (again.scores == found.scores[some]).all()


@pytest.mark.parametrize("k", [1, 7, 2_000])
def test_ties_go_to_the_smaller_key_in_any_order_of_rows(level: str, k: int) -> None:
    random = np.random.default_rng(3)
    keys = random.permutation(np.arange(-1_500, 1_500))
    # Small integers: products are exact, and many are equal.
    rows = random.integers(-2, 3, (3_000, 6)).astype(np.float32)
    queries = random.integers(-2, 3, (33, 6)).astype(np.float32)
    queries[0] = 0
    expected = by_sorting(keys, scores_of(rows, queries, "dot"), k)
    assert lists_of(top_k([(keys, rows)], queries, k)) == expected
    order = np.argsort(keys)
    pieces = [(keys[part], rows[part]) for part in np.array_split(order, 13)]
    assert lists_of(top_k(pieces, queries, k)) == expected


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chunks_and_exclusions_equal_sorting(data: st.DataObject) -> None:
    num_queries, num_rows = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 90))
    k = data.draw(st.integers(1, 100))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    keys = random.choice(np.array([-(2**63), -1, 2**63 - 1, *range(200)]), num_rows, replace=False)
    rows = random.integers(-3, 4, (num_rows, 3)).astype(np.float32)
    rows[random.random(num_rows) < 0.1] = np.nan
    queries = random.integers(-3, 4, (num_queries, 3)).astype(np.float32)
    lengths = random.integers(0, 40, num_queries)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    exclude = (random.choice(np.append(keys, 7), int(offsets[-1])), offsets)
    cuts = np.sort(random.integers(0, num_rows + 1, 3))
    chunks = zip(np.split(keys, cuts), np.split(rows, cuts), strict=True)
    found = top_k(chunks, queries, k, exclude=exclude)
    assert lists_of(found) == by_sorting(keys, scores_of(rows, queries, "dot"), k, exclude)


def test_more_queries_than_a_block_have_their_own_exclusions() -> None:
    random = np.random.default_rng(4)
    keys = np.arange(50)
    rows = random.permutation(np.arange(50)).astype(np.float32)[:, None]
    queries = np.where(np.arange(1_500) % 2, -1, 1).astype(np.float32)[:, None]
    seen = random.integers(0, 50, (1_500, 30))
    exclude = (seen.ravel(), np.arange(1_501) * 30)
    expected = by_sorting(keys, scores_of(rows, queries, "dot"), 10, exclude)
    assert lists_of(top_k([(keys, rows)], queries, 10, exclude=exclude)) == expected


def test_rows_of_a_storage_are_ranked_by_its_scan() -> None:
    config = TableConfig("item", dim=4, dtype="float16")
    keys = np.arange(100)
    with open_storage("memory", config) as storage:
        storage.upsert(keys, np.outer(keys, np.ones(4)).astype(np.float16))
        chunks = ((each.keys, each.rows) for each in storage.scan(chunk_rows=9))
        found = top_k(chunks, np.ones((1, 4)), 3)
    assert (found.keys.tolist(), found.scores.tolist()) == ([[99, 98, 97]], [[396, 392, 388]])


def test_a_score_that_is_nan_or_minus_infinity() -> None:
    rows = np.array([[np.nan], [-np.inf], [np.inf], [1]], np.float32)
    found = top_k([(np.arange(4), rows)], [[1.0]], 4)
    assert lists_of(found) == [[2, 3, 1]]
    assert found.scores[0, :3].tolist() == [np.inf, 1, -np.inf]


def test_a_row_of_zeros_has_the_cosine_zero_and_equal_vectors_the_distance_zero() -> None:
    rows = np.array([[0, 0], [3, 4], [-3, -4]], np.float32)
    cosines = top_k([(np.arange(3), rows)], [[6.0, 8.0]], 3, metric="cosine")
    assert cosines.keys.tolist() == [[1, 0, 2]]
    assert cosines.scores[0] == pytest.approx([1, 0, -1])
    distances = top_k([(np.arange(3), rows)], [[3.0, 4.0]], 3, metric="l2")
    assert distances.scores.tolist() == [[0, -25, -100]]


def test_a_search_continues_after_a_result() -> None:
    search = TopKSearch(np.ones((1, 1)), 2)
    search.add([5, 6], [[1.0], [2.0]])
    assert search.result().keys.tolist() == [[6, 5]]
    search.add([1, 2, 3], [[0.5], [2.0], [3.0]])
    assert search.result().keys.tolist() == [[3, 2]]


def test_an_empty_table_has_no_results(training: Any) -> None:
    training.save({})
    training.publish()
    with sparring_packed.open(training.served) as tables:
        found = tables.top_k("item", np.ones((2, 24)), 3)
        assert lists_of(found) == [[], []]
        assert tables.top_k("item", np.ones((0, 24)), 3).keys.shape == (0, 3)
        with pytest.raises(UnknownTableError, match="did you mean 'item'"):
            tables.top_k("itm", np.ones((2, 24)), 3)
        with pytest.raises(
            InvalidArgumentError, match="'item' have 24 elements, but queries have 23"
        ):
            tables.top_k("item", np.ones((2, 23)), 3)


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        ([1.0, 2.0], {}, r"must be numbers \(queries, dim\), found float64 \(2,\)"),
        ([[np.nan, 1.0]], {}, "must be finite in float32, found NaN or infinity"),
        ([[1e39, 1.0]], {}, "must be finite in float32"),
        ([["a", "b"]], {}, "found <U1"),
        ([[1.0, 2.0]], {"k": 0}, "k must be an integer of at least 1, found 0"),
        ([[1.0, 2.0]], {"k": 1.5}, r"found 1\.5"),
        ([[1.0, 2.0]], {"metric": "dt"}, "dot, cosine, l2; found 'dt'"),
        ([[1.0, 2.0]], {"exclude": ([1], [0, 2])}, "exclude must be"),
        (
            [[1.0, 2.0]],
            {"exclude": ([1], [0, 1, 1])},
            "2 non-decreasing offsets from 0 to n for 1 queries",
        ),
        ([[1.0, 2.0]], {"exclude": ([0.5], [0, 1])}, "exclude must be"),
        ([[1.0, 2.0, 3.0]], {}, "rows have 2 elements, but queries have 3"),
    ],
)
def test_invalid_arguments_are_rejected(queries: Any, options: Any, message: str) -> None:
    chunks = [(np.arange(3), np.ones((3, 2), np.float32))]
    with pytest.raises(InvalidArgumentError, match=message):
        top_k(chunks, queries, **{"k": 1, **options})


@pytest.mark.parametrize(
    ("keys", "rows"), [([1, 2], [[1.0]]), ([1], [1.0]), ([1.5], [[1.0]]), ([[1]], [[1.0]])]
)
def test_invalid_chunks_are_rejected(keys: Any, rows: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="keys and rows must be"):
        top_k([(keys, rows)], [[1.0]], 1)
