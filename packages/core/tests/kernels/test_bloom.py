"""Bloom filters: no false negatives, few false positives, and the same bits on every platform."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from sparring import _native
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring.kernels.bloom import BloomFilter, GrowingBloomFilter

from .test_initializers import mix64

KEYS = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 400_000, np.int64)
MEMBERS, OTHERS = KEYS[:100_000], KEYS[100_000:]
EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63)], np.int64)


def filled(rate: float = 0.01, keys: np.ndarray = MEMBERS, seed: int = 0) -> BloomFilter:
    made = BloomFilter(len(MEMBERS), false_positive_rate=rate, seed=seed)
    made.add(keys)
    return made


def test_every_member_is_contained() -> None:
    made = filled()
    made.add(EXTREMES)
    assert made.contains(MEMBERS).all()
    assert made.contains(EXTREMES).all()
    assert made.num_added == len(MEMBERS) + len(EXTREMES)


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001, 1e-4])
def test_false_positives_stay_within_the_rate(rate: float) -> None:
    made = filled(rate)
    found = float(made.contains(OTHERS).mean())
    # Four standard deviations of the sample: one in 30,000 seeds fails by chance.
    assert found <= rate + 4 * np.sqrt(rate / len(OTHERS))
    assert found >= rate / 2, "the filter is larger than it need be"


@pytest.mark.parametrize("pattern", ["ascending", "multiples of 4,096", "high bits only"])
def test_false_positives_of_regular_keys_stay_within_the_rate(pattern: str) -> None:
    numbers = np.arange(400_000, dtype=np.int64)
    factor = {"ascending": 1, "multiples of 4,096": 4_096, "high bits only": 1 << 44}[pattern]
    keys = numbers * np.int64(factor)
    made = filled(0.01, keys[:100_000])
    assert made.contains(keys[:100_000]).all()
    assert made.contains(keys[100_000:]).mean() <= 0.0107


def test_memory_matches_the_rate() -> None:
    assert 9 < 8 * filled(0.01).memory_bytes / len(MEMBERS) < 11
    assert filled(0.001).memory_bytes < 2 * filled(0.01).memory_bytes


def test_all_instruction_sets_give_the_same_bits() -> None:
    before = kernels.simd_level()
    saved, answers = set(), set()
    try:
        for level in _native.simd_levels():
            kernels.set_simd_level(level)
            made = filled()
            saved.add(made.to_bytes())
            answers.add(made.contains(OTHERS).tobytes())
    finally:
        kernels.set_simd_level(before)
    assert len(saved) == len(answers) == 1


def test_bytes_are_laid_out_as_documented() -> None:
    made = BloomFilter(100, seed=7)
    made.add(np.array([42, -1], np.int64))
    saved = made.to_bytes()
    magic, version, kind, words, seed, blocks, planned, added, rate = struct.unpack(
        "<8sIIQQQQQd", saved[:64]
    )
    assert (magic, version, kind, words, seed) == (b"SPRBLOOM", 1, 4, 8, 7)
    assert (planned, added, rate) == (100, 2, 0.01)
    assert len(saved) == 64 + 64 * blocks + 8
    table = np.frombuffer(saved[64:-8], np.uint64).reshape(blocks, 8)
    expected = np.zeros_like(table)
    for key in (42, -1):
        first = mix64((key % 2**64) ^ 7)
        places = mix64((first + 0x9E3779B97F4A7C15) % 2**64)
        for word in range(8):
            bit = np.uint64(1 << (places >> 6 * word & 63))
            expected[first * blocks >> 64, word] |= bit
    assert np.array_equal(table, expected)


def test_saved_filter_continues_like_the_original() -> None:
    made = filled(seed=3)
    loaded = BloomFilter.from_bytes(made.to_bytes())
    assert np.array_equal(loaded.contains(OTHERS), made.contains(OTHERS))
    loaded.add(OTHERS[:1_000])
    made.add(OTHERS[:1_000])
    assert loaded.to_bytes() == made.to_bytes()
    assert loaded.planned_keys == len(MEMBERS)


def test_damaged_bytes_are_rejected() -> None:
    saved = BloomFilter(50).to_bytes()
    for place in range(0, len(saved), 3):
        broken = bytearray(saved)
        broken[place] ^= 1
        with pytest.raises(InvalidArgumentError):
            BloomFilter.from_bytes(bytes(broken))
    for wrong in (b"", saved[:-1], saved + b"\0" * 8, b"SPRADMIT" + saved[8:]):
        with pytest.raises(InvalidArgumentError):
            BloomFilter.from_bytes(wrong)


@pytest.mark.parametrize(("planned", "rate"), [(0, 0.01), (-1, 0.01), (10, 0.0), (10, 0.7)])
def test_invalid_filter_sizes_are_rejected(planned: int, rate: float) -> None:
    with pytest.raises(InvalidArgumentError):
        BloomFilter(planned, false_positive_rate=rate)


def test_growing_filter_keeps_its_rate_beyond_its_planned_keys() -> None:
    growing = GrowingBloomFilter(1_000, false_positive_rate=0.01)
    for part in np.array_split(MEMBERS, 50):
        growing.add(part)
    assert growing.contains(MEMBERS).all()
    assert growing.contains(OTHERS).mean() <= 0.0107
    memory_bytes = growing.memory_bytes
    growing.add(MEMBERS[:50_000])
    assert growing.memory_bytes == memory_bytes, "known keys used space"
    growing.clear()
    assert not growing.contains(MEMBERS).any()
