"""Calls a lookup service by generated code of grpcio-tools, a health probe, and tritonclient.

Runs in a separate environment: python generated_client.py ADDRESS PROTO. Prints one line of JSON.
"""

import importlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc


def rejections(client, tensor):
    """Returns statuses of requests with parameters that have no effect here."""
    for options in (
        {"outputs": [triton.InferRequestedOutput("rows", class_count=2)]},
        {"sequence_id": 7, "sequence_start": True},
        {"priority": 1},
        {"timeout": 1000},
        {"parameters": {"temperature": 1}},
    ):
        try:
            client.infer("item", [tensor], **options)
            yield "OK"
        except triton.InferenceServerException as error:
            yield error.status()


def main() -> None:
    address, proto = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-I{proto.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
        assert protoc.main(["protoc", *options, proto.name]) == 0
        sys.path.insert(0, folder)
        messages = importlib.import_module("lookup_pb2")
        stubs = importlib.import_module("lookup_pb2_grpc")
    found = {}
    with grpc.insecure_channel(address) as channel:
        service = stubs.LookupStub(channel)
        ids = np.array([7, -1, 99, -(2**63)], np.int64)
        request = messages.PullRequest(
            tables=[messages.TableIds(table="item", ids=ids.tobytes())],
            missing=messages.ZERO,
            max_staleness_seconds=1e12,
        )
        answer = service.Pull(request, timeout=5)
        [table] = answer.tables
        found["rows"] = np.frombuffer(table.rows, np.float32).reshape(-1, table.dim).tolist()
        found["found"] = [bool(table.found[0] >> position & 1) for position in range(4)]
        found["version"] = [answer.version.step, answer.version.hash, answer.newest]
        found["age_seconds"] = answer.age_seconds
        # No received message has a field that is not in the .proto.
        again = messages.PullReply.FromString(answer.SerializeToString())
        assert again == answer
        described = service.Describe(messages.DescribeRequest(), timeout=5)
        found["tables"] = [
            [each.name, each.dim, each.dtype, each.rows] for each in described.tables
        ]
        found["shards"] = [list(each.addresses) for each in described.shard_map.shards]
        found["limits"] = [
            described.max_ids,
            described.max_bytes,
            described.max_deadline_seconds,
        ]
        found["is_ready"] = described.is_ready
        refreshed = service.Refresh(messages.RefreshRequest(), timeout=5)
        found["refreshed"] = [refreshed.version.hash, refreshed.is_new]
        request.tables[0].table = "itm"
        try:
            service.Pull(request, timeout=5)
        except grpc.RpcError as error:
            found["refused"] = error.code().name
        health = health_pb2_grpc.HealthStub(channel)
        found["health"] = health.Check(health_pb2.HealthCheckRequest(service=""), timeout=5).status
    client = triton.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("item")
    tensor = triton.InferInput("ids", [4], "INT64")
    tensor.set_data_from_numpy(ids)
    inferred = client.infer("item", [tensor])
    found["triton"] = [inferred.as_numpy("rows").tolist()[0], inferred.as_numpy("found").tolist()]
    found["triton_rejects"] = [*rejections(client, tensor)]
    described = client.get_model_metadata("item", as_json=True)
    found["metadata"] = [each["name"] for each in described["outputs"]]
    found["server"] = client.get_server_metadata(as_json=True)["name"]
    print(json.dumps(found))
    assert struct.unpack("<f", table.rows[:4])[0] == found["rows"][0][0]


main()
