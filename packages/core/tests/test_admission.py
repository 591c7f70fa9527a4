"""Which unseen ids earn a row, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, TableConfig
from sparring.admission import (
    Admission,
    Bloom,
    Frequency,
    Probability,
    admission_from,
    make_filter,
)
from sparring.errors import InvalidArgumentError
from sparring.step import StorageChoice

EXTREMES = np.array([0, -1, -2, 2**63 - 1, -(2**63)], np.int64)


def filter_of(admission: Admission, name: str = "t") -> Any:
    return make_filter(TableConfig(name, 4, admission=admission))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_frequency_admits_in_the_kth_step_exactly(k: int) -> None:
    made = filter_of(Frequency(k))
    random = np.random.default_rng(k)
    counts: dict[int, int] = {}
    for step in range(1, 200):
        keys = np.unique(np.concatenate([random.integers(-50, 400, 60), EXTREMES]))
        keys = random.permutation(keys)
        found = made.admit(keys, step)
        for key, is_admitted in zip(keys.tolist(), found.tolist(), strict=True):
            counts[key] = counts.get(key, 0) + 1
            assert is_admitted == (counts[key] == k), key
            if is_admitted:
                del counts[key]  # it has a row, and would not be asked about again


def test_frequency_keeps_its_byte_budget_and_the_ids_that_come_again() -> None:
    budget = 1 << 16
    made = filter_of(Frequency(4, memory_bytes=budget))
    loyal = np.arange(10, dtype=np.int64) - 5
    random = np.random.default_rng(0)
    admitted_at: dict[int, int] = {}
    for step in range(1, 60):
        strangers = random.integers(10**6, 2**62, 4_000)
        keys = np.unique(np.concatenate([loyal, strangers]))
        is_admitted = made.admit(keys, step)
        for key in keys[is_admitted].tolist():
            admitted_at.setdefault(key, step)
        loyal = np.setdiff1d(loyal, keys[is_admitted])
        assert made.memory_bytes <= budget + 1024
    assert set(range(-5, 5)) >= set(admitted_at)
    assert all(step >= 4 for step in admitted_at.values())


def test_frequency_counts_on_while_it_ages() -> None:
    # Room for 3 keys: 4 slots, 3/4 of them used.
    made = filter_of(Frequency(8, memory_bytes=48))
    for step in range(1, 7):
        assert not made.admit(np.array([7]), step).any()
    for stranger in range(100, 103):
        made.admit(np.array([stranger]), 7)
    # The third stranger found no slot: counts were halved, so 7 has 3 of its 6 left.
    answers = [bool(made.admit(np.array([7]), 8)[0]) for _ in range(5)]
    assert answers == [False, False, False, False, True]


def test_probability_is_a_function_of_step_and_key() -> None:
    made = filter_of(Probability(0.3))
    keys = np.arange(-50_000, 50_000)
    first = made.admit(keys, 5)
    assert first.mean() == pytest.approx(0.3, abs=0.01)
    order = np.random.default_rng(1).permutation(len(keys))
    np.testing.assert_array_equal(filter_of(Probability(0.3)).admit(keys[order], 5), first[order])
    later = made.admit(keys, 6)
    assert (later & first).mean() == pytest.approx(0.09, abs=0.01)
    assert (filter_of(Probability(0.3), "other").admit(keys, 5) != first).mean() > 0.3
    assert filter_of(Probability(1.0)).admit(EXTREMES, 1).all()
    assert not filter_of(Probability(0.0)).admit(EXTREMES, 1).any()


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("k", [2, 4])
def test_bloom_is_never_late_and_seldom_early(rate: float, k: int) -> None:
    num_keys = 50_000
    made = filter_of(Bloom(k, rate, expected_keys=num_keys))
    assert made.memory_bytes < num_keys * {0.1: 7, 0.01: 15, 0.001: 84}[rate]
    keys = np.random.default_rng(3).integers(-(2**62), 2**62, num_keys)
    early = np.zeros(num_keys, bool)
    for step in range(1, k + 1):
        for part in np.array_split(np.arange(num_keys), 10):
            answer = made.admit(keys[part], step)
            if step == k:
                assert answer.all()
            else:
                early[part] |= answer
    assert early.mean() <= 1.1 * rate


def test_bloom_counters_saturate() -> None:
    made = filter_of(Bloom(255, 0.01, expected_keys=10))
    answers = [bool(made.admit(EXTREMES, step).all()) for step in range(1, 400)]
    assert answers.index(True) <= 254
    assert all(answers[254:])


@pytest.mark.parametrize(
    "admission",
    [Frequency(3), Bloom(3, expected_keys=1000), Probability(0.5)],
    ids=lambda a: a.kind,
)
def test_counters_survive_saving(admission: Admission) -> None:
    made, other = filter_of(admission), filter_of(admission)
    keys = np.concatenate([np.arange(500), EXTREMES[1:]])
    for step in (1, 2):
        made.admit(keys, step)
    saved = made.save()
    other.load(saved)
    assert other.save() == saved
    np.testing.assert_array_equal(other.admit(keys, 3), made.admit(keys, 3))


@pytest.mark.parametrize(
    "admission", [Frequency(3), Bloom(3, expected_keys=1000)], ids=lambda a: a.kind
)
def test_foreign_or_broken_counters_are_refused_whole(admission: Admission) -> None:
    made = filter_of(admission)
    made.admit(np.arange(100), 1)
    saved = made.save()
    broken = [
        b"",
        saved[:-1],
        saved + b"x",
        b"x" + saved[1:],
        saved[:25],
        filter_of(Probability(0.5)).save(),
        filter_of(type(admission)(4)).save(),
    ]
    if isinstance(admission, Frequency):
        header = len(b"sparring.frequency.1")
        broken.append(saved[: header + 8] + (2**60).to_bytes(8, "little") + saved[header + 16 :])
        broken.append(saved[:-4] + (9).to_bytes(4, "little"))
        twice = header + 16
        broken.append(saved[:twice] + saved[twice : twice + 8] * 100 + saved[twice + 800 :])
    else:
        broken.append(filter_of(admission, "other").save())
    for each in broken:
        with pytest.raises(InvalidArgumentError, match="nothing was changed"):
            made.load(each)
        assert made.save() == saved


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "freq", "k": 2}, "'freq' is unknown; choose one of frequency"),
        ({"kind": "frequency"}, "frequency: .*'k'"),
        ({"kind": "frequency", "k": 0}, "k must be a whole number from 1"),
        ({"kind": "frequency", "k": 2, "memory": 5}, "did you mean 'memory_bytes'"),
        ({"kind": "probability", "p": 1.5}, "p must lie from 0 to 1, found 1.5"),
        ({"kind": "bloom", "k": 300}, "from 1 to 255, found 300"),
        ({"kind": "bloom", "k": 3, "false_positive_rate": 0.0}, "at least 0.001"),
    ],
)
def test_wrong_settings_are_named(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TableConfig("t", 4, admission=value)


def test_settings_make_a_round_trip() -> None:
    for admission in (Frequency(3), Probability(0.25), Bloom(2)):
        assert admission_from(admission.as_dict()) == admission
    assert admission_from(None) is None


def test_a_step_drops_and_counts_what_is_not_admitted() -> None:
    container = StepContainer()
    table = TableConfig("t", 2, initializer="zeros", admission=Frequency(2))
    container.declare(table, StorageChoice("memory"))

    def descend(updates: Any) -> None:
        for each in updates:
            each.rows -= each.gradients

    for expected_rows, expected_dropped in ((0, 2), (1, 3), (2, 3)):
        with container.step(descend) as step:
            ids = [7, 9] if expected_rows == 0 else [7, 11]
            step.accumulate(step.lookup("t", ids), np.ones((2, 2)))
        assert container.num_rows("t") == expected_rows
        assert container.counters.gradients_not_admitted == expected_dropped
    rows = container.lookup("t", np.array([7, 9, 11]), is_registered=False).rows
    np.testing.assert_array_equal(rows[:, 0], [-2, 0, -1])
