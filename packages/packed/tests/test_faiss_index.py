"""A Faiss index returns the same as `top_k`."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_packed import FaissIndex, top_k

QUERIES = np.random.default_rng(1).normal(size=(30, 24)).astype(np.float32)


@pytest.mark.parametrize("metric", ["dot", "cosine", "l2"])
def test_a_flat_index_equals_top_k(trained: Any, metric: Any) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; see nox -s engines")
    with sparring_packed.open(trained.served) as tables:
        expected = tables.top_k("item", QUERIES, 5_000, metric=metric)
        index = FaissIndex(tables.scan("item", 700), metric=metric)
    seen = expected.keys[:, 1:90:2]
    exclude = (seen.ravel(), np.arange(31) * seen.shape[1])
    for k, given in ((9, None), (9, exclude), (5_000, exclude)):
        found = index.top_k(QUERIES, k, exclude=given)
        with sparring_packed.open(trained.served) as tables:
            ours = tables.top_k("item", QUERIES, k, metric=metric, exclude=given)
        assert found.counts.tolist() == ours.counts.tolist()
        assert found.scores == pytest.approx(ours.scores, abs=1e-4)
    assert (index.top_k(QUERIES, 9).keys == expected.keys[:, :9]).mean() > 0.99


def test_an_inexact_index_finds_most_rows() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; see nox -s engines")
    rows = np.random.default_rng(0).normal(size=(3_000, 24)).astype(np.float32)
    keys = np.arange(3_000) * 7 - 1
    index = FaissIndex([(keys, rows)], factory="HNSW32", metric="l2")
    found, exact = index.top_k(QUERIES, 5), top_k([(keys, rows)], QUERIES, 5, metric="l2")
    same = [len(set(ours) & set(its)) for ours, its in zip(exact.keys, found.keys, strict=True)]
    assert np.mean(same) > 3
    assert index.top_k(np.empty((0, 24)), 5).keys.shape == (0, 5)


def test_invalid_arguments_are_rejected() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; see nox -s engines")
    chunks = [(np.arange(3), np.ones((3, 2)))]
    with pytest.raises(InvalidArgumentError, match="at least one row, found none"):
        FaissIndex([])
    with pytest.raises(InvalidArgumentError, match="cannot create an index for factory 'Flatt'"):
        FaissIndex(chunks, factory="Flatt")
    with pytest.raises(InvalidArgumentError, match="queries have 3 elements, but rows have 2"):
        FaissIndex(chunks).top_k(np.ones((1, 3)), 1)
    with pytest.raises(InvalidArgumentError, match="k must be an integer of at least 1"):
        FaissIndex(chunks).top_k(np.ones((1, 2)), 0)


def test_without_faiss_the_error_contains_the_install_command(monkeypatch: Any) -> None:
    find = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match="pip install faiss-cpu"):
        FaissIndex([(np.arange(3), np.ones((3, 2)))])
