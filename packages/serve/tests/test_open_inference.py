"""Every field and parameter of the Open Inference Protocol has an effect, or is rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparring_serve import LookupService, ShardPosition, ShardReplicas, inference
from sparring_serve.limits import Limits
from sparring_serve.status import Status, StatusError
from sparring_serve.testing import MemoryTables
from sparring_serve.testing.front_ends import Folder, call, open_front_end
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.open_inference import (
    INFERENCE,
    InferParameter,
    InferParameterEntry,
    InferReply,
    InferRequest,
    InferTensor,
    ModelMetadata,
    ModelRequest,
    Ready,
    RequestedOutput,
    TensorContents,
)

from .conftest import ITEM, USER, rows_of_step

PLACES = ("request", "input", "output")
IDS = np.array([7, -1], np.int64)


def parameter(name: str, value: Any) -> InferParameterEntry:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    given = {} if value is None else {kinds[type(value)]: value}
    return InferParameterEntry(name, InferParameter(**given))


def request_with(position: str, *parameters: InferParameterEntry) -> InferRequest:
    of = {each: parameters if each == position else () for each in PLACES}
    return InferRequest(
        "item",
        parameters=of["request"],
        inputs=(InferTensor("ids", "INT64", (2,), parameters=of["input"]),),
        outputs=(RequestedOutput("found", of["output"]),),
        raw_input_contents=(IDS.tobytes(),),
    )


@dataclass(frozen=True, slots=True)
class Infer:
    """Answers requests from two versions."""

    answer: Callable[[bytes], bytes]
    oldest: str
    """The hash of the older version."""

    def __call__(self, request: InferRequest | bytes) -> InferReply:
        content = request if isinstance(request, bytes) else encode(request)
        return decode(InferReply, self.answer(content))


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Infer]:
    """The native server."""
    folder = Folder(tmp_path_factory.mktemp("native"))
    tables = {each: rows_of_step(1)[each.name] for each in (ITEM, USER)}
    folder.publish_rows(tables)
    with open_front_end("native", folder) as server:
        folder.publish_rows({each: rows_of_step(2)[each.name] for each in tables}, 2)
        assert server.refresh().is_new

        def answer(content: bytes) -> bytes:
            code, message, _, reply = call(server.address, f"{INFERENCE}/ModelInfer", content)
            if code != "OK":
                raise StatusError(Status(code), message, reason="")
            return reply

        content = call(server.address, f"{INFERENCE}/ModelMetadata", ModelRequest("item"))[3]
        yield Infer(answer, decode(ModelMetadata, content).versions[1])


@pytest.fixture
def infer(kind: str, request: pytest.FixtureRequest) -> Infer:
    """The service in Python, or the native server."""
    if kind == "native":
        found: Infer = request.getfixturevalue("native")
        return found
    tables, service = map(request.getfixturevalue, ("tables", "service"))
    oldest = tables.versions()[0].hash
    tables.publish(2, rows_of_step(2))
    tables.refresh()
    return Infer(lambda content: inference.infer(service, content, 10.0), oldest)


def answer_of(service: LookupService, request: InferRequest | bytes) -> InferReply:
    content = request if isinstance(request, bytes) else encode(request)
    return decode(InferReply, inference.infer(service, content, 10.0))


# Each parameter of Triton and KServe: place, value without a meaning, other values, advice.
PARAMETERS = [
    ("request", "sequence_id", 0, [7, "session"], "are independent"),
    ("request", "sequence_start", False, [True], "are independent"),
    ("request", "sequence_end", False, [True], "are independent"),
    ("request", "priority", 0, [1], "in order of arrival"),
    ("request", "timeout", 0, [1000], "deadline of the gRPC call"),
    ("request", "binary_data_output", True, [False, None], "raw_output_contents"),
    ("input", "shared_memory_region", "", ["region"], "in the messages"),
    ("input", "shared_memory_offset", 0, [64], "in the messages"),
    ("input", "shared_memory_byte_size", 0, [64], "in the messages"),
    ("output", "classification", 0, [3], "Lookup/Recommend"),
    ("output", "binary_data", True, [False, None], "raw_output_contents"),
    ("output", "shared_memory_region", "", ["region"], "in the messages"),
    ("output", "shared_memory_offset", 0, [64], "in the messages"),
    ("output", "shared_memory_byte_size", 0, [64], "in the messages"),
    # Other parameters are unknown, so no value of them is without a meaning.
    *(
        (
            position,
            name,
            ...,
            [1, 0, None, "x", 0.5, True],
            "expected no such parameter; remove it; known parameters",
        )
        for position in PLACES
        for name in ("temperature", "binary_data_size", "Priority", "")
    ),
]


@pytest.mark.parametrize(("position", "name", "default", "others", "advice"), PARAMETERS)
def test_a_parameter_without_effect_is_rejected_unless_it_has_its_default(
    infer: Infer, position: str, name: str, default: Any, others: list[Any], advice: str
) -> None:
    if default is not ...:
        answer = infer(request_with(position, parameter(name, default)))
        assert bytes(answer.raw_output_contents[0]) == b"\x01\x00"
    for value in others:
        with pytest.raises(StatusError) as caught:
            infer(request_with(position, parameter(name, value)))
        message = str(caught.value)
        assert caught.value.status is Status.INVALID_ARGUMENT
        shown = f"parameter {name!r} of {'the request' if position == 'request' else position}"
        assert message.startswith(f"model 'item': {shown}")
        assert f"is {value or 0!r}, expected " in message
        assert advice in message


def test_a_reply_is_limited_by_its_bytes(tables: MemoryTables) -> None:
    content = encode(request_with("input"))
    # The request, and for each of 2 ids a row of 4 float32 and whether it was found.
    num_bytes = len(content) + 2 * (4 * 4 + 1)

    def with_limit(max_bytes: int) -> LookupService:
        position = ShardPosition(ShardReplicas((("a:1",),)))
        return LookupService(tables, position, Limits(max_bytes=max_bytes))

    assert answer_of(with_limit(num_bytes), content).model_name == "item"
    with pytest.raises(StatusError, match=f"the reply would have {num_bytes} bytes") as caught:
        answer_of(with_limit(num_bytes - 1), content)
    assert caught.value.reason == "max_bytes"


def test_rejected_parameters_are_counted(service: LookupService) -> None:
    with pytest.raises(StatusError):
        answer_of(service, request_with("request", parameter("priority", 1)))
    assert service.metrics.value("rejected_total", reason="parameter") == 1


def test_uint64_parameters_are_read(infer: Infer) -> None:
    entry = InferParameterEntry("priority", InferParameter(uint64_param=5))
    with pytest.raises(
        StatusError, match="parameter 'priority' of the request is 5, expected 0; calls"
    ):
        infer(request_with("request", entry))


def test_bugs_count_as_internal_errors(
    tables: MemoryTables, service: LookupService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(tables, "lookup", broken)
    with pytest.raises(ZeroDivisionError):
        answer_of(service, InferRequest("item", **WHOLE))
    assert service.metrics.value("pulls_total", code="INTERNAL") == 1
    assert service.metrics.value("pulls_total", code="OK") == 0


def test_every_field_of_a_request_has_an_effect(infer: Infer) -> None:
    raw = InferTensor("ids", "INT64", (2, 1))
    whole = {"inputs": (raw,), "raw_input_contents": (IDS.tobytes(),)}
    plain = infer(InferRequest("item", **whole))
    assert [(each.name, each.datatype, each.shape) for each in plain.outputs] == [
        ("rows", "FP32", (2, 1, 4)),
        ("found", "BOOL", (2, 1)),
    ]
    assert np.frombuffer(plain.raw_output_contents[0], np.float32)[0] == 2
    assert infer(InferRequest("user", **whole)).outputs[0].shape == (2, 1, 2)
    older = infer(InferRequest("item", infer.oldest, **whole))
    assert older.model_version == infer.oldest
    assert np.frombuffer(older.raw_output_contents[0], np.float32)[0] == 1
    assert infer(InferRequest("item", id="call 7", **whole)).id == "call 7"
    typed = InferTensor("ids", "INT64", (2, 1), TensorContents((7, -1)))
    assert infer(InferRequest("item", inputs=(typed,))) == plain
    turned = (RequestedOutput("found"), RequestedOutput("rows"))
    answer = infer(InferRequest("item", outputs=turned, **whole))
    assert answer.raw_output_contents == plain.raw_output_contents[::-1]


WHOLE: dict[str, Any] = {
    "inputs": (InferTensor("ids", "INT64", (2,)),),
    "raw_input_contents": (IDS.tobytes(),),
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"raw_input_contents": (IDS.tobytes(), b"")}, "2 raw_input_contents and 0 int64_contents"),
        (
            {"inputs": (InferTensor("ids", "INT64", (2,), TensorContents((7, -1))),)},
            "1 raw_input_contents and 2 int64_contents",
        ),
        ({"outputs": (RequestedOutput("found"),) * 2}, "each at most once"),
        ({"outputs": (RequestedOutput("scores"),)}, "requested the outputs scores, expected rows"),
        ({"inputs": WHOLE["inputs"] * 2}, "expected one input"),
    ],
)
def test_contradictory_requests_are_rejected(
    infer: Infer, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(StatusError, match=said) as caught:
        infer(InferRequest("item", **{**WHOLE, **fields}))
    assert caught.value.status is Status.INVALID_ARGUMENT


# Contents of other types, of one byte: bool 1, int 2, uint 4, uint64 5, fp32 6, fp64 7, bytes 8.
@pytest.mark.parametrize("number", [1, 2, 4, 5, 6, 7, 8])
def test_contents_of_another_type_are_rejected(infer: Infer, number: int) -> None:
    contents = bytes([number << 3 | 2, 1, 1])
    tensor = encode(WHOLE["inputs"][0]) + bytes([5 << 3 | 2, len(contents)]) + contents
    content = (
        encode(InferRequest("item", raw_input_contents=WHOLE["raw_input_contents"]))
        + bytes([5 << 3 | 2, len(tensor)])
        + tensor
    )
    with pytest.raises(
        StatusError, match=f"invalid TensorContents: field {number} is not supported"
    ) as info:
        infer(content)
    assert info.value.status is Status.INVALID_ARGUMENT


def test_fields_that_the_protocol_may_get_later_are_rejected(infer: Infer) -> None:
    with pytest.raises(
        StatusError, match="field 15 is not supported; supported fields: 1 model_name, 2 model_"
    ):
        infer(encode(InferRequest("item", **WHOLE)) + bytes([15 << 3, 1]))


def test_the_version_of_a_model_counts_for_its_readiness_and_metadata(
    tables: MemoryTables, service: LookupService
) -> None:
    kept = tables.versions()[0].hash
    for version, is_ready in (("", True), (kept, True), ("1", False)):
        content = encode(ModelRequest("item", version))
        assert decode(Ready, inference.model_ready(service, content)).ready is is_ready
        if is_ready:
            assert decode(ModelMetadata, inference.model_metadata(service, content)).versions == (
                kept,
            )
            continue
        with pytest.raises(StatusError, match="version '1' is not kept") as caught:
            inference.model_metadata(service, content)
        assert caught.value.status is Status.NOT_FOUND
