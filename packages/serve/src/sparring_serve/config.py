"""The configuration of a lookup service and of its clients: one YAML file for both."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sparring.contracts import ByteCount, LocalPath, passwords_in
from sparring.errors import ConfigError
from sparring_cli import DocumentModel, read_document
from sparring_serve.backend_tables import BackendTableDeclaration
from sparring_serve.declaration import ParametersConfig
from sparring_serve.tables.shard_ranges import ShardReplicas

__all__ = [
    "ClientConfig",
    "ServerConfig",
    "ServingConfig",
    "TlsFiles",
    "is_loopback",
    "read_serving_config",
    "split_address",
]


def split_address(text: str) -> tuple[str, int]:
    """``host:port`` or ``[address]:port`` → both.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"must be host:port, as localhost:7433, found {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TlsFiles(DocumentModel):
    """Files of TLS, PEM; a server reads them again when they change."""

    certificate_file: Path | None = Field(None, description="The certificate, with its chain.")
    key_file: Path | None = Field(None, description="Its key, without a password.")
    ca_file: Path | None = Field(
        None,
        description="Certificates to trust. A server that has it demands a certificate of clients.",
    )

    @model_validator(mode="after")
    def _has_both(self) -> TlsFiles:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together; name both")
        return self


class ServerConfig(DocumentModel):
    """A server."""

    address: str | None = Field(
        None,
        description="host:port to listen on; null: that of the shard and replica in `shards`.",
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        4, description="Calls that are answered at once by a process."
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Processes that share the port and the pages of the tables."
    )
    verify: Literal["all", "open"] = Field(
        "all",
        description="What of a version is hashed before it is served: every byte, or headers.",
    )
    poll_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        1.0, description="How often the folder is searched for a newer version."
    )
    warm_up_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        1.0,
        description="How long at most a newer version is read before it is served: rows of ids asked "
        "lately, then directories; 0: not at all.",
    )
    keep_versions: Annotated[int, Field(ge=1, le=8)] = Field(
        2, description="Versions that a client may name."
    )
    cache: Path | None = Field(
        None,
        description="Local folder for copies, where `snapshots` is a URL: files are copied and hashed "
        "before they are mapped.",
    )
    pin: str | None = Field(
        None, description="Serve the version in this folder of `snapshots`, and no newer one."
    )
    most_ids: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1_000_000, description="Ids of a call."
    )
    most_bytes: Annotated[ByteCount, Field(ge=1 << 16, le=64 << 20)] = Field(
        64 << 20, description="Bytes of a request, and of an answer."
    )
    most_bytes_in_flight: Annotated[ByteCount, Field(ge=1 << 16)] = Field(
        256 << 20, description="Bytes of all calls under way; more are refused."
    )
    most_deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0, description="A call with a longer deadline, or with none, is refused."
    )
    most_queries: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1_024, description="Queries of a call for recommendations."
    )
    most_k: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1_000, description="Rows for each query of a call for recommendations."
    )
    drain_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        10.0, description="How long calls under way may take after SIGTERM."
    )
    metrics_port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None, description="Port of metrics for Prometheus, on the same host; null: none."
    )
    health_port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None,
        description="Port of health calls in plain text, on the same host, for probes that cannot use "
        "TLS, as those of Kubernetes; null: health is on the port of `address` only.",
    )
    reflection: bool = Field(
        False,
        description="Tell generic clients, as grpcurl, the messages of the lookup service; needs "
        "`pip install 'sparring-serve[reflection]'`.",
    )
    tls: TlsFiles = Field(TlsFiles(), description="Encrypts, if it has a certificate.")
    token_file: Path | None = Field(
        None,
        description="A line for each token: role (pull, push or admin), blank, token; null: lookups are "
        "accepted from everywhere, and all other calls from loopback addresses only.",
    )
    insecure: bool = Field(
        False, description="Allow plain text where other machines reach the port."
    )


class ClientConfig(DocumentModel):
    """A client."""

    deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        0.2,
        description="Of a pull, attempts with other replicas and repeated ones after pauses included.",
    )
    row_dtype: Literal["float32", "float16", "int8"] = Field(
        "float32", description="Of rows on the wire."
    )
    push_deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0, description="Of a push, attempts after lost answers and full queues included."
    )
    most_call_bytes: Annotated[ByteCount, Field(ge=1 << 12, le=32 << 20)] = Field(
        8 << 20, description="Bytes of rows in an answer; a pull of more is divided."
    )
    consistency: Literal["newest", "one_version"] = Field(
        "newest",
        description="`one_version`: all rows of a pull are of one version, over shards and calls.",
    )
    on_failure: Literal["raise", "flag", "stale", "initial", "stale_or_initial"] = Field(
        "raise",
        description="If no replica of a shard answers: an error; or rows that are flagged, which are "
        "NaN, those that the client saw last (NaN where it saw none), initial values, or, of the last "
        "two, the first that there is.",
    )
    stale_rows: Annotated[int, Field(ge=1, le=1 << 30)] = Field(
        100_000,
        description="With `on_failure: stale`: places for rows of each table that the client keeps; a "
        "row takes the place of another.",
    )
    max_staleness_seconds: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Refuse rows of an older version; 0: any age."
    )
    tls: TlsFiles | None = Field(
        None, description="Encrypts, if given; `ca_file` null: the system's."
    )
    token_file: Path | None = Field(None, description="A file whose first line is the token.")
    insecure: bool = Field(False, description="Allow plain text to servers on other machines.")


class ServingConfig(DocumentModel):
    """The whole file."""

    snapshots: LocalPath = Field(
        "served",
        min_length=1,
        description="The folder that `sparring publish` writes: a path, or a URL of fsspec, as s3://bucket/served.",
    )
    tables: dict[str, BackendTableDeclaration] = Field(
        default_factory=dict,
        description="In place of `snapshots`: tables whose rows stay in the storage that is trained "
        "into, as Redis, with caches before it in each server. By name.",
    )
    shards: tuple[tuple[str, ...], ...] = Field(
        (("127.0.0.1:7433",),),
        min_length=1,
        max_length=4096,
        description="Of each shard the addresses of its replicas.",
    )
    map_number: Annotated[int, Field(ge=1, lt=1 << 62)] = Field(
        1, description="Of `shards`; raise it with each change, so that clients take the newer map."
    )
    server: ServerConfig = ServerConfig()
    client: ClientConfig = ClientConfig()
    parameters: ParametersConfig | None = Field(
        None, description="Tables that learn, for servers of the role `parameters`."
    )

    @model_validator(mode="after")
    def _has_addresses(self) -> ServingConfig:
        for address in [each for replicas in self.shards for each in replicas]:
            split_address(address)
        if self.server.address is not None:
            split_address(self.server.address)
        if not all(self.shards):
            raise ValueError("each of the shards needs an address of a replica at least")
        if self.tables and "snapshots" in self.model_fields_set:
            raise ValueError(
                "tables and snapshots are two sources of rows; a server has one of them, leave the "
                "other out"
            )
        if self.tables and self.server.pin is not None:
            raise ValueError(
                "server.pin names a version of snapshots, and tables that are read from their "
                "backend have none; leave it out"
            )
        if next(passwords_in(self.snapshots), None):
            raise ValueError("the URL of snapshots must hold no password, because it is printed")
        return self

    @property
    def shard_map(self) -> ShardReplicas:
        return ShardReplicas(self.shards, self.map_number)


def read_serving_config(path: str | Path, overrides: Sequence[str] = ()) -> ServingConfig:
    """Reads a YAML file.

    Args:
        path: of the file. Its relative paths start at its folder.
        overrides: ``dotted.key=value``, later ones win. Their relative paths start at the current
            directory.

    Raises:
        ConfigError: the file cannot be read, or is wrong; a line for each fault, with its place.
    """
    document = read_document(path)
    for each in overrides:
        document.override(each)
    return document.as_model(ServingConfig)


def check_plain_text(host: str, *, is_encrypted: bool, insecure: bool, what: str) -> None:
    """Refuses plain text where other machines may read it.

    Raises:
        ConfigError: `host` is not loopback, nothing encrypts, and no one said that this is meant.
    """
    if not (is_encrypted or insecure or is_loopback(host)):
        section = what.partition(" ")[0]
        raise ConfigError(
            f"{what}: plain text is for loopback addresses only, found {host}; name {section}.tls "
            f"files, or set {section}.insecure=true where the network is trusted"
        )
