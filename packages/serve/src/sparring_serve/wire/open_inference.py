"""Messages of other protocols on the same port: the Open Inference Protocol, and grpc.health.v1.

Contains only the supported part. Ids are the only input, raw or as `int64_contents`.
https://github.com/kserve/open-inference-protocol · https://github.com/grpc/grpc-proto
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum

from sparring_serve.wire.fields import (
    Buffer,
    datas,
    flag,
    many,
    number,
    numbers,
    one,
    real,
    text,
    texts,
)

__all__ = [
    "HEALTH",
    "INFERENCE",
    "HealthReply",
    "HealthRequest",
    "InferReply",
    "InferParameter",
    "InferParameterEntry",
    "InferRequest",
    "InferTensor",
    "Live",
    "ModelMetadata",
    "ModelRequest",
    "NoFields",
    "Ready",
    "RequestedOutput",
    "ServerMetadata",
    "ServingStatus",
    "TensorContents",
    "TensorMetadata",
]

HEALTH = "grpc.health.v1.Health"
INFERENCE = "inference.GRPCInferenceService"


class ServingStatus(IntEnum):
    """Status of a service in grpc.health.v1."""

    SERVING = 1
    NOT_SERVING = 2


@dataclass(frozen=True, slots=True)
class HealthRequest:
    service: str = text(1)


@dataclass(frozen=True, slots=True)
class HealthReply:
    status: int = number(1)


@dataclass(frozen=True, slots=True)
class NoFields:
    """ServerLiveRequest, ServerReadyRequest and ServerMetadataRequest."""


@dataclass(frozen=True, slots=True)
class Live:
    live: bool = flag(1)


@dataclass(frozen=True, slots=True)
class Ready:
    ready: bool = flag(1)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    name: str = text(1)
    version: str = text(2)
    extensions: tuple[str, ...] = texts(3)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """ModelReadyRequest and ModelMetadataRequest."""

    name: str = text(1)
    version: str = text(2)


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    name: str = text(1)
    datatype: str = text(2)
    shape: tuple[int, ...] = numbers(3)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    name: str = text(1)
    versions: tuple[str, ...] = texts(2)
    platform: str = text(3)
    inputs: tuple[TensorMetadata, ...] = many(4, TensorMetadata)
    outputs: tuple[TensorMetadata, ...] = many(5, TensorMetadata)


@dataclass(frozen=True, slots=True)
class InferParameter:
    """InferParameter, one of whose fields is set."""

    bool_param: bool = flag(1)
    int64_param: int = number(2)
    string_param: str = text(3)
    double_param: float = real(4)
    uint64_param: int = number(5)

    @property
    def value(self) -> bool | int | str | float | None:
        """The field that is set; None if it is false, 0 or empty."""
        values = (getattr(self, each.name) for each in dataclasses.fields(self))
        return next((each for each in values if each), None)


@dataclass(frozen=True, slots=True)
class InferParameterEntry:
    """An entry of a map of parameters."""

    key: str = text(1)
    value: InferParameter = one(2, InferParameter)


@dataclass(frozen=True, slots=True)
class TensorContents:
    """InferTensorContents, of which ids need one field."""

    int64_contents: tuple[int, ...] = numbers(3)


@dataclass(frozen=True, slots=True)
class InferTensor:
    """InferInputTensor, InferOutputTensor, and the name in InferRequestedOutputTensor."""

    name: str = text(1)
    datatype: str = text(2)
    shape: tuple[int, ...] = numbers(3)
    contents: TensorContents = one(5, TensorContents)
    parameters: tuple[InferParameterEntry, ...] = many(4, InferParameterEntry)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """InferRequestedOutputTensor."""

    name: str = text(1)
    parameters: tuple[InferParameterEntry, ...] = many(2, InferParameterEntry)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """ModelInferRequest."""

    model_name: str = text(1)
    model_version: str = text(2)
    id: str = text(3)
    parameters: tuple[InferParameterEntry, ...] = many(4, InferParameterEntry)
    inputs: tuple[InferTensor, ...] = many(5, InferTensor)
    outputs: tuple[RequestedOutput, ...] = many(6, RequestedOutput)
    raw_input_contents: tuple[Buffer, ...] = datas(7)


@dataclass(frozen=True, slots=True)
class InferReply:
    """ModelInferResponse."""

    model_name: str = text(1)
    model_version: str = text(2)
    id: str = text(3)
    outputs: tuple[InferTensor, ...] = many(5, InferTensor)
    raw_output_contents: tuple[Buffer, ...] = datas(6)
