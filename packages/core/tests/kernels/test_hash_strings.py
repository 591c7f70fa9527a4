"""Ids of strings: XXH3, 64 bits, of all kinds of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from sparring import TableConfig, hash_strings, open_storage
from sparring.errors import InvalidArgumentError

VECTORS = {
    "": 3244421341483603138,
    "a": -1817709641818812897,
    "SKU_00003": -5583175331781929062,
    "user_1": 2375940910326535585,
    "ß": -469123751958447788,
    "0" * 241: 3664953170405974319,
}
"""The values of docs/reference/hash-of-strings.md."""


def reference(text: str | bytes) -> int:
    data = text.encode() if isinstance(text, str) else text
    return int(np.uint64(xxhash.xxh3_64_intdigest(data)).astype(np.int64))


@pytest.mark.parametrize("text", VECTORS)
def test_ids_equal_the_reference_page(text: str) -> None:
    assert hash_strings([text]).tolist() == [VECTORS[text]]


def test_every_length_hashes_as_the_published_library_does() -> None:
    data = bytes(i * 7 % 251 for i in range(3000))
    strings = [data[:size] for size in range(0, 3000)]
    assert hash_strings(strings).tolist() == list(map(reference, strings))


@given(st.lists(st.text() | st.binary()))
def test_any_text_hashes_as_the_published_library_does(strings: list[Any]) -> None:
    assert hash_strings(strings).tolist() == list(map(reference, strings))


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_arrow_arrays_are_read_in_place(kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="makes Arrow arrays")
    strings = [f"item {number}" * (number % 40) for number in range(20_000)]
    array = pyarrow.array(strings, getattr(pyarrow, kind)())
    want = hash_strings(strings)
    assert np.array_equal(hash_strings(array), want)
    assert np.array_equal(hash_strings(array.slice(7, 900)), want[7:907])
    chunked = pyarrow.chunked_array([array.slice(0, 5), array.slice(5)])
    assert np.array_equal(hash_strings(chunked), want)
    assert hash_strings(array.slice(3, 0)).shape == (0,)


def test_numpy_arrays_hash_as_lists_do() -> None:
    strings = ["a", "bc", "ß"]
    assert np.array_equal(hash_strings(np.array(strings)), hash_strings(strings))
    assert np.array_equal(hash_strings(np.array(strings, object)), hash_strings(strings))
    assert np.array_equal(hash_strings(np.array([b"a", b"bc"])), hash_strings(["a", "bc"]))
    assert hash_strings([]).dtype == np.int64


def test_elements_that_are_not_strings_are_rejected_by_position() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="makes Arrow arrays")
    for strings, message in (
        (["a", 7], r"strings\[1\] must be str or bytes, found int"),
        (["a", None], r"strings\[1\] must be str or bytes, found NoneType"),
        ("abc", "found one str; pass a list"),
        (["\ud800"], r"strings\[0\] cannot be .* as UTF-8"),
        (np.array([["a"]]), r"one dimension, found shape \(1, 1\)"),
        (pyarrow.array(["a", None]), r"strings\[1\] is null"),
        (pyarrow.array([1]), "found the Arrow format 'l': cast it"),
        (pyarrow.array(["a"]).dictionary_encode(), "with a dictionary"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            hash_strings(strings)


@pytest.mark.parametrize(
    "keys", [["a"], np.array(["a"]), np.array([b"a"]), np.array(["a"], object)]
)
def test_strings_as_keys_are_rejected_with_this_function(keys: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"convert strings with sparring\.hash_strings\("
    ):
        open_storage("memory", TableConfig("t", 2)).find(keys)
