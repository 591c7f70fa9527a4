"""Admission filters admit the expected ids, at the expected step."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.contracts.tables.admission import (
    Admission,
    Bloom,
    Frequency,
    Probability,
    parse_admission,
)
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels.admission_filters import make_filter

EXTREMES = np.array([0, -1, -2, 2**63 - 1, -(2**63)], np.int64)
KINDS = [
    Frequency(3, 1 << 16),
    Bloom(3, expected_keys=1000),
    Bloom(40, expected_keys=1000),
    Probability(0.5),
]


def name_of(admission: Admission) -> str:
    return f"{admission.kind}-{getattr(admission, 'k', '')}"


def filter_of(admission: Admission, name: str = "t", seed: int = 0) -> Any:
    return make_filter(admission, TableConfig(name, 4, seed=seed))


def keys_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(2**40, count, replace=False) - 2**39


# -- frequency


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(
        st.sets(st.one_of(st.integers(-3, 12), st.sampled_from(EXTREMES.tolist())), max_size=12),
        max_size=40,
    ),
)
def test_frequency_admits_in_the_kth_step_exactly(k: int, steps: list[set[int]]) -> None:
    made = filter_of(Frequency(k))
    counts: dict[int, int] = {}
    for step, batch in enumerate(steps, 1):
        keys = np.array(sorted(batch, key=hash), np.int64)
        for key, is_admitted in zip(keys.tolist(), made.admit(keys, step).tolist(), strict=True):
            counts[key] = counts.get(key, 0) + 1
            assert is_admitted == (counts[key] == k), key
            if is_admitted:
                del counts[key]  # it has a row now, so the filter is no longer called for it
    assert made.num_forgotten == 0


@pytest.mark.parametrize("k", [2, 5])
def test_frequency_is_exact_while_its_table_grows(k: int) -> None:
    made = filter_of(Frequency(k))
    sizes = []
    keys = np.concatenate([keys_of(100_000, 1), EXTREMES[3:]])
    for step in range(1, k + 1):
        for part in np.array_split(keys, 7):
            assert made.admit(part, step).all() == (step == k)
            sizes.append(made.memory_bytes)
    assert sizes[0] < sizes[6] == max(sizes) < 40 * len(keys)


def test_frequency_keeps_its_byte_budget_with_a_million_new_keys() -> None:
    budget = 1 << 16
    made = filter_of(Frequency(4, memory_bytes=budget))
    loyal = np.arange(10) - 5
    strangers = keys_of(1_000_000, 0) + 2**45
    admitted_at: dict[int, int] = {}
    for step, part in enumerate(np.array_split(strangers, 250), 1):
        keys = np.concatenate([loyal, part])
        is_admitted = made.admit(keys, step)
        admitted_at |= dict.fromkeys(keys[is_admitted].tolist(), step)
        loyal = np.setdiff1d(loyal, keys[is_admitted])
        assert made.memory_bytes <= budget
    assert not admitted_at.keys() - set(range(-5, 5)), "a stranger came once and was admitted"
    assert all(step >= 4 for step in admitted_at.values())
    # The filter keeps as many ids as fit; all others were removed, and are counted.
    room = budget // 12 // 4 * 3
    assert 1_000_000 - room <= made.num_forgotten <= 1_000_010 * 2


def full_filter(k: int, steps: int) -> tuple[Any, np.ndarray]:
    """Returns a filter with capacity for 48 keys, and 48 keys that were counted in `steps` steps."""
    made = filter_of(Frequency(k, memory_bytes=768))
    keys = np.arange(48)
    for step in range(1, steps + 1):
        made.admit(keys, step)
    assert made.num_forgotten == 0
    return made, keys


def test_frequency_halves_counts_when_it_is_full() -> None:
    made, keys = full_filter(k=8, steps=6)
    made.admit(np.array([1000]), 7)
    # No count became 0, so the new key is not counted; the others keep 3 of their 6 counts.
    assert made.num_forgotten == 1
    answers = [made.admit(keys, step) for step in range(8, 13)]
    assert [answer.all() for answer in answers] == [False, False, False, False, True]
    assert not any(answer.any() for answer in answers[:4])


def test_frequency_removes_keys_that_came_once_first() -> None:
    made, keys = full_filter(k=8, steps=1)
    made.admit(keys[:10], 2)
    made.admit(np.arange(1000, 1010), 3)
    assert made.num_forgotten == 38
    for step in range(4, 10):
        assert not made.admit(keys[:10], step).any()
    assert made.admit(keys[:10], 10).all()


def test_one_step_of_new_keys_does_not_empty_a_full_table() -> None:
    made, keys = full_filter(k=100, steps=64)
    made.admit(np.arange(1000, 3000), 65)
    assert made.num_forgotten == 2000
    for step in range(66, 66 + 67):
        assert not made.admit(keys, step).any()
    assert made.admit(keys, 200).all()


# -- probability


def test_probability_admits_its_share() -> None:
    for p in (0.01, 0.3, 0.9):
        found = filter_of(Probability(p)).admit(np.arange(-100_000, 100_000), 5)
        assert found.mean() == pytest.approx(p, abs=5 * (p * (1 - p) / 200_000) ** 0.5)
    assert filter_of(Probability(1.0)).admit(EXTREMES, 1).all()
    assert not filter_of(Probability(0.0)).admit(EXTREMES, 1).any()


def test_probability_is_a_function_of_table_step_and_key() -> None:
    made = filter_of(Probability(0.3))
    keys = np.arange(-50_000, 50_000)
    first = made.admit(keys, 5)
    order = np.random.default_rng(1).permutation(len(keys))
    np.testing.assert_array_equal(filter_of(Probability(0.3)).admit(keys[order], 5), first[order])
    np.testing.assert_array_equal(made.admit(keys, 5), first)
    others = (
        made.admit(keys, 6),
        made.admit(keys, 5 + 2**32),
        filter_of(Probability(0.3), "other").admit(keys, 5),
        filter_of(Probability(0.3), seed=1).admit(keys, 5),
    )
    for other in others:
        assert (other & first).mean() == pytest.approx(0.09, abs=0.005)
    assert made.memory_bytes == 0


def test_the_answers_of_probability_are_part_of_the_format() -> None:
    made = filter_of(Probability(0.5), "item", seed=42)
    keys = np.concatenate([EXTREMES, np.arange(1, 12)])
    answers = "".join(map(str, made.admit(keys, 7).astype(int)))
    assert answers == "0000001111011100"


# -- bloom


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("k", [2, 4, 20])
@pytest.mark.parametrize("has_budget", [False, True])
def test_bloom_admits_never_late_and_rarely_early(rate: float, k: int, has_budget: bool) -> None:
    num_keys = 100_000
    made = filter_of(Bloom(k, rate, expected_keys=num_keys))
    assert made.memory_bytes < num_keys * {0.1: 2.5, 0.01: 5.5, 0.001: 9.6}[rate] * (1 + (k > 16))
    if has_budget:
        budget = made.memory_bytes + 63
        made = filter_of(Bloom(k, rate, memory_bytes=budget))
        assert budget - 63 <= made.memory_bytes <= budget
    keys = keys_of(num_keys, k)
    early = np.zeros(num_keys, bool)
    for step in range(1, k + 1):
        for part in np.array_split(np.arange(num_keys), 10):
            answer = made.admit(keys[part], step)
            if step == k:
                assert answer.all(), "late"
            else:
                early[part] |= answer
    # Five standard deviations of the binomial distribution.
    assert early.sum() <= num_keys * rate + 5 * (num_keys * rate) ** 0.5


def test_bloom_keeps_its_rate_for_a_key_that_comes_last() -> None:
    """The rate is measured with keys that are decided after all others were counted."""
    num_keys, rate = 50_000, 0.01
    made = filter_of(Bloom(3, rate, expected_keys=num_keys))
    for step in (1, 2):
        made.admit(keys_of(num_keys, 5), step)
    strangers = np.arange(2**50, 2**50 + 200_000)
    early = made.decide(strangers, 3).mean()
    assert early <= rate * 1.05
    assert early >= rate / 4, "the filter is far larger than it need be"


@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 255, 256])
def test_bloom_counts_to_every_k(k: int) -> None:
    made = filter_of(Bloom(k, 0.0001, expected_keys=1000))
    answers = [bool(made.admit(EXTREMES, step).all()) for step in range(1, 300)]
    assert answers == [step >= k for step in range(1, 300)]
    assert (made.memory_bytes == 0) == (k == 1)


def test_bloom_counters_that_all_keys_share_saturate() -> None:
    for k in (16, 256):
        made = filter_of(Bloom(k, 0.5, expected_keys=1))
        for step in range(1, 300):
            made.admit(np.arange(2000), step)
        assert made.admit(np.arange(10_000, 10_100), 300).all()


# -- all of them


@pytest.mark.parametrize("admission", KINDS, ids=name_of)
def test_deciding_counts_nothing_and_recording_does(admission: Admission) -> None:
    once, twice = filter_of(admission), filter_of(admission)
    keys = np.concatenate([np.arange(500), EXTREMES[1:]])
    for step in range(1, 5):
        for _ in range(3):
            answers = twice.decide(keys, step)
        twice.record(keys, answers)
        np.testing.assert_array_equal(once.admit(keys, step), answers)
        assert once.save() == twice.save()


@pytest.mark.parametrize("admission", KINDS, ids=name_of)
def test_counters_survive_saving(admission: Admission) -> None:
    made, other = filter_of(admission), filter_of(admission)
    keys = np.concatenate([np.arange(500), EXTREMES[1:]])
    for step in (1, 2):
        made.admit(keys, step)
    saved = made.save()
    other.admit(np.arange(-300, 700), 1)  # loading replaces the content
    other.load(saved)
    assert other.save() == saved
    np.testing.assert_array_equal(other.admit(keys, 3), made.admit(keys, 3))


def test_forgotten_keys_survive_saving() -> None:
    made, _ = full_filter(k=3, steps=1)
    made.admit(np.arange(1000, 1100), 2)
    other = filter_of(Frequency(3, memory_bytes=768))
    other.load(made.save())
    assert other.num_forgotten == made.num_forgotten > 0


@pytest.mark.parametrize("admission", KINDS, ids=name_of)
def test_foreign_or_broken_counters_are_rejected_as_a_whole(admission: Admission) -> None:
    made = filter_of(admission)
    made.admit(np.arange(100), 1)
    saved = made.save()
    flipped = bytearray(saved)
    flipped[len(saved) // 2] ^= 16
    foreign = [Frequency(9), Bloom(9), Bloom(3, expected_keys=500), Probability(0.25)]
    broken = [b"", saved[:-1], saved[:-8], saved[:12], saved + b"x", saved + bytes(8)]
    broken += [b"x" + saved[1:], bytes(flipped), *(filter_of(each).save() for each in foreign)]
    if not isinstance(admission, Frequency):
        broken.append(filter_of(admission, "other").save())
    for each in broken:
        with pytest.raises(InvalidArgumentError, match="nothing was changed"):
            made.load(each)
        assert made.save() == saved


def test_more_counters_than_the_budget_are_rejected() -> None:
    large, small = filter_of(Frequency(3)), filter_of(Frequency(3, memory_bytes=768))
    large.admit(np.arange(49), 1)
    with pytest.raises(InvalidArgumentError, match=r"49 keys, .*memory_bytes has"):
        small.load(large.save())
    large.load(filter_of(Frequency(3)).save())
    large.admit(np.arange(48), 1)
    small.load(large.save())
    assert small.memory_bytes <= 768


@pytest.mark.parametrize("admission", KINDS, ids=name_of)
def test_threads_may_share_a_filter(admission: Admission) -> None:
    if isinstance(admission, Frequency):
        admission = Frequency(3)  # with enough capacity for all keys
    made = filter_of(admission)
    parts = np.array_split(keys_of(8000, 2), 4)

    def run(part: np.ndarray) -> None:
        for step in range(1, 6):
            made.admit(part, step)
            made.save()

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if isinstance(admission, Frequency):
        # Step 3 admitted all keys; steps 4 and 5 count from the start.
        assert made.decide(np.concatenate(parts), 6).all()


def test_keys_of_another_shape_or_dtype_are_rejected() -> None:
    made = filter_of(Frequency(2))
    for keys in (np.zeros((2, 2), np.int64), np.zeros(2, np.int32), np.zeros(4, np.int64)[::2]):
        with pytest.raises(InvalidArgumentError, match="keys"):
            made.admit(keys, 1)
    with pytest.raises(InvalidArgumentError, match="is_admitted"):
        made.record(np.arange(3), np.zeros(2, bool))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "freq", "k": 2}, "'freq' is unknown; choose one of frequency"),
        ({"k": 2}, "None is unknown; choose one of frequency, probability, bloom"),
        ({"kind": "frequency"}, "frequency: parameter 'k' is missing"),
        ("probability", "probability: parameter 'p' is missing"),
        (3, "must be an Admission, a mapping with 'kind', or None, found 3"),
        ({"kind": "frequency", "k": 0}, "k must be a whole number from 1"),
        ({"kind": "frequency", "k": True}, "k must be a whole number from 1 .* found True"),
        ({"kind": "frequency", "k": 2.0}, "k must be a whole number from 1 .* found 2.0"),
        ({"kind": "frequency", "k": 2, "memory": 5}, "did you mean 'memory_bytes'"),
        ({"kind": "frequency", "k": 2, "memory_bytes": 100}, "from 768"),
        ({"kind": "probability", "p": 1.5}, "p must be a finite number from 0 to 1, found 1.5"),
        (
            {"kind": "probability", "p": float("nan")},
            "p must be a finite number from 0 to 1, found nan",
        ),
        (
            {"kind": "probability", "p": "half"},
            "p must be a finite number from 0 to 1, found 'half'",
        ),
        ({"kind": "bloom", "k": 300}, "from 1 to 256, found 300"),
        ({"kind": "bloom", "k": 3, "false_positive_rate": 0.0}, "at least 1e-09 and below 1"),
        ({"kind": "bloom", "k": 3, "false_positive_rate": 1}, "at least 1e-09 and below 1"),
        ({"kind": "bloom", "k": 3, "memory_bytes": 10}, "memory_bytes must be .* from 128"),
        ({"kind": "bloom", "k": 3, "expected_keys": 0}, "expected_keys must be .* from 1"),
        (
            {"kind": "bloom", "k": 3, "expected_keys": 9, "memory_bytes": 999},
            "give only one of them",
        ),
    ],
)
def test_messages_name_the_invalid_setting(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        TableConfig("t", 4, admission=value)


def test_settings_make_a_round_trip() -> None:
    for admission in (*KINDS, Bloom(2), Bloom(2, memory_bytes=4096)):
        assert parse_admission(admission.as_dict()) == admission
        assert TableConfig("t", 4, admission=admission.as_dict()).admission == admission
    assert parse_admission(None) is None
    assert make_filter(None, TableConfig("t", 4)) is None
    assert Frequency(np.int64(3)) == Frequency(3)  # type: ignore[arg-type]


def test_admission_is_part_of_a_table() -> None:
    table = TableConfig("t", 4, admission=Frequency(3))
    assert table != TableConfig("t", 4)
    assert table.with_state(2).admission == Frequency(3)
