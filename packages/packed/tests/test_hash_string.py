"""`sparring_hash_string` of the C library equals `sparring.hash_strings` of training."""

from __future__ import annotations

import ctypes

from sparring import hash_strings
from sparring_packed.library import library


def test_ids_of_strings_equal_training() -> None:
    function = library().sparring_hash_string
    function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_char_p, ctypes.c_size_t]
    strings = [bytes(n * 7 % 251 for n in range(size)) for size in (*range(300), 2000)]
    assert [function(each, len(each)) for each in strings] == hash_strings(strings).tolist()
    assert function(None, 0) == hash_strings([""])[0]
