"""Server reflection: a client that does not know our messages reads them from the server."""

from __future__ import annotations

import dataclasses
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sparring.errors import PluginError
from sparring_serve import ShardPosition, ShardReplicas
from sparring_serve.server.reflection import PROTO_FILES, _described, read_proto
from sparring_serve.testing import MemoryTables
from sparring_serve.testing.front_ends import call
from sparring_serve.testing.memory_servers import open_memory_server
from sparring_serve.wire import messages, open_inference
from sparring_serve.wire.messages import SERVICE
from sparring_serve.wire.open_inference import HEALTH, INFERENCE

from .conftest import Serve

PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))


def test_a_generic_client_calls_by_the_descriptions_of_the_server(tables: MemoryTables) -> None:
    pytest.importorskip("grpc_reflection", reason="needs sparring-serve[reflection]")
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase,
    )

    with (
        open_memory_server(tables, reflection=True) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        told = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in told.get_services()
        pool = DescriptorPool(told)
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Pull")
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        ids = np.array([7, -1], np.int64).tobytes()
        asked = request(tables=[{"table": "item", "ids": ids}], missing="ZERO")
        pull = channel.unary_unary(f"/{SERVICE}/Pull", request.SerializeToString, answer.FromString)
        found = pull(asked, timeout=10).tables[0]
        assert {INFERENCE, HEALTH} <= set(told.get_services())
        healthy = method_of(channel, pool, HEALTH, "Check")({})
        inferred = method_of(channel, pool, INFERENCE, "ModelInfer")(
            {
                "model_name": "item",
                "inputs": [
                    {
                        "name": "ids",
                        "datatype": "INT64",
                        "shape": [1],
                        "contents": {"int64_contents": [7]},
                    }
                ],
            }
        )
    rows = np.frombuffer(found.rows, np.float32).reshape(2, 4)
    assert rows.tolist() == [[1, 7, -7, 0.5], [0, 0, 0, 0]]
    assert found.found == b"\x01"
    assert healthy.status == 1
    assert np.frombuffer(inferred.raw_output_contents[0], np.float32).tolist() == [1, 7, -7, 0.5]


def method_of(channel: grpc.Channel, pool: Any, service: str, name: str) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    method = pool.FindServiceByName(service).FindMethodByName(name)
    request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    made = channel.unary_unary(f"/{service}/{name}", request.SerializeToString, answer.FromString)
    return lambda fields: made(request(**fields), timeout=10)


def test_reflection_exists_only_on_request(tables: MemoryTables) -> None:
    method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with open_memory_server(tables) as server, grpc.insecure_channel(server.address) as channel:
        stream = channel.stream_stream(method)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream(iter([b""]), timeout=10))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_missing_package_is_named(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_reflection", "grpc_reflection.v1alpha"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PluginError, match=r"pip install 'sparring-serve\[reflection\]'"):
        open_memory_server(tables, reflection=True)


OURS = {
    "HealthCheckRequest": open_inference.HealthRequest,
    "HealthCheckResponse": open_inference.HealthReply,
    "ServerLiveRequest": open_inference.NoFields,
    "ServerLiveResponse": open_inference.Live,
    "ServerReadyRequest": open_inference.NoFields,
    "ServerReadyResponse": open_inference.Ready,
    "ServerMetadataRequest": open_inference.NoFields,
    "ServerMetadataResponse": open_inference.ServerMetadata,
    "ModelReadyRequest": open_inference.ModelRequest,
    "ModelReadyResponse": open_inference.Ready,
    "ModelMetadataRequest": open_inference.ModelRequest,
    "TensorMetadata": open_inference.TensorMetadata,
    "ModelMetadataResponse": open_inference.ModelMetadata,
    "InferParameter": open_inference.InferParameter,
    "InferParameterEntry": open_inference.InferParameterEntry,
    "InferTensorContents": open_inference.TensorContents,
    "InferTensor": open_inference.InferTensor,
    "InferRequestedOutputTensor": open_inference.RequestedOutput,
    "ModelInferRequest": open_inference.InferRequest,
    "ModelInferResponse": open_inference.InferReply,
}


def own_class(name: str) -> Any:
    return OURS.get(name) or getattr(messages, f"{name}Message", None) or getattr(messages, name)


@pytest.mark.parametrize("file", PROTO_FILES)
def test_described_messages_equal_our_classes(file: str) -> None:
    """For each message, the dataclass has the same fields, by number and kind on the wire."""
    forms = {"double": "real", "bool": "flag", "string": "text", "bytes": "data"}
    proto = read_proto(file)
    assert proto.messages
    for name, told in proto.messages.items():
        ours = own_class(name)
        kinds = {each.name: each.metadata["kind"] for each in dataclasses.fields(ours)}
        expected = {
            name: (kind.number, kind.form, kind.is_repeated) for name, kind in kinds.items()
        }
        assert {
            each.name: (
                each.number,
                "message" if each.type in proto.messages else forms.get(each.type, "number"),
                each.is_repeated,
            )
            for each in told
        } == expected, name
    for name, enumerators in proto.enums.items():
        ours = getattr(messages, name, None) or getattr(open_inference, name)
        assert {each.name: int(each) for each in ours}.items() <= enumerators.items(), name


def test_the_described_methods_are_served(serve: Serve) -> None:
    told = [(each.service, name) for each in map(read_proto, PROTO_FILES) for name in each.methods]
    assert len(told) == 22
    server = serve()
    assert call(server.address, f"{SERVICE}/Other")[1] == "Method not found!"
    for service, name in told:
        assert call(server.address, f"{service}/{name}")[1] != "Method not found!", name


@pytest.mark.parametrize("file", PROTO_FILES)
def test_protoc_creates_the_same_descriptions(file: str, tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="compares with protoc of grpcio-tools")
    from google.protobuf import descriptor_pb2

    folder = files("sparring_serve.wire")
    made = tmp_path / "made.desc"
    command = ["protoc", f"-I{folder}", f"--descriptor_set_out={made}", file]
    assert protoc.main(command) == 0
    [expected] = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    for each in (field for message in expected.message_type for field in message.field):
        each.ClearField("json_name")
    found = descriptor_pb2.FileDescriptorProto.FromString(
        _described(descriptor_pb2, read_proto(file))
    )
    assert found == expected
