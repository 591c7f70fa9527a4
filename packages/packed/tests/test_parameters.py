"""Named arrays are encoded as a safetensors file."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError
from sparring_packed import decode_parameters, encode_parameters

ARRAYS = {
    "flag": np.array([True, False, True]),
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(2.5),
    "big_endian": np.arange(4, dtype=">i8"),
    "empty": np.zeros((0, 4), np.float16),
}


def test_arrays_are_read_as_they_were_written() -> None:
    data = encode_parameters(ARRAYS, {"framework": "torch"})
    arrays, metadata = decode_parameters(data)
    assert metadata == {"framework": "torch"}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(arrays[name], array)
        assert (arrays[name].shape, arrays[name].dtype.name) == (array.shape, array.dtype.name)
    assert len(encode_parameters({})) == 256


def test_the_safetensors_library_reads_the_file() -> None:
    library = pytest.importorskip("safetensors.numpy", reason="reads the file")
    arrays = library.load(encode_parameters(ARRAYS))
    assert np.array_equal(arrays["weight"], ARRAYS["weight"])


def test_unsuitable_arrays_and_bytes_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="'text' has the unsupported dtype"):
        encode_parameters({"text": np.array(["a"])})
    data = encode_parameters(ARRAYS)
    for damaged in (b"", data[:7], data[:100], data[:-1]):
        with pytest.raises(ValueError, match="bytes"):
            decode_parameters(damaged)
