"""The Open Inference Protocol over a lookup service: a table is a model.

`ModelInfer` takes the input ``ids`` (INT64, any shape) and gives ``rows`` (FP32, the same shape and dim)
and ``found`` (BOOL). A model's version is the hash of one that is kept; empty: the newest.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from sparring_serve.refusal import Refusal, Status
from sparring_serve.service import LookupService, checked_ids, decoded
from sparring_serve.tables import Ids
from sparring_serve.wire.fields import Buffer, encode
from sparring_serve.wire.messages import Missing, RowDtype
from sparring_serve.wire.open_inference import (
    InferAnswer,
    InferRequest,
    InferTensor,
    ModelMetadata,
    ModelRequest,
    Ready,
    ServerMetadata,
    TensorMetadata,
)
from sparring_serve.wire.rows import as_bytes

__all__ = ["infer", "model_metadata", "model_ready", "server_metadata"]


def infer(
    service: LookupService,
    content: Buffer,
    remaining_seconds: float,
    *,
    waited_seconds: float = 0.0,
) -> bytes:
    """Answers a ModelInferRequest. Clients of this protocol may leave the deadline out.

    The arguments are those of `LookupService.pull`.

    Raises:
        Refusal: as `LookupService.pull`.
    """
    begin = time.perf_counter() - waited_seconds
    table, code, num_ids, num_found = "", "OK", 0, 0
    try:
        if remaining_seconds <= 0:
            raise Refusal(Status.DEADLINE_EXCEEDED, "the deadline passed before the lookup began")
        service.check_request_bytes(content)
        request: InferRequest = decoded(InferRequest, content)
        ids, shape = _input(request)
        [described] = service.check_asked([(request.model_name, ids)])
        table, num_ids = described.name, len(ids)
        num_bytes = len(content) + len(ids) * (4 * described.dim + 1)
        if num_bytes > service.limits.most_bytes:
            raise Refusal(
                Status.INVALID_ARGUMENT,
                f"the answer would have {num_bytes:,} bytes, the most are "
                f"{service.limits.most_bytes:,}; ask for fewer ids in a call",
                reason="most_bytes",
            )
        with service.admission.of(num_bytes):
            looked = service.lookup(
                [(table, ids)], RowDtype.FLOAT32, Missing.INITIAL, request.model_version
            )
            [found] = looked.tables
            num_found = int(np.count_nonzero(found.found))
            outputs = {
                "rows": (
                    InferTensor("rows", "FP32", (*shape, described.dim)),
                    as_bytes(found.rows),
                ),
                "found": (InferTensor("found", "BOOL", shape), as_bytes(found.found)),
            }
            wanted = [each.name for each in request.outputs] or list(outputs)
            unknown = [name for name in wanted if name not in outputs]
            if unknown:
                raise Refusal(
                    Status.INVALID_ARGUMENT,
                    f"model {table!r}: no output {unknown[0]!r}; ask for rows or found",
                )
            return encode(
                InferAnswer(
                    table,
                    looked.version.hash,
                    request.id,
                    tuple(outputs[name][0] for name in wanted),
                    tuple(outputs[name][1] for name in wanted),
                )
            )
    except Refusal as refusal:
        code = refusal.status.value
        service.metrics.count_rejected(refusal.reason)
        raise
    finally:
        seconds = time.perf_counter() - begin
        service.metrics.note_pull([table], code, (num_ids, num_found), seconds)


def _input(request: InferRequest) -> tuple[Ids, tuple[int, ...]]:
    given = request.inputs
    if len(given) != 1 or given[0].name != "ids" or given[0].datatype != "INT64":
        shown = ", ".join(f"{each.name} {each.datatype}" for each in given) or "none"
        raise Refusal(
            Status.INVALID_ARGUMENT,
            f"model {request.model_name!r}: takes one input, ids INT64, found {shown}",
        )
    shape = given[0].shape
    content: Any = given[0].contents.int64_contents
    if request.raw_input_contents:
        ids = checked_ids(request.raw_input_contents[0])
    else:
        ids = np.array(content, np.int64)
    if min(shape, default=0) < 0 or math.prod(shape) != len(ids):
        raise Refusal(
            Status.INVALID_ARGUMENT,
            f"model {request.model_name!r}: ids have the shape {list(shape)}, found {len(ids):,} of "
            "them; give as many as the shape says",
        )
    return ids, shape


def model_ready(service: LookupService, content: Buffer) -> bytes:
    """Answers a ModelReadyRequest."""
    request: ModelRequest = decoded(ModelRequest, content)
    return encode(Ready(service.is_ready and request.name in service.tables.shapes()))


def model_metadata(service: LookupService, content: Buffer) -> bytes:
    """Answers a ModelMetadataRequest.

    Raises:
        Refusal: no such table.
    """
    request: ModelRequest = decoded(ModelRequest, content)
    [shape] = service.check_asked([(request.name, np.empty(0, np.int64))])
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
