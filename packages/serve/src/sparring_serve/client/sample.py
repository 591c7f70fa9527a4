"""Examples that a client sends with a pull, so that servers can log the inputs of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from sparring import hash_strings
from sparring.errors import InvalidArgumentError
from sparring_serve.client.arguments import check_table_mapping, check_text
from sparring_serve.request_log import MAX_REQUEST_ID, RESERVED_NAMES
from sparring_serve.wire.messages import SampleColumn
from sparring_serve.wire.rows import as_bytes

__all__ = ["Sample", "encode_sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Examples for which rows are pulled, by column, as the caller computed them.

    A server with ``server.log`` writes a part of them to files, which `sparring skew` compares with the
    data of the training. They do not change the reply.

    Args:
        columns: ``(b,)`` values per column of the training data: integers or strings for ids, floats
            for numbers, lists for columns of lists, and None for missing values. Strings are sent as
            their ids (`sparring.hash_strings`), and floats as float32.
        request_id: Identifies the request in the training data, for example by the id of an
            impression; at most 256 characters.

    Examples:
        >>> from sparring_serve import Sample
        >>> Sample({"user": ["anna", "anna"], "item": [7, 8], "price": [3.5, 4.0]}, "page-17").request_id
        'page-17'
    """

    columns: Mapping[str, Any]
    request_id: str = ""


def encode_sample(sample: Sample) -> tuple[SampleColumn, ...]:
    """Returns the columns as messages.

    Raises:
        InvalidArgumentError: A column has values of another type or another number of values, or a name
            that the log uses; or the request id is too long.
    """
    if not isinstance(sample, Sample):
        raise InvalidArgumentError(
            f"sample: found {type(sample).__name__}, expected a sparring_serve.Sample; pass one"
        )
    if len(check_text("sample.request_id", sample.request_id)) > MAX_REQUEST_ID:
        raise InvalidArgumentError(
            f"sample: the request id has {len(sample.request_id):,} characters, expected at most "
            f"{MAX_REQUEST_ID}; shorten it"
        )
    columns = check_table_mapping("sample.columns", sample.columns, "values")
    encoded = []
    counts = {}
    for name, values in columns.items():
        if name in RESERVED_NAMES:
            raise InvalidArgumentError(
                f"sample: the column {name!r} is written by the log itself; rename it"
            )
        counts[name] = len(values)
        encoded.append(_encode_column(name, values))
    if len(set(counts.values())) > 1:
        raise InvalidArgumentError(
            f"sample: columns must have one value per example, found {counts}; add the missing ones"
        )
    return tuple(encoded)


def _encode_column(name: str, values: Any) -> SampleColumn:
    lengths: list[int] | None = None
    flat = values
    if not (isinstance(values, np.ndarray) and values.dtype.kind in "iufb"):
        flat = values.to_pylist() if hasattr(values, "to_pylist") else list(values)
        if any(each is None or _is_list(each) for each in flat):
            flat = [() if each is None else each if _is_list(each) else (each,) for each in flat]
            lengths = list(map(len, flat))
            flat = list(chain.from_iterable(flat))
    try:
        array = np.asarray(flat) if len(flat) > 0 else np.empty(0, np.int64)
        if array.dtype.kind in "USO":
            array = hash_strings(flat)
    except (ValueError, OverflowError, InvalidArgumentError) as error:
        raise InvalidArgumentError(
            f"sample: cannot convert the column {name!r} to ids or numbers: {error}; pass integers, "
            "strings or floats"
        ) from None
    if array.ndim != 1 or array.dtype.kind not in "iubf":
        raise InvalidArgumentError(
            f"sample: the column {name!r} must have one value or one list per example, found dtype "
            f"{array.dtype}, shape {array.shape}; pass integers, strings or floats"
        )
    is_number = array.dtype.kind == "f"
    content = as_bytes(array.astype(np.float32 if is_number else np.int64, copy=False))
    return SampleColumn(
        name,
        b"" if is_number else content,
        content if is_number else b"",
        b"" if lengths is None else as_bytes(np.array(lengths, np.int64)),
    )


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple, np.ndarray))
