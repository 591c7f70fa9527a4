"""Server reflection: describes the methods and messages to generic clients such as grpcurl.

The extra ``reflection`` installs grpcio-reflection and protobuf, which only this module needs. The
descriptions are parsed from ``wire/*.proto``, so that they cannot be older than these files.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import grpc

from sparring.errors import PluginError

__all__ = ["PROTO_FILES", "ProtoField", "ProtoFile", "add_reflection", "read_proto"]

_STREAM_THREADS, _STREAM_SECONDS = 2, 10.0

PROTO_FILES = ("lookup.proto", "open_inference.proto", "health.proto")


@dataclass(frozen=True, slots=True)
class ProtoField:
    """One field; its type is the name of a scalar, a message or an enumeration."""

    name: str
    number: int
    type: str
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """A parsed `.proto` file; supports the part of the language that our files use.

    Args:
        name: Name of the file.
        service: Name of its only service, with the package.
        messages: Name → fields.
        enums: Name → enumerator → number.
        methods: Method → names of its request and reply.
    """

    name: str
    service: str
    messages: Mapping[str, Sequence[ProtoField]]
    enums: Mapping[str, Mapping[str, int]]
    methods: Mapping[str, tuple[str, str]]


def read_proto(name: str) -> ProtoFile:
    """Parses one of `PROTO_FILES`."""
    text = files("sparring_serve.wire").joinpath(name).read_text()
    text = re.sub(r"//[^\n]*", "", text)

    def blocks(kind: str) -> dict[str, str]:
        found = re.findall(rf"^{kind} (\w+) \{{(.*?)\}}", text, re.MULTILINE | re.DOTALL)
        return dict(found)

    [package] = re.findall(r"^package ([\w.]+);", text, re.MULTILINE)
    [(service_name, service)] = blocks("service").items()
    return ProtoFile(
        name=name,
        service=f"{package}.{service_name}",
        messages={
            name: [
                ProtoField(field, int(number), kind, bool(repeated))
                for repeated, kind, field, number in re.findall(
                    r"(repeated )?(\w+) (\w+) = (\d+);", block
                )
            ]
            for name, block in blocks("message").items()
        },
        enums={
            name: {each: int(number) for each, number in re.findall(r"(\w+) = (\d+);", block)}
            for name, block in blocks("enum").items()
        },
        methods={
            name: (request, answer)
            for name, request, answer in re.findall(
                r"rpc (\w+)\((\w+)\) returns \((\w+)\);", service
            )
        },
    )


def add_reflection(server: grpc.Server) -> None:
    """Adds the reflection service; like health checks, it needs no token and reveals no tables.

    Raises:
        PluginError: grpcio-reflection is not installed.
    """
    try:
        # Both packages have no type annotations.
        from google.protobuf import (  # type: ignore[import-untyped]
            descriptor_pb2,
            descriptor_pool,
        )
        from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
            reflection,
            reflection_pb2,
        )
    except ImportError as error:
        raise PluginError(
            f"server.reflection=true needs grpcio-reflection ({error}); run: pip install "
            "'sparring-serve[reflection]', or remove server.reflection"
        ) from error
    # Use a separate pool, because another library in the process may also have a lookup.proto.
    pool = descriptor_pool.DescriptorPool()
    services = [reflection.SERVICE_NAME]
    for name in PROTO_FILES:
        proto = read_proto(name)
        pool.AddSerializedFile(_described(descriptor_pb2, proto))
        services.append(proto.service)
    pool.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
    answer = reflection.ReflectionServicer(services, pool=pool).ServerReflectionInfo
    method = grpc.stream_stream_rpc_method_handler(
        _bounded(answer),
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                reflection.SERVICE_NAME, {"ServerReflectionInfo": method}
            ),
        )
    )


def _bounded(answer: Callable[[Iterator[Any], Any], Iterator[Any]]) -> Any:
    """Runs the streams of a method on separate threads with a maximum duration, because they need no
    token."""

    def answered(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        timer = threading.Timer(_STREAM_SECONDS, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            yield from answer(requests, context)
        finally:
            timer.cancel()

    # grpc runs a handler on the threads in this attribute.
    answered.experimental_thread_pool = ThreadPoolExecutor(  # type: ignore[attr-defined]
        _STREAM_THREADS, "sparring-serve-reflection"
    )
    return answered


def _described(descriptor_pb2: Any, proto: ProtoFile) -> bytes:
    """Encodes a FileDescriptorProto, like protoc."""
    package, _, service_name = proto.service.rpartition(".")
    made = descriptor_pb2.FileDescriptorProto(name=proto.name, package=package, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in proto.messages.items():
        message = made.message_type.add(name=name)
        for each in fields:
            field = message.field.add(name=each.name, number=each.number)
            field.label = kinds.LABEL_REPEATED if each.is_repeated else kinds.LABEL_OPTIONAL
            if each.type in proto.messages or each.type in proto.enums:
                is_message = each.type in proto.messages
                field.type = kinds.TYPE_MESSAGE if is_message else kinds.TYPE_ENUM
                field.type_name = f".{package}.{each.type}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{each.type.upper()}")
    for name, enumerators in proto.enums.items():
        enum = made.enum_type.add(name=name)
        for each_name, number in enumerators.items():
            enum.value.add(name=each_name, number=number)
    service = made.service.add(name=service_name)
    for name, (request, answer) in proto.methods.items():
        service.method.add(
            name=name, input_type=f".{package}.{request}", output_type=f".{package}.{answer}"
        )
    content: bytes = made.SerializeToString()
    return content
