"""``sparring resize``: changes the number of shards of a running parameter service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import ConfigError
from sparring_cli import JsonOption, add_command, print_json
from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.config import read_serving_config

__all__ = ["add_resize"]


def add_resize(application: typer.Typer) -> None:
    add_command(
        application,
        "resize",
        resize,
        examples=[
            "sparring resize parameters-5.yaml",
            "sparring resize parameters-5.yaml --pause-seconds 10 --json",
        ],
    )


def resize(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The YAML file with the new `shards`.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the file."),
    ] = None,
    pause_seconds: Annotated[
        float, typer.Option(help="Seconds between moves of up to 512 partitions.", min=0.0)
    ] = 2.0,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Save all shards at the end.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Move rows of a running parameter service until it has the shards of the file."""
    from sparring_serve.parameters.client import ParameterClient
    from sparring_serve.replication.store import open_store
    from sparring_serve.resizing.map_store import MapStore, map_key
    from sparring_serve.resizing.resize import resize as move_all

    read = read_serving_config(config, overrides or [])
    if read.parameters is None or read.parameters.replication is None:
        raise ConfigError(
            f"{config}: resize needs a service of the role parameters whose servers share a store; set "
            "parameters.replication.store, and restart the servers"
        )
    store = open_store(read.parameters.replication.store)
    maps = MapStore(store, map_key(read.parameters.folders[0]))
    transport = GrpcTransport(read.client)
    try:
        done = move_all(
            read.shard_map,
            maps,
            transport,
            move_seconds=read.parameters.save_seconds,
            pause_seconds=pause_seconds,
        )
    finally:
        transport.close()
        maps.close()
    url = ""
    if save:
        with ParameterClient(done.shards, read.client) as client:
            url = client.save().url
    if as_json:
        print_json(
            {
                "shards": done.shards.num_shards,
                "map_number": done.shards.number,
                "partitions": done.partitions,
                "rows": done.rows,
                "seconds": done.seconds,
                "snapshot": url or None,
            }
        )
    else:
        typer.echo(
            f"{done.shards.num_shards} shards, map {done.shards.number}: moved {done.rows:,} rows of "
            f"{done.partitions:,} partitions in {done.seconds:.1f} s"
            + (f", saved {url}" if url else "")
        )
