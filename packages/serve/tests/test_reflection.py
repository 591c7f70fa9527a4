"""Server reflection: a client that knows nothing of our messages learns them from the server."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import grpc
import numpy as np
import pytest

from sparring.errors import PluginError
from sparring_serve import LookupServer, Place, ServerConfig, ServingConfig, ShardReplicas
from sparring_serve.testing import MemoryTables
from sparring_serve.wire import fields as wire
from sparring_serve.wire import messages
from sparring_serve.wire.fields import decode, many, text
from sparring_serve.wire.messages import SERVICE

PLACE = Place(ShardReplicas((("127.0.0.1:1",),)))


def serve(tables: MemoryTables, **server: Any) -> LookupServer:
    config = ServingConfig(server=ServerConfig(poll_seconds=3600, **server))
    return LookupServer(tables, config, PLACE, "127.0.0.1:0")


# Of protobuf's descriptor.proto what is compared here.


@dataclass(frozen=True)
class Field:
    name: str = text(1)
    number: int = wire.number(3)
    label: int = wire.number(4)
    type: int = wire.number(5)
    type_name: str = text(6)


@dataclass(frozen=True)
class Message:
    name: str = text(1)
    fields: tuple[Field, ...] = many(2, Field)


@dataclass(frozen=True)
class Method:
    name: str = text(1)


@dataclass(frozen=True)
class Service:
    name: str = text(1)
    methods: tuple[Method, ...] = many(2, Method)


@dataclass(frozen=True)
class File:
    package: str = text(2)
    messages: tuple[Message, ...] = many(4, Message)
    services: tuple[Service, ...] = many(6, Service)


@dataclass(frozen=True)
class FileSet:
    files: tuple[File, ...] = many(1, File)


_TYPES = {1: "double", 3: "int64", 4: "uint64", 8: "bool", 9: "string", 12: "bytes", 13: "uint32"}
_FORMS = {1: "real", 8: "flag", 9: "text", 11: "message", 12: "data"}


@pytest.fixture
def described() -> File:
    """lookup.desc, read without protobuf."""
    content = files("sparring_serve.wire").joinpath("lookup.desc").read_bytes()
    [file] = decode(FileSet, content).files
    return file


def test_a_generic_client_calls_by_what_the_server_tells(tables: MemoryTables) -> None:
    pytest.importorskip("grpc_reflection", reason="needs sparring-serve[reflection]")
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    with serve(tables, reflection=True) as server, grpc.insecure_channel(server.address) as channel:
        told = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in told.get_services()
        pool = DescriptorPool(told)
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Pull")
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        ids = np.array([7, -1], np.int64).tobytes()
        asked = request(tables=[{"table": "item", "ids": ids}], missing="ZERO")
        call = channel.unary_unary(f"/{SERVICE}/Pull", request.SerializeToString, answer.FromString)
        found = call(asked, timeout=10).tables[0]
    rows = np.frombuffer(found.rows, np.float32).reshape(2, 4)
    assert rows.tolist() == [[1, 7, -7, 0.5], [0, 0, 0, 0]]
    assert found.found == b"\x01"


def test_it_is_only_there_where_it_is_asked_for(tables: MemoryTables) -> None:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with serve(tables) as server, grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(method)
        with pytest.raises(grpc.RpcError) as caught:
            next(call(iter([b""]), timeout=10))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_missing_package_is_named(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_reflection", "grpc_reflection.v1alpha"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PluginError, match=r"pip install 'sparring-serve\[reflection\]'"):
        serve(tables, reflection=True)


def test_what_is_told_is_the_proto(described: File) -> None:
    proto = files("sparring_serve.wire").joinpath("lookup.proto").read_text()
    blocks = dict(re.findall(r"^message (\w+) \{(.*?)\}$", proto, re.MULTILINE | re.DOTALL))
    found = {
        message.name: [
            (each.type_name.rpartition(".")[2] or _TYPES[each.type], each.name, str(each.number))
            for each in message.fields
        ]
        for message in described.messages
    }
    expected = {name: re.findall(r"(\w+) (\w+) = (\d+);", each) for name, each in blocks.items()}
    assert found == expected, "make lookup.desc again, as server/reflection.py says"
    [service] = described.services
    assert f"{described.package}.{service.name}" == SERVICE
    assert [each.name for each in service.methods] == re.findall(r"rpc (\w+)\(", proto)


def test_what_is_told_is_what_we_write_and_read(described: File) -> None:
    """Of each message the dataclass has the same fields, by number and kind on the wire."""
    for message in described.messages:
        ours = getattr(messages, f"{message.name}Message", None) or getattr(messages, message.name)
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(ours)}
        told = {
            each.name: (each.number, _FORMS.get(each.type, "number"), each.label == 3)
            for each in message.fields
        }
        assert told == {
            name: (kind.number, kind.form, kind.is_repeated) for name, kind in kinds.items()
        }, message.name
