"""Server reflection: tells generic clients, as grpcurl, the methods and messages of the lookup service.

The extra ``reflection`` brings grpcio-reflection, and with it protobuf; nothing else here needs them. It
reads ``wire/lookup.desc``, which is made of ``wire/lookup.proto``, in that folder, by

    python -m grpc_tools.protoc -I . --descriptor_set_out=lookup.desc lookup.proto
"""

from __future__ import annotations

from importlib.resources import files

import grpc

from sparring.errors import PluginError
from sparring_serve.wire.messages import SERVICE

__all__ = ["add_reflection"]


def add_reflection(server: grpc.Server) -> None:
    """Adds the reflection service; like health, it needs no token, and tells of no table.

    Raises:
        PluginError: grpcio-reflection is not installed.
    """
    try:
        # Neither ships types.
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
            "'sparring-serve[reflection]', or leave server.reflection out"
        ) from error
    # A pool of its own: another library of the process may have a lookup.proto, too.
    pool = descriptor_pool.DescriptorPool()
    described = files("sparring_serve.wire").joinpath("lookup.desc").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.AddSerializedFile(file.SerializeToString())
    pool.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
    reflection.enable_server_reflection((SERVICE, reflection.SERVICE_NAME), server, pool=pool)
