"""The native server gives the same replies, messages and metrics as the server in Python."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.testing.front_ends import (
    Folder,
    FrontEnd,
    Reply,
    call,
    open_front_end,
    pull,
    read_metrics,
)
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import (
    SERVICE,
    DescribeReply,
    Missing,
    PullReply,
    PullRequest,
    ReadModelRequest,
    RecommendRequest,
    RowDtype,
    ScanReply,
    ScanRequest,
    TableIds,
)
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthRequest,
    InferParameter,
    InferParameterEntry,
    InferRequest,
    InferTensor,
    ModelRequest,
    RequestedOutput,
    TensorContents,
)

pytestmark = pytest.mark.skipif(
    not EXECUTABLE.exists(),
    reason="the native server was not built: install libgrpc++-dev and pkg-config",
)


def infer(**fields: Any) -> InferRequest:
    whole = {
        "model_name": "item",
        "inputs": (InferTensor("ids", "INT64", (1,)),),
        "raw_input_contents": (bytes(8),),
    }
    return InferRequest(**{**whole, **fields})


def with_parameter(key: str, **value: Any) -> tuple[InferParameterEntry, ...]:
    return (InferParameterEntry(key, InferParameter(**value)),)


MIXED = [7, -1, 7, 99, 100, 2**63 - 1, -(2**63), 0]
AXES = np.eye(4, dtype=np.float32)[1:3]
REQUESTS: list[tuple[str, Any]] = [
    *(
        (f"{SERVICE}/Pull", pull(("item", MIXED), ("user", [5, 500]), row_dtype=dtype, missing=way))
        for dtype in RowDtype
        for way in Missing
    ),
    (f"{SERVICE}/Pull", pull(("item", MIXED), row_dtype=2, missing=2)),
    (f"{SERVICE}/Pull", pull()),
    (f"{SERVICE}/Pull", pull(("item", []), ("user", [1]))),
    (f"{SERVICE}/Pull", pull(("item", range(-5000, 6000)))),
    (f"{SERVICE}/Pull", encode(pull(("item", [3]))) + b"\x7a\x03new"),
    *(
        (f"{SERVICE}/Pull", encode(pull(("item", [3]))) + fields)
        for fields in (
            b"\x3a\x02\xff\xff",  # a request_id that is not UTF-8
            b"\x3a\x81\x20" + b"i" * 4097,  # one that is too long
            b"\x38\x01",  # one that is a number
            b"\x42\x04\x0a\x02\xff\xff",  # a column of a sample whose name is not UTF-8
            b"\x42\x02\x10\x01",  # one whose ids are a number
            b"\x42\x03\x0a\x09x",  # one that ends early
            b"\x4a\x01e",  # an epoch that is a text
        )
    ),
    *((f"{SERVICE}/Pull", pull(("i" * size, MIXED))) for size in (0, 1, 4097)),
    (f"{SERVICE}/Pull", pull(("itm", [1]))),
    (f"{SERVICE}/Pull", pull(("item", [1]), ("item", [2]))),
    (f"{SERVICE}/Pull", pull(("item", [1]), row_dtype=7)),
    (f"{SERVICE}/Pull", pull(("item", [1]), missing=9)),
    (f"{SERVICE}/Pull", pull(("item", [1]), version="f" * 32)),
    (f"{SERVICE}/Pull", PullRequest((TableIds("item", b"12345"),))),
    (f"{SERVICE}/Pull", pull(("item", range(3_000)))),
    (f"{SERVICE}/Pull", b"\x0a"),
    (f"{SERVICE}/Pull", b"\x0b"),
    (f"{SERVICE}/Pull", b"\x0a" + b"\xff" * 8 + b"\x7f"),
    (f"{SERVICE}/Pull", pull(("a\n\r\t\0'", [1]))),
    (f"{SERVICE}/Pull", b"\x0a\x05\x0a\x03\xff\xfe\xfd"),
    (f"{SERVICE}/Scan", ScanRequest("item", "", 30)),
    (f"{SERVICE}/Scan", ScanRequest("item", "", 30, bytes(8))),
    (f"{SERVICE}/Scan", ScanRequest("item", "", 30, struct.pack("<QQ", 0, 90))),
    (f"{SERVICE}/Scan", ScanRequest("item", "", 0)),
    (f"{SERVICE}/Scan", ScanRequest("item", "a" * 32, 3)),
    (f"{SERVICE}/Scan", ScanRequest("other", "", 3)),
    *(
        (f"{SERVICE}/ReadModel", ReadModelRequest(*fields))
        for fields in (
            (),
            ("parameters",),
            ("parameters", "", 300, 100),
            ("preprocessing", "", 256),
            ("preprocessing", "", 257),
            ("parameters", "", -1),
            ("weights",),
            ("parameters", "d" * 32),
        )
    ),
    (f"{SERVICE}/ReadModel", b"\x0b"),
    (f"{SERVICE}/Recommend", RecommendRequest("item", queries=AXES.tobytes(), k=3)),
    (
        f"{SERVICE}/Recommend",
        RecommendRequest(
            "item",
            queries=AXES.tobytes(),
            k=200,
            excluded=np.array([99, 98, 0]).tobytes(),
            num_excluded=np.array([2, 1]).tobytes(),
        ),
    ),
    (f"{SERVICE}/Recommend", RecommendRequest("item", queries=AXES.tobytes(), k=0)),
    (f"{SERVICE}/Recommend", RecommendRequest("item", queries=AXES.tobytes(), k=10_000)),
    (f"{SERVICE}/Recommend", RecommendRequest("item", queries=b"123", k=1)),
    (
        f"{SERVICE}/Recommend",
        RecommendRequest("item", queries=np.full((1, 4), np.inf, np.float32).tobytes(), k=1),
    ),
    (f"{SERVICE}/Recommend", RecommendRequest("item", "b" * 32, AXES.tobytes(), 1)),
    (
        f"{SERVICE}/Recommend",
        RecommendRequest("item", queries=AXES.tobytes(), k=1, num_excluded=bytes(8)),
    ),
    (
        f"{SERVICE}/Recommend",
        RecommendRequest("item", queries=AXES.tobytes(), k=1, shard=1, num_shards=2),
    ),
    (f"{SERVICE}/Describe", b""),
    (f"{SERVICE}/Describe", b"\x0a"),
    (f"{SERVICE}/Refresh", b""),
    (f"{SERVICE}/Refresh", b"\x0a"),
    *((f"{SERVICE}/{name}", b"") for name in ("Push", "Save", "LoadPart", "Other")),
    *((f"{HEALTH}/Check", HealthRequest(name)) for name in ("", SERVICE, "liveness", "other")),
    (f"{HEALTH}/Check", b"\x0a"),
    (f"{INFERENCE}/ServerLive", b""),
    (f"{INFERENCE}/ServerReady", b""),
    (f"{INFERENCE}/ServerMetadata", b""),
    *(
        (f"{INFERENCE}/{method}", ModelRequest(*model))
        for method in ("ModelReady", "ModelMetadata")
        for model in (("item",), ("itm",), ("item", "c" * 32))
    ),
    *(
        (f"{INFERENCE}/ModelInfer", infer(**fields))
        for fields in (
            {},
            {"inputs": (InferTensor("ids", "INT64", (1, 1)),), "id": "a"},
            {
                "inputs": (InferTensor("ids", "INT64", (2,), TensorContents((7, -1))),),
                "raw_input_contents": (),
            },
            {"outputs": (RequestedOutput("found"),)},
            {"outputs": (RequestedOutput("found"), RequestedOutput("found"))},
            {"outputs": (RequestedOutput("row"),)},
            {"model_name": "itm"},
            {"model_version": "7"},
            {"inputs": ()},
            {"inputs": (InferTensor("ids", "INT32", (1,)),)},
            {"inputs": (InferTensor("ids", "INT64", (2,)),)},
            {"inputs": (InferTensor("ids", "INT64", (-1, -1)),)},
            {"inputs": (InferTensor("ids", "INT64", (1,), TensorContents((7,))),)},
            {"raw_input_contents": (b"123",)},
            {"parameters": with_parameter("priority", int64_param=3)},
            {"parameters": with_parameter("binary_data_output", bool_param=True)},
            {"parameters": with_parameter("binary_data_output", bool_param=False)},
            {"parameters": with_parameter("color", string_param="red")},
            {
                "outputs": (
                    RequestedOutput("rows", with_parameter("classification", int64_param=2)),
                )
            },
        )
    ),
    (f"{INFERENCE}/ModelInfer", encode(infer()) + b"\x7a\x03new"),
]


def comparable(method: str, reply: Reply) -> Any:
    """Decodes a reply, without ages."""
    code, message, metadata, content = reply
    kinds = {"Pull": PullReply, "Describe": DescribeReply, "Scan": ScanReply}
    kind = kinds.get(method.rpartition("/")[2])
    if kind is None or code != "OK":
        return code, message, metadata.get("sparring-shard-map-bin"), content
    decoded: Any = decode(kind, content)
    if kind is not ScanReply:
        assert 0 <= decoded.age_seconds < 600
        decoded = replace(decoded, age_seconds=0)
    return decoded


@contextmanager
def both(folder: Folder, **options: Any) -> Iterator[list[FrontEnd]]:
    """Starts both servers, the one in Python first."""
    with ExitStack() as started:
        servers = []
        for kind in ("python", "native"):
            servers.append(open_front_end(kind, folder, **options))
            started.callback(servers[-1].close)
        yield servers


def test_both_servers_give_the_same_replies(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.publish(1)
    weights = sparring_packed.encode_parameters({"top": np.arange(300, dtype=np.float32)})
    folder.publish(2, base=1, model={"parameters": weights, "preprocessing": b"{}".rjust(256)})
    limits = {"max_bytes": 1 << 16, "max_ids": 20_000, "max_k": 500}
    with both(folder, **limits) as servers:
        assert len(REQUESTS) > 70
        for method, request in REQUESTS:
            ours, expected = (
                comparable(method, call(each.address, method, request))
                for each in reversed(servers)
            )
            assert ours == expected, (method, request)
        counted = []
        for each in servers:
            found = read_metrics(each)
            names = ("pulls_total", "recommends_total", "rejected_total", "ids_total", "found_total",
                     "queries_total", "refreshes_total", "version_step", "layers", "mapped_bytes",
                     "is_behind", "bytes_in_flight", "pull_seconds_count")  # fmt: skip
            counted.append({name: value for name, value in found.items() if name.startswith(names)})
            assert found['pull_seconds_bucket{le="+Inf"}'] == found["pull_seconds_count"]
        assert counted[1] == counted[0]
        assert set(read_metrics(servers[1])) == set(read_metrics(servers[0]))


def test_stored_int8_rows_are_equal_from_both_servers(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.publish(1, dtype="int8")
    with both(folder) as servers:
        for way in Missing:
            for tables in ([("item", MIXED)], [("item", MIXED), ("user", [7])]):
                request = pull(*tables, row_dtype=RowDtype.INT8, missing=way)
                ours, expected = (
                    comparable("Pull", call(each.address, f"{SERVICE}/Pull", request))
                    for each in servers
                )
                assert ours == expected
