"""Full-sort evaluation equals ranking all items of each user, one after the other."""

from __future__ import annotations

import builtins
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_train.quality import full_sort as module
from sparring_train.quality.full_sort import full_sort
from sparring_train.quality.rankings import Jagged, compute_ranking_metrics

library = pytest.importorskip("sparring_packed.library", reason="sparring-packed is not installed")
if not library.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)

NUM_USERS, NUM_ITEMS, DIM = 70, 400, 5


class Case:
    """Users and items of small whole numbers, so that products are exact and many are equal."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self.users = random.integers(-2, 3, (NUM_USERS, DIM)).astype(np.float32)
        self.keys = random.permutation(NUM_ITEMS * 3)[:NUM_ITEMS] - NUM_ITEMS
        self.items = random.integers(-2, 3, (NUM_ITEMS, DIM)).astype(np.float32)
        lists = [random.choice(self.keys, each, replace=False) for each in range(NUM_USERS)]
        # The first user has seen nothing; every fifth user has no test item.
        self.seen = [each[: len(each) // 2].tolist() for each in lists]
        self.relevant = [
            [] if user % 5 == 0 else each[len(each) // 2 :].tolist()
            for user, each in enumerate(lists)
        ]

    def by_sorting(self) -> list[list[int]]:
        ranked = []
        for user, seen in zip(self.users, self.seen, strict=True):
            order = np.lexsort((self.keys, -(self.items @ user)))
            ranked.append([key for key in self.keys[order].tolist() if key not in seen])
        return ranked


def jagged(lists: list[list[int]]) -> Jagged:
    return [item for each in lists for item in each], np.cumsum([0, *map(len, lists)])


def test_values_equal_sorting_all_items_of_each_user(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_BLOCK_USERS", 9)
    case = Case()
    found = full_sort(
        case.users,
        case.keys,
        case.items,
        relevant=jagged(case.relevant),
        seen=jagged(case.seen),
        cutoffs=(1, 10, 50),
    )
    ranked = [each[:50] for each in case.by_sorting()]
    for k in (1, 10, 50):
        expected = compute_ranking_metrics(ranked, jagged(case.relevant), k=k)
        assert astuple(found[k]) == pytest.approx(astuple(expected))
    assert (found[10].num_queries, found[10].num_left_out) == (56, 14)
    assert found[50].recall > found[10].recall > 0


def test_seen_items_take_no_place() -> None:
    items = np.array([[3.0], [2.0], [1.0]])
    asked: Any = {"relevant": ([3], [0, 1]), "cutoffs": (1, 2)}
    with_all = full_sort([[1.0]], [1, 2, 3], items, **asked)
    without = full_sort([[1.0]], [1, 2, 3], items, seen=([2, 1], [0, 2]), **asked)
    assert [with_all[k].mrr for k in (1, 2)] == [0, 0]
    assert [without[k].mrr for k in (1, 2)] == [1, 1]
    # It has fewer items than places, and none is used twice.
    assert without[2].precision == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user_vectors": [1.0]}, r"user_vectors: found \(1,\), expected \(users, dim\)"),
        ({"user_vectors": [[np.nan]]}, "found NaN or infinity"),
        ({"item_keys": [1, 1]}, "item_keys: found a key twice"),
        ({"item_vectors": [[1.0]]}, "keys and rows must be"),
        ({"relevant": ([1], [0, 1, 1])}, "relevant: expected"),
        ({"seen": ([1], [0, 2])}, "seen: expected"),
        ({"cutoffs": ()}, "cutoffs: found"),
    ],
)
def test_inputs_that_do_not_match_are_rejected(given: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {
        "user_vectors": [[1.0]],
        "item_keys": [1, 2],
        "item_vectors": [[1.0], [2.0]],
        "relevant": ([1], [0, 1]),
    }
    with pytest.raises(InvalidArgumentError, match=message):
        full_sort(**{**asked, **given})


def test_without_sparring_packed_the_install_command_is_shown(monkeypatch: Any) -> None:
    find = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "sparring_packed":
            raise ImportError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match="pip install sparring-packed"):
        full_sort([[1.0]], [1], [[1.0]], relevant=([1], [0, 1]))
