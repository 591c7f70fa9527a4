"""The Open Inference Protocol over a lookup service; each table is a model.

`ModelInfer` accepts the input ``ids`` (INT64, any shape) and returns ``rows`` (FP32, the shape of
``ids`` followed by dim) and ``found`` (BOOL, the shape of ``ids``). The model version is the hash of
a version that the server keeps; an empty text means the newest version.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from sparring_serve.request_log import LoggedKind
from sparring_serve.service import LookupService, decode_request, parse_ids
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.contract import Ids
from sparring_serve.wire.fields import Buffer, MessageError, decode, encode
from sparring_serve.wire.messages import Missing, RowDtype
from sparring_serve.wire.open_inference import (
    InferReply,
    InferRequest,
    InferTensor,
    ModelMetadata,
    ModelRequest,
    Ready,
    ServerMetadata,
    TensorMetadata,
)
from sparring_serve.wire.rows import as_bytes

__all__ = ["infer", "model_metadata", "model_ready", "read_infer_ids", "server_metadata"]


def infer(
    service: LookupService,
    content: Buffer,
    remaining_seconds: float,
    *,
    waited_seconds: float = 0.0,
) -> bytes:
    """Answers a ModelInferRequest. Unlike `LookupService.pull`, it also accepts calls without a deadline.

    Takes the arguments of `LookupService.pull`.

    Raises:
        StatusError: As in `LookupService.pull`.
    """
    begin = time.perf_counter() - waited_seconds
    table, code, num_ids, num_found = "", "OK", 0, 0
    try:
        if remaining_seconds <= 0:
            raise StatusError(
                Status.DEADLINE_EXCEEDED,
                "the deadline passed before the call began; increase it, or increase server.threads",
            )
        service.check_request_bytes(content)
        request = _request(content)
        ids, shape = _input(request)
        wanted = _outputs(request)
        [described] = service.check_tables([(request.model_name, ids)])
        table, num_ids = described.name, len(ids)
        num_bytes = len(content) + len(ids) * (4 * described.dim + 1)
        if num_bytes > service.limits.max_bytes:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"the reply would have {num_bytes:,} bytes, and the maximum is "
                f"{service.limits.max_bytes:,}; send fewer ids per call",
                reason="max_bytes",
            )
        with service.admission.of(num_bytes):
            looked = service.lookup(
                [(table, ids)], RowDtype.FLOAT32, Missing.INITIAL, request.model_version
            )
            if service.log is not None:
                service.log.note(LoggedKind.INFER, looked.version.hash, content)
            [found] = looked.tables
            num_found = int(np.count_nonzero(found.found))
            outputs = {
                "rows": (
                    InferTensor("rows", "FP32", (*shape, described.dim)),
                    as_bytes(found.rows),
                ),
                "found": (InferTensor("found", "BOOL", shape), as_bytes(found.found)),
            }
            return encode(
                InferReply(
                    table,
                    looked.version.hash,
                    request.id,
                    tuple(outputs[name][0] for name in wanted),
                    tuple(outputs[name][1] for name in wanted),
                )
            )
    except StatusError as refusal:
        code = refusal.status.value
        service.metrics.count_rejected(refusal.reason)
        raise
    except Exception:
        code = Status.INTERNAL.value
        raise
    finally:
        seconds = time.perf_counter() - begin
        service.metrics.note_pull([table], code, (num_ids, num_found), seconds)
        service.charge(num_ids)


def read_infer_ids(content: Buffer) -> tuple[str, dict[str, Ids]]:
    """Returns the id of a ModelInferRequest, and its ids by table.

    Raises:
        StatusError: The request is invalid.
    """
    request = _request(content)
    return request.id, {request.model_name: _input(request)[0]}


def _request(content: Buffer) -> InferRequest:
    """Decodes a request.

    Raises:
        StatusError: A field or parameter is not supported.
    """
    try:
        request = decode(InferRequest, content, rejects_unknown=True)
    except MessageError as error:
        raise StatusError(Status.INVALID_ARGUMENT, str(error), reason="message") from None
    of_places = (
        ("the request", request.parameters, _REQUEST_PARAMETERS),
        *((f"input {each.name!r}", each.parameters, _TENSOR_PARAMETERS) for each in request.inputs),
        *(
            (f"output {each.name!r}", each.parameters, _OUTPUT_PARAMETERS)
            for each in request.outputs
        ),
    )
    for place, parameters, known in of_places:
        for each in parameters:
            default, advice = known.get(
                each.key, (_UNKNOWN, f"remove it; known parameters: {', '.join(known)}")
            )
            if each.value.value != default:
                expected = "no such parameter" if default is _UNKNOWN else f"{default or 0!r}"
                raise StatusError(
                    Status.INVALID_ARGUMENT,
                    f"model {request.model_name!r}: parameter {each.key!r} of {place} is "
                    f"{each.value.value or 0!r}, expected {expected}; {advice}",
                    reason="parameter",
                )
    return request


_UNKNOWN = object()
_SEQUENCE = "requests are independent; remove it"
_MEMORY = "ids and rows are sent in the messages; remove it"
_BINARY = "replies use raw_output_contents; remove it"
_TENSOR_PARAMETERS: dict[str, tuple[Any, str]] = {
    "shared_memory_region": (None, _MEMORY),
    "shared_memory_offset": (None, _MEMORY),
    "shared_memory_byte_size": (None, _MEMORY),
}
_OUTPUT_PARAMETERS = {
    **_TENSOR_PARAMETERS,
    "classification": (
        None,
        "rows are embeddings, not class scores; remove it, or call Lookup/Recommend for the best rows",
    ),
    "binary_data": (True, _BINARY),
}
_REQUEST_PARAMETERS = {
    "sequence_id": (None, _SEQUENCE),
    "sequence_start": (None, _SEQUENCE),
    "sequence_end": (None, _SEQUENCE),
    "priority": (None, "calls are answered in order of arrival; remove it"),
    "timeout": (None, "set the deadline of the gRPC call instead"),
    "binary_data_output": (True, _BINARY),
}
"""Parameter → its only accepted value, and advice for other values. None means false, 0 or empty."""


def _outputs(request: InferRequest) -> list[str]:
    """Returns the names of the requested outputs."""
    wanted = [each.name for each in request.outputs]
    if not set(wanted) <= {"rows", "found"} or len(set(wanted)) < len(wanted):
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"model {request.model_name!r}: requested the outputs {', '.join(wanted)}, expected rows "
            "and found, each at most once; request these, or omit outputs to get both",
            reason="outputs",
        )
    return wanted or ["rows", "found"]


def _input(request: InferRequest) -> tuple[Ids, tuple[int, ...]]:
    given = request.inputs
    if len(given) != 1 or given[0].name != "ids" or given[0].datatype != "INT64":
        shown = ", ".join(f"{each.name} {each.datatype}" for each in given) or "none"
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"model {request.model_name!r}: expected one input, ids INT64, found {shown}; send only it",
        )
    shape = given[0].shape
    content: Any = given[0].contents.int64_contents
    if request.raw_input_contents:
        if len(request.raw_input_contents) > 1 or content:
            raise StatusError(
                Status.INVALID_ARGUMENT,
                f"model {request.model_name!r}: found ids in {len(request.raw_input_contents)} "
                f"raw_input_contents and {len(content):,} int64_contents; send ids in one of them",
                reason="ids",
            )
        ids = parse_ids(request.raw_input_contents[0])
    else:
        ids = np.array(content, np.int64)
    if min(shape, default=0) < 0 or math.prod(shape) != len(ids):
        raise StatusError(
            Status.INVALID_ARGUMENT,
            f"model {request.model_name!r}: ids have the shape {list(shape)}, but the request contains "
            f"{len(ids):,} ids; correct the shape",
        )
    return ids, shape


def model_ready(service: LookupService, content: Buffer) -> bytes:
    """Answers a ModelReadyRequest."""
    request: ModelRequest = decode_request(ModelRequest, content)
    is_known = request.name in service.tables.shapes()
    return encode(Ready(service.is_ready and is_known and _has_version(service, request)))


def _has_version(service: LookupService, request: ModelRequest) -> bool:
    kept = [each.hash for each in service.tables.versions()]
    return not request.version or request.version in kept


def model_metadata(service: LookupService, content: Buffer) -> bytes:
    """Answers a ModelMetadataRequest.

    Raises:
        StatusError: The table or version does not exist.
    """
    request: ModelRequest = decode_request(ModelRequest, content)
    [shape] = service.check_tables([(request.name, np.empty(0, np.int64))])
    if not _has_version(service, request):
        raise StatusError(
            Status.NOT_FOUND,
            f"model {request.name!r}: version {request.version!r} is not kept; omit the version to "
            "list the kept ones",
            reason="version_gone",
        )
    return encode(
        ModelMetadata(
            shape.name,
            tuple(each.hash for each in service.tables.versions()),
            "sparring",
            (TensorMetadata("ids", "INT64", (-1,)),),
            (
                TensorMetadata("rows", "FP32", (-1, shape.dim)),
                TensorMetadata("found", "BOOL", (-1,)),
            ),
        )
    )


def server_metadata() -> bytes:
    """Answers a ServerMetadataRequest."""
    from sparring import __version__

    return encode(ServerMetadata("sparring", __version__))
