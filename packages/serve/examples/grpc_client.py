"""Looks up rows in a lookup service with only grpcio, and a few bytes of protobuf.

    python grpc_client.py 127.0.0.1:7433 item 7 -1

The environment variable TOKEN is sent as the token. Prints one line of JSON. A program with more
methods should generate its messages from lookup.proto with grpcio-tools.
"""

from __future__ import annotations

import json
import os
import struct
import sys

import grpc

NUM_PARTITIONS = 4096
DEADLINE_SECONDS = 5.0
_MASK = (1 << 64) - 1

Fields = dict[int, list[int | bytes]]


def partition_of(key: int) -> int:
    """Returns the partition of an id."""
    bits = key & _MASK
    bits = (bits ^ bits >> 33) * 0xFF51AFD7ED558CCD & _MASK
    bits = (bits ^ bits >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return (bits ^ bits >> 33) >> 52


def shard_of(key: int, num_shards: int) -> int:
    """Returns the shard that has the row of an id."""
    return partition_of(key) * num_shards // NUM_PARTITIONS


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    """Encodes a field of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def pull_request(table: str, ids: list[int]) -> bytes:
    """Encodes a PullRequest with one table; ids are int64, little-endian."""
    table_ids = field(1, table.encode()) + field(2, struct.pack(f"<{len(ids)}q", *ids))
    return field(1, table_ids)


def get_fields(message: bytes) -> Fields:
    """Decodes a message: field number → values, ints for varints and bytes for all others."""
    fields: Fields = {}
    at = 0

    def read_varint() -> int:
        nonlocal at
        value, place = 0, 0
        while True:
            byte = message[at]
            at, value, place = at + 1, value | (byte & 0x7F) << place, place + 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = read_varint()
        value: int | bytes
        if key & 7 == 0:
            value = read_varint()
        else:
            length = {1: 8, 2: -1, 5: 4}[key & 7]
            length = read_varint() if length < 0 else length
            value, at = message[at : at + length], at + length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def pull_rows(
    address: str, table: str, ids: list[int]
) -> tuple[list[list[float]], list[bool], str]:
    """Returns the rows of ids of one shard, whether they were found, and their version."""
    token = os.environ.get("TOKEN")
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(address) as channel:
        pull = channel.unary_unary("/sparring.serving.v1.Lookup/Pull")
        try:
            reply = pull(pull_request(table, ids), timeout=DEADLINE_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            sys.exit(f"status {error.code().value[0]}: {error.details()}")
    answer = get_fields(reply)
    rows, version = get_fields(answer[1][0]), get_fields(answer[2][0])
    dim, content, bits = rows[2][0], rows[3][0], rows[4][0]
    rows_of_ids = [
        list(struct.unpack_from(f"<{dim}f", content, 4 * dim * place)) for place in range(len(ids))
    ]
    found = [bool(bits[place >> 3] >> (place & 7) & 1) for place in range(len(ids))]
    return rows_of_ids, found, version[3][0].decode()


def main(servers: str, table: str, *given: str) -> None:
    ids, addresses = [int(each) for each in given], servers.split(",")
    shards = [shard_of(each, len(addresses)) for each in ids]
    rows: list[list[float]] = [[] for _ in ids]
    found, versions = [False for _ in ids], set()
    for shard, address in enumerate(addresses):
        places = [place for place, each in enumerate(shards) if each == shard]
        if places:
            answer = pull_rows(address, table, [ids[place] for place in places])
            for place, row, is_found in zip(places, answer[0], answer[1], strict=True):
                rows[place], found[place] = row, is_found
            versions.add(answer[2])
    partitions = [partition_of(each) for each in ids]
    print(
        json.dumps(
            {
                "rows": rows,
                "found": found,
                "versions": sorted(versions),
                "partitions": partitions,
                "shards": shards,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
