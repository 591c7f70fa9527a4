"""Written messages are read, and other bytes are a message or raise `MessageError`."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring_serve.wire import messages, open_inference
from sparring_serve.wire.fields import MAX_BYTES, MessageError, decode, encode
from sparring_serve.wire.messages import (
    PullReply,
    PullRequest,
    RowDtype,
    TableIds,
    TableRows,
    VersionMessage,
)
from sparring_serve.wire.open_inference import InferRequest, InferTensor, TensorContents
from sparring_serve.wire.pull_reply import ReplyInPlace
from sparring_serve.wire.rows import (
    as_bytes,
    encode_rows,
    pack_found,
    read_found,
    read_ids,
    read_rows,
    row_bytes,
)

MESSAGES = sorted(
    {
        each
        for module in (messages, open_inference)
        for each in vars(module).values()
        if dataclasses.is_dataclass(each) and isinstance(each, type)
    },
    key=lambda each: each.__name__,
)


def value_of(kind: Any, depth: int) -> st.SearchStrategy[Any]:
    one = {
        "text": st.text(max_size=20),
        "data": st.binary(max_size=40),
        "number": st.integers(-(2**63), 2**63 - 1),
        "real": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "message": st.deferred(lambda: built(kind.message, depth + 1)),
    }[kind.form]
    return st.lists(one, max_size=4).map(tuple) if kind.is_repeated else one


def built(message: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    fields = dataclasses.fields(message)
    return st.builds(
        message, **{each.name: value_of(each.metadata["kind"], depth) for each in fields}
    )


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_a_message_is_read_as_written(message: Any) -> None:
    @given(built(message))
    @settings(max_examples=25)
    def check(value: Any) -> None:
        assert decode(message, encode(value)) == value

    check()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_a_message_or_rejected(content: bytes) -> None:
    for message in MESSAGES:
        with contextlib.suppress(MessageError):
            assert isinstance(decode(message, content), message)


def test_damaged_messages_are_a_message_or_rejected() -> None:
    dice = random.Random(7)
    whole = encode(
        InferRequest(
            model_name="item",
            inputs=(InferTensor("ids", "INT64", (3,), TensorContents((1, -2, 3))),),
            raw_input_contents=(b"12345678",),
        )
    ) + encode(PullRequest((TableIds("item", b"12345678" * 4),), 1, 2, "abc", 3.5))
    refused = 0
    for _ in range(20_000):
        content = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(content))
            change = dice.randrange(3)
            if change == 0:
                content[at] = dice.randrange(256)
            elif change == 1:
                del content[at : at + dice.randint(1, 8)]
            else:
                content[at:at] = dice.randbytes(dice.randint(1, 8))
        for message in (InferRequest, PullRequest, PullReply):
            try:
                decode(message, bytes(content))
            except MessageError:
                refused += 1
    assert refused > 1000


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05ab",  # shorter than its length
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a length of 2**64 - 1
        b"\x08" + b"\xff" * 11,  # a number without an end
        b"\x0b\x0c",  # a group, which does not exist in proto3
        b"\x02\x00",  # a field of the number 0
        b"\x22\x02\xff\xff",  # a text that is not UTF-8
        b"\x21" + bytes(8),  # a text of another wire type
        b"\x22\x81\x20" + b"a" * 4097,  # a text that is too long
        b"\x0a\x00" * 8193,  # too many items
        b"\x78\x00" * 8193,  # too many unknown fields
    ],
)
def test_bytes_beyond_the_limits_are_rejected(content: bytes) -> None:
    with pytest.raises(MessageError, match="invalid PullRequest: "):
        decode(PullRequest, content)


def test_a_message_over_the_size_limit_is_rejected_before_it_is_read() -> None:
    with pytest.raises(MessageError, match="more than 67,108,864"):
        decode(PullRequest, bytes(MAX_BYTES + 1))


def test_unknown_fields_are_skipped() -> None:
    known = VersionMessage("run", 7, "abc")
    unknown = b"\xf8\x07\x05" + b"\xf9\x07" + bytes(8) + b"\xfa\x07\x02ab" + b"\xfd\x07" + bytes(4)
    assert decode(VersionMessage, unknown + encode(known) + unknown) == known


def test_unpacked_numbers_are_also_read() -> None:
    assert decode(TensorContents, b"\x18\x05\x1a\x02\x06\x07\x18\x08").int64_contents == (
        5,
        6,
        7,
        8,
    )


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_found_bits_are_read_as_written(count: int) -> None:
    found = np.random.default_rng(1).random(count) < 0.5
    content = pack_found(found)
    assert len(content) == -(-count // 8)
    assert np.array_equal(read_found(content, count), found)
    with pytest.raises(MessageError, match="expected"):
        read_found(content + b"a", count)


def test_the_first_id_has_the_lowest_bit() -> None:
    assert pack_found(np.array([True, False, False, True])) == b"\x09"


def test_ids_are_whole_int64() -> None:
    ids = np.array([7, -1, -(2**63), 2**63 - 1], np.int64)
    assert np.array_equal(read_ids(as_bytes(ids)), ids)
    with pytest.raises(MessageError, match="8 bytes per id"):
        read_ids(b"1234567")


@pytest.mark.parametrize("dtype", list(RowDtype))
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (5, 3), (300, 64)])
def test_rows_have_the_precision_of_their_dtype(dtype: RowDtype, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    content = encode_rows(rows, dtype)
    assert len(content) == shape[0] * row_bytes(shape[1], dtype)
    out = np.full(shape, np.nan, np.float32)
    read_rows(content, shape[1], dtype, out)
    if dtype is RowDtype.FLOAT32:
        assert np.array_equal(out, rows)
    elif rows.size:
        reach = rows.max(axis=1) - rows.min(axis=1) + np.abs(rows).max(axis=1) / 100
        most = reach / 250 if dtype is RowDtype.INT8 else np.abs(rows).max(axis=1) / 1000
        assert (np.abs(out - rows).max(axis=1) <= most).all()
    with pytest.raises(MessageError, match="expected"):
        read_rows(bytes(content) + b"a", shape[1], dtype, out)


@pytest.mark.parametrize("shape", [(2_500, 64), (3, 70_000)])
def test_int8_rows_are_rounded_once(shape: tuple[int, int]) -> None:
    count, dim = shape
    rows = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    content = encode_rows(rows, RowDtype.INT8)
    out = np.full(shape, np.nan, np.float32)
    read_rows(content, dim, RowDtype.INT8, out)
    packed = np.frombuffer(content, np.uint8).reshape(count, dim + 4)
    affine = packed[:, dim:].copy().view(np.float16).astype(np.float64)
    exact = packed[:, :dim] * affine[:, :1] + affine[:, 1:]
    assert np.array_equal(out, exact.astype(np.float32))


def test_rows_of_one_value_keep_it_as_int8() -> None:
    rows = np.array([[0.5, 0.5], [0, 0], [-2, -2]], np.float32)
    out = np.empty_like(rows)
    read_rows(encode_rows(rows, RowDtype.INT8), 2, RowDtype.INT8, out)
    assert np.array_equal(out, rows)


@pytest.mark.parametrize("length", range(1, 70, 3))
def test_rows_that_are_read_into_a_reply_begin_at_a_cache_line(length: int) -> None:
    reply = ReplyInPlace([("i" * length, 2, 3), ("u", 1, 0)], RowDtype.FLOAT32)
    first, second = reply.reserve_rows()
    assert first.ctypes.data % 64 == 0
    first[:], expected = [[1, 2], [3, 4], [5, 6]], np.arange(1, 7, dtype=np.float32).tobytes()
    del first, second
    rest = PullReply(newest="n" * 600)  # longer than expected
    found = decode(PullReply, reply.finish([np.array([1, 0, 1], bool), np.array([], bool)], rest))
    item = TableRows("i" * length, 2, expected, b"\5")
    assert replace(found, padding=b"") == replace(rest, tables=(item, TableRows("u", 1)))
