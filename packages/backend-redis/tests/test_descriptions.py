"""Rows in Redis describe their table, and are rejected if they do not match."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig
from sparring.errors import CorruptDataError, InvalidArgumentError, VersionError
from sparring_cli.application import main
from sparring_redis.testing.server import RedisServer

TABLE = TableConfig("item", 4)
ADAGRAD = TABLE.with_state(4, "adagrad")


def filled(url: str, prefix: str) -> None:
    with open_storage("redis", ADAGRAD, url=url, prefix=prefix) as storage:
        storage.upsert([5, -1, 7], np.arange(24, dtype=np.float32).reshape(3, 8))


@pytest.mark.parametrize(
    "other",
    [
        TABLE,
        TABLE.with_state(4, "momentum"),
        TABLE.with_state(1, "rowwise_adagrad"),
    ],
    ids=lambda table: table.row_label,
)
def test_rows_written_by_other_code_are_rejected_with_a_working_command(
    redis_server: RedisServer, new_prefix: Callable[[], str], other: TableConfig
) -> None:
    prefix = new_prefix()
    filled(redis_server.url, prefix)
    with pytest.raises(InvalidArgumentError, match=r"float32 x 4 \+ 4 adagrad") as refused:
        open_storage("redis", other, host="127.0.0.1", port=redis_server.port, prefix=prefix)
    assert other.row_label in str(refused.value)
    program, *arguments = shlex.split(str(refused.value).partition("to another location: ")[2])
    assert program == "sparring"
    # sparring knows this method only by its width, so the user has to give its name.
    assert main(arguments) == 0
    with open_storage(
        "redis", other, url=redis_server.url, prefix=f"{prefix}-converted"
    ) as storage:
        assert storage.find([5, -1, 7]).found.all()
        assert other.embeddings(storage.find([7]).rows).tolist() == [[16, 17, 18, 19]]
    for same in (ADAGRAD, TABLE.with_state(4, "Adagrad"), TABLE.with_state(4)):
        with open_storage("redis", same, url=redis_server.url, prefix=prefix) as storage:
            assert storage.size == 3


@pytest.mark.parametrize(
    "other", [TableConfig("item", 8), TableConfig("item", 4, "float64")], ids=str
)
def test_rows_of_another_shape_are_rejected_naming_both(
    redis_server: RedisServer, new_prefix: Callable[[], str], other: TableConfig
) -> None:
    prefix = new_prefix()
    open_storage("redis", TABLE, url=redis_server.url, prefix=prefix).close()
    with pytest.raises(InvalidArgumentError, match=r"'float32 x 4 \+ 0', expected") as refused:
        open_storage("redis", other, url=redis_server.url, prefix=prefix)
    assert other.row_label in str(refused.value)
    with open_storage("redis", other, url=redis_server.url, prefix=new_prefix()) as storage:
        assert storage.size == 0


def test_another_number_of_buckets_is_rejected_naming_both(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    options = {"url": redis_server.url, "prefix": new_prefix()}
    with open_storage("redis", TABLE, **options, num_buckets=32) as storage:
        storage.upsert([1], np.ones((1, 4), np.float32))
    with pytest.raises(InvalidArgumentError, match="num_buckets 32, requested 64"):
        open_storage("redis", TABLE, **options, num_buckets=64)
    for same in ({}, {"num_buckets": 32}):
        with open_storage("redis", TABLE, **options, **same) as storage:
            assert storage.find([1]).found.all()


def test_ranks_that_join_at_once_agree(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    prefix = new_prefix()

    def come(num_buckets: int) -> int:
        try:
            options = {"url": redis_server.url, "prefix": prefix, "num_buckets": num_buckets}
            with open_storage("redis", TABLE, **options):
                return num_buckets
        except InvalidArgumentError:
            return 0

    with ThreadPoolExecutor(8) as threads:
        taken = set(threads.map(come, [16, 32, 64, 128] * 4)) - {0}
    assert len(taken) == 1, "the first to come decides for all"


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("no json", CorruptDataError, "not a description"),
        ("[]", CorruptDataError, "not a description"),
        ('{"format": 1}', CorruptDataError, "not a description"),
        ('{"format": 2, "rows": "float32 x 4 + 0", "num_buckets": 16}', VersionError, "format 2"),
        (
            '{"format": 1, "rows": "float32 x 4 + 0", "num_buckets": 10000}',
            CorruptDataError,
            "found 10000",
        ),
        (
            '{"format": 1, "rows": "what", "num_buckets": 16}',
            InvalidArgumentError,
            "layout 'what'",
        ),
    ],
)
def test_an_unknown_description_is_rejected(
    redis_server: RedisServer,
    new_prefix: Callable[[], str],
    text: str,
    error: type[Exception],
    said: str,
) -> None:
    prefix = new_prefix()
    redis_server.ask("SET", f"{prefix}:{{item:about}}", text)
    with pytest.raises(error, match=said):
        open_storage("redis", TABLE, url=redis_server.url, prefix=prefix)
    assert redis_server.ask("GET", f"{prefix}:{{item:about}}") == text.encode()


def test_values_that_are_not_rows_are_rejected_by_every_reader(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    options = {"url": redis_server.url, "prefix": new_prefix(), "num_buckets": 1}
    with open_storage("redis", TABLE, **options) as storage:
        storage.upsert([1, 2], np.ones((2, 4), np.float32))
        name = f"{options['prefix']}:{{item:0}}"
        key = (1).to_bytes(8, "little")
        redis_server.ask("HSET", name, key, b"short")
        with pytest.raises(CorruptDataError, match="have 16 bytes, found a value of 5"):
            storage.find([2, 1])
        with pytest.raises(CorruptDataError, match="have 16 bytes, found a value of 5"):
            list(storage.scan())
        redis_server.ask("HDEL", name, key)
        redis_server.ask("HSET", name, b"no key", bytes(16))
        with pytest.raises(CorruptDataError, match="8 bytes of a key"):
            list(storage.scan())


def test_stored_bytes_equal_the_documented_layout(
    redis_server: RedisServer, new_prefix: Callable[[], str]
) -> None:
    prefix = new_prefix()
    row = np.array([[1.5, -2, 0, 3]], np.float32)
    with open_storage(
        "redis", TABLE, url=redis_server.url, prefix=prefix, num_buckets=1
    ) as storage:
        storage.upsert([-2], row)
    found = redis_server.ask("HGETALL", f"{prefix}:{{item:0}}")
    assert found == [(-2).to_bytes(8, "little", signed=True), row.astype("<f4").tobytes()]
    names = sorted(
        name for name in redis_server.ask("KEYS", "*") if name.startswith(f"{prefix}:".encode())
    )
    assert names == [f"{prefix}:{{item:{each}}}".encode() for each in ("0", "about")]
