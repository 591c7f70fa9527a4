"""Clients accept strings as ids, and hash them like training."""

from __future__ import annotations

import numpy as np
import pytest
import typer

from sparring import hash_strings
from sparring.errors import InvalidArgumentError
from sparring_serve.cli.lookup import _id_of
from sparring_serve.client.session import _distinct

SKUS = ["SKU_1", "SKU_2", "SKU_1"]


@pytest.mark.parametrize("ids", [SKUS, tuple(SKUS), np.array(SKUS)])
def test_a_pull_of_strings_requests_their_hashes(ids: object) -> None:
    found = _distinct("item", ids)  # type: ignore[arg-type]
    assert found.keys.tolist() == hash_strings(SKUS[:2]).tolist()
    assert found.inverse is not None
    assert found.inverse.tolist() == [0, 1, 0]


def test_strings_among_numbers_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"strings\[1\] must be str or bytes, found int"):
        _distinct("item", ["SKU_1", 7])


def test_words_of_the_command_line_are_hashed() -> None:
    assert [_id_of(each) for each in ("7", "-1", str(2**63 - 1))] == [7, -1, 2**63 - 1]
    for text in ("SKU_1", "1_000", "1.5", ""):
        assert _id_of(text) == hash_strings([text])[0]
    # The same 64 bits, as in training with `data.types: unsigned`.
    assert [_id_of(str(each)) for each in (2**63, 2**64 - 1)] == [-(2**63), -1]
    for number in (2**64, -(2**63) - 1, 10**30):
        with pytest.raises(typer.BadParameter, match="does not fit into 64 bits"):
            _id_of(str(number))
