"""Serves one table next to TensorFlow, whose pin of protobuf must have no effect.

Runs in a separate environment: python tensorflow_server.py. Prints a line of JSON with the address and
versions, and serves until its standard input ends.
"""

import json
import sys
from importlib.metadata import version

import numpy as np

# First, like a program with a model: generated code of a later protobuf would now fail.
import tensorflow as tf

from sparring.contracts import TableConfig
from sparring_serve import LookupServer, ServerConfig, ServingConfig, ShardPosition, ShardReplicas
from sparring_serve.testing import MemoryTables


def main() -> None:
    rows = {"item": {key: [1, key, -key, 0.5] for key in range(100)}}
    tables = MemoryTables([TableConfig("item", 4)], rows)
    position = ShardPosition(ShardReplicas((("a:1", "b:1"),), number=7))
    config = ServingConfig(server=ServerConfig(poll_seconds=3600))
    with LookupServer(tables, config, position, "127.0.0.1:0") as server:
        # Its protobuf is in use.
        assert tf.make_tensor_proto(np.ones(3, np.float32)).ByteSize() > 0
        versions = {name: version(name) for name in ("protobuf", "grpcio")}
        line = {"address": server.address, "tensorflow": tf.__version__, **versions}
        print(json.dumps(line), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
