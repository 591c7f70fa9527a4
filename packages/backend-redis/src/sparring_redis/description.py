"""Description of a table in Redis. The first rank that opens the table writes it."""

from __future__ import annotations

import json
import shlex
from typing import Any

from redis.crc import key_slot

from sparring.contracts import CONVERT_HELP, TableConfig, format_conversion_command
from sparring.errors import CorruptDataError, InvalidArgumentError, VersionError
from sparring_redis.connections.client import Client, Command
from sparring_redis.connections.connection import encode_command
from sparring_redis.connections.deadline import Deadline
from sparring_redis.options import RedisOptions

__all__ = ["FORMAT", "agree_on_buckets", "description_slot", "find_row_label"]

FORMAT = 1
"""Version of the format in `sparring_redis.layout`."""

DEFAULT_BUCKETS = 256

_URL_OPTIONS = {
    *("url", "host", "port", "unix_socket", "mode", "service", "database", "tls"),
    "num_buckets",  # the converted table gets the default
}


def agree_on_buckets(
    client: Client, table: TableConfig, options: RedisOptions, deadline: Deadline
) -> int:
    """Creates the table if it does not exist, and checks that it matches the configuration.

    If several ranks open the table at the same time, one creates it and the others find it.

    Args:
        client: the client to use.
        table: requested configuration.
        options: `prefix` and `num_buckets`. If `num_buckets` is None, the stored number is used.
        deadline: deadline of all requests.

    Returns:
        The number of buckets of the table.

    Raises:
        InvalidArgumentError: the stored rows or the number of buckets differ from the request.
        VersionError: another version of this package created the table.
        CorruptDataError: the stored description is invalid.
        DeadlineError, StorageIOError: Redis failed.
    """
    num_buckets = options.num_buckets
    name = _name(table, options)
    asked = {
        "format": FORMAT,
        "table": table.name,
        "rows": table.row_label,
        "num_buckets": num_buckets or DEFAULT_BUCKETS,
    }
    slot = description_slot(table, options)

    def run(*words: Any, is_write: bool) -> Any:
        command = Command(slot, encode_command(words))
        return client.run([command], "opening", is_write=is_write, deadline=deadline)[0]

    data = run("GET", name, is_write=False)
    if data is None:
        run("SET", name, json.dumps(asked), "NX", is_write=True)
        data = run("GET", name, is_write=False)
    place = f"{client.topology.place}, name {name}"
    try:
        return _check_description(data, table, num_buckets, place)
    except InvalidArgumentError as error:
        found = error.details.pop("found_table", None)
        if not isinstance(found, TableConfig):
            raise
        # Only this backend knows that the rows can be converted into another prefix.
        text = str(error).replace(CONVERT_HELP, _conversion_command(found, table, options))
        raise InvalidArgumentError(text, **error.details) from error


def find_row_label(
    client: Client, table: TableConfig, options: RedisOptions, deadline: Deadline
) -> str | None:
    """Returns the label of a table's rows, or None if it does not exist or is unreadable.

    Raises:
        DeadlineError, StorageIOError: Redis failed.
    """
    name = _name(table, options)
    command = Command(description_slot(table, options), encode_command(["GET", name]))
    found = client.run([command], "opening", is_write=False, deadline=deadline)[0]
    try:
        label = json.loads(found or b"")["rows"]
    except (ValueError, KeyError, TypeError):
        # `agree_on_buckets` raises an error about it when the table is opened.
        return None
    return str(label)


def description_slot(table: TableConfig, options: RedisOptions) -> int:
    """Returns the cluster slot of a table's description."""
    return key_slot(_name(table, options).encode())


def _name(table: TableConfig, options: RedisOptions) -> str:
    return f"{options.prefix}:{{{table.name}:about}}"


def _conversion_command(found: TableConfig, asked: TableConfig, options: RedisOptions) -> str:
    """Returns the command that converts the rows of `found` to `asked` under another prefix."""
    # The URL contains all numeric options, because command lines pass strings and the options are strict.
    stated = options.model_dump(mode="json", exclude_unset=True, exclude=_URL_OPTIONS)
    given = {"url": options.place().url} | stated | {"prefix": options.prefix}
    command = format_conversion_command("redis", {}, found, asked)
    words = command.removesuffix(" --to-option PLACE=ELSEWHERE").split(" ")
    for name, value in given.items():
        words += ["--from-option", shlex.quote(f"{name}={value}")]
    for name, value in (given | {"prefix": f"{options.prefix}-converted"}).items():
        words += ["--to-option", shlex.quote(f"{name}={value}")]
    return " ".join(words)


def _check_description(
    data: bytes | None, table: TableConfig, num_buckets: int | None, place: str
) -> int:
    try:
        found = json.loads(data or b"")
        version, rows, buckets = found["format"], found["rows"], found["num_buckets"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            f"{place}: not a description of a table ({error!r}); choose another prefix, or remove "
            "the stored data",
            table=table.name,
        ) from None
    if version != FORMAT:
        raise VersionError(
            f"{place}: the table has format {version}, but this sparring-redis requires format "
            f"{FORMAT}; install the sparring-redis that created it, or choose another prefix"
        )
    table.check_row_label(str(rows), place)
    is_legal = isinstance(buckets, int) and 1 <= buckets <= 4096 and not buckets & (buckets - 1)
    if not is_legal:
        raise CorruptDataError(
            f"{place}: num_buckets must be a power of two up to 4096, found {buckets!r}; load the "
            "table from a snapshot under another prefix",
            table=table.name,
        )
    if num_buckets not in (None, buckets):
        raise InvalidArgumentError(
            f"{place}: the table was created with num_buckets {buckets}, requested {num_buckets}; "
            "remove the option, or choose another prefix",
            table=table.name,
        )
    return int(buckets)
