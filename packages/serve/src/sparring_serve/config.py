"""Configuration of a lookup service and its clients, in one YAML file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sparring.contracts import ByteCount, LocalPath, find_passwords
from sparring.errors import ConfigError
from sparring_cli import DocumentModel, read_document
from sparring_serve.backend_tables import BackendTableDeclaration
from sparring_serve.declaration import ParametersConfig
from sparring_serve.tables.shard_ranges import ShardReplicas

__all__ = [
    "RENAMED_KEYS",
    "ClientConfig",
    "LogConfig",
    "QuotaConfig",
    "ServerConfig",
    "ServingConfig",
    "TlsFiles",
    "is_loopback",
    "read_serving_config",
    "split_address",
]

RENAMED_KEYS: Mapping[str, str] = {
    "server.most_ids": "server.max_ids",
    "server.most_bytes": "server.max_bytes",
    "server.most_bytes_in_flight": "server.max_bytes_in_flight",
    "server.most_deadline_seconds": "server.max_deadline_seconds",
    "server.most_queries": "server.max_queries",
    "server.most_k": "server.max_k",
    "client.most_call_bytes": "client.max_call_bytes",
    "parameters.most_clients": "parameters.max_clients",
}
"""Former name of a key → its name. Files and overrides with former names still load."""


def split_address(text: str) -> tuple[str, int]:
    """Splits ``host:port`` or ``[address]:port``.

    Raises:
        ValueError: The text has neither form.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"must be host:port, such as localhost:7433, found {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Returns whether an address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TlsFiles(DocumentModel):
    """TLS files in PEM format; a server reads them again when they change."""

    certificate_file: Path | None = Field(None, description="The certificate, with its chain.")
    key_file: Path | None = Field(
        None, description="The key of the certificate, without a password."
    )
    ca_file: Path | None = Field(
        None,
        description="Certificates to trust. If a server has this file, clients must present a "
        "certificate.",
    )

    @model_validator(mode="after")
    def _has_both(self) -> TlsFiles:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError(
                "found only one of certificate_file and key_file; set both, or remove both"
            )
        return self


class LogConfig(DocumentModel):
    """A sample of the requests that a server answered, as Arrow streams; requires
    `pip install 'sparring-serve[log]'`."""

    path: Path | None = Field(None, description="Folder of the files; null: no log.")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.01, description="Share of the calls to log, which are selected at random."
    )
    max_bytes: Annotated[ByteCount, Field(ge=1 << 20)] = Field(
        1 << 30, description="Size of the folder; the oldest files are removed."
    )


class QuotaConfig(DocumentModel):
    """Maximum rates of each client. A client is the owner of a token of `server.token_file`, or of all
    tokens with the same `client=NAME` there; tokens of the role `admin` have no quota."""

    calls_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None,
        description="Maximum mean number of calls per second; further calls are rejected with "
        "RESOURCE_EXHAUSTED. Each worker of the server in Python counts its own calls.",
    )
    ids_per_second: Annotated[float, Field(gt=0, le=1e12)] | None = Field(
        None,
        description="Maximum mean number of ids per second, in pulls and pushes. After a call with more "
        "ids, the next calls are rejected until the mean is reached.",
    )


class ServerConfig(DocumentModel):
    """Settings of a server."""

    address: str | None = Field(
        None,
        description="host:port to listen on; null: the address of the shard and replica in `shards`.",
    )
    front_end: Literal["auto", "native", "python"] = Field(
        "auto",
        description="Server of the role inference. `native`: a process without Python, which uses a "
        "third of the processor time. `auto`: native if it was built and supports the configuration; "
        "otherwise `python`.",
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        4,
        description="Number of calls that a process answers at the same time. The native server "
        "answers small calls on its own threads, and only large ones on these.",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="Processes that share the port and the pages of the tables. The native server is "
        "one process, with the threads of all workers.",
    )
    verify: Literal["all", "open"] = Field(
        "all",
        description="Which part of a version is hashed before it is served: every byte, or only the "
        "headers.",
    )
    poll_seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        1.0, description="How often the folder is searched for a newer version."
    )
    warm_up_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        1.0,
        description="Maximum time for which a newer version is read before it is served: first the "
        "rows of recently requested ids, then directories. 0: no warm-up.",
    )
    keep_versions: Annotated[int, Field(ge=1, le=8)] = Field(
        2, description="Number of versions that a client can request."
    )
    cache: Path | None = Field(
        None,
        description="Local folder for copies if `snapshots` is a URL: files are copied and hashed "
        "before they are mapped.",
    )
    pin: str | None = Field(
        None, description="Serve the version in this folder of `snapshots`, and no newer one."
    )
    max_ids: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1_000_000, description="Maximum number of ids in a call."
    )
    max_bytes: Annotated[ByteCount, Field(ge=1 << 16, le=64 << 20)] = Field(
        64 << 20, description="Maximum size of a request, and of a reply."
    )
    max_bytes_in_flight: Annotated[ByteCount, Field(ge=1 << 16)] = Field(
        256 << 20, description="Maximum size of all calls in progress; further calls are rejected."
    )
    max_deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0, description="Calls with a longer deadline or without a deadline are rejected."
    )
    max_queries: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1_024, description="Maximum number of queries in a call for recommendations."
    )
    max_k: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1_000, description="Maximum number of rows per query in a call for recommendations."
    )
    drain_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        10.0, description="How long calls in progress may take after SIGTERM."
    )
    metrics_port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None, description="Port of the metrics for Prometheus, on the same host; null: no metrics."
    )
    metrics_token_file: Path | None = Field(
        None,
        description="File whose first line is the token that Prometheus must send to `metrics_port` "
        "(`authorization: {credentials_file: …}`); null: everyone who reaches the port can read it.",
    )
    metrics_tls: bool = Field(
        False,
        description="`metrics_port` uses TLS, with the certificate of `server.tls`. Clients need none.",
    )
    health_port: Annotated[int, Field(ge=0, lt=1 << 16)] | None = Field(
        None,
        description="Port of health checks in plain text, on the same host, for probes that cannot "
        "use TLS, such as the probes of Kubernetes; null: only the port of `address` "
        "answers health checks.",
    )
    log: LogConfig = Field(
        LogConfig(), description="Log of requests, to compare them with the data of the training."
    )
    reflection: bool = Field(
        False,
        description="Describes the messages of the lookup service to generic clients such as grpcurl; "
        "requires `pip install 'sparring-serve[reflection]'`.",
    )
    tls: TlsFiles = Field(
        TlsFiles(), description="TLS files. If a certificate is set, the server uses TLS."
    )
    token_file: Path | None = Field(
        None,
        description="File with a line per token: role (pull, push or admin), space, token. null: "
        "lookups are accepted from all addresses, and all other calls from loopback "
        "addresses only. `client=NAME` after a token names its client.",
    )
    quota: QuotaConfig = QuotaConfig()
    insecure: bool = Field(
        False, description="Allows plain text if other machines can reach the port."
    )

    @property
    def has_quota(self) -> bool:
        return (self.quota.calls_per_second, self.quota.ids_per_second) != (None, None)

    @model_validator(mode="after")
    def _fits_together(self) -> ServerConfig:
        if self.has_quota and self.token_file is None:
            raise ValueError(
                "quota needs token_file, because clients are distinguished by their tokens; set "
                "server.token_file, or remove server.quota"
            )
        if self.metrics_port is None and (self.metrics_tls or self.metrics_token_file is not None):
            raise ValueError(
                "metrics_tls and metrics_token_file have no effect without metrics_port; set "
                "server.metrics_port, or remove them"
            )
        if self.metrics_tls and self.tls.certificate_file is None:
            raise ValueError(
                "metrics_tls needs a certificate; set server.tls.certificate_file and key_file, or "
                "remove server.metrics_tls"
            )
        return self


class ClientConfig(DocumentModel):
    """Settings of a client."""

    deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        0.2,
        description="Deadline of a pull, including attempts with other replicas and retries after "
        "pauses.",
    )
    row_dtype: Literal["auto", "float32", "float16", "int8"] = Field(
        "auto",
        description="Data type of rows in replies. `auto`: `int8` if all tables of the pull are stored "
        "as int8 in serving snapshots, otherwise `float32`. Servers convert other rows for each call, "
        "which saves time only on slow networks.",
    )
    push_deadline_seconds: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0,
        description="Deadline of a push, including retries after lost replies and full queues.",
    )
    max_call_bytes: Annotated[ByteCount, Field(ge=1 << 12, le=32 << 20)] = Field(
        8 << 20,
        description="Maximum size of the rows in a reply; larger pulls are divided into several "
        "calls.",
    )
    consistency: Literal["newest", "one_version"] = Field(
        "newest",
        description="`one_version`: all rows of a pull have the same version, over all shards and "
        "calls.",
    )
    on_failure: Literal["raise", "flag", "stale", "initial", "stale_or_initial"] = Field(
        "raise",
        description="Result if no replica of a shard replies. `raise` raises an error. The other "
        "values return flagged rows: `flag` returns NaN, `stale` the rows that the client received "
        "last, or NaN, `initial` initial values, and `stale_or_initial` the rows that the client "
        "received last, or initial values.",
    )
    stale_rows: Annotated[int, Field(ge=1, le=1 << 30)] = Field(
        100_000,
        description="Number of rows per table that the client keeps for `on_failure: stale`. Each row "
        "has one possible slot; a new row replaces the row in its slot.",
    )
    max_staleness_seconds: Annotated[float, Field(ge=0)] = Field(
        0.0, description="A pull raises an error if the version is older; 0: any age is accepted."
    )
    tls: TlsFiles | None = Field(
        None,
        description="TLS files. If set, the client uses TLS; `ca_file: null` trusts the certificates of "
        "the system.",
    )
    token_file: Path | None = Field(None, description="File whose first line is the token.")
    insecure: bool = Field(False, description="Allows plain text to servers on other machines.")

    def check_address(self, address: str, what: str) -> None:
        """Raises unless a client with these settings may connect to an address.

        Args:
            address: The address.
            what: What connects, beginning with the name of this section.

        Raises:
            ConfigError: It is not ``host:port``; or it is on another machine, and the connection would
                be plain text without `insecure`.
        """
        try:
            host, _ = split_address(address)
        except ValueError as error:
            raise ConfigError(f"{what}: the address {error}; correct it") from None
        check_plain_text(host, is_encrypted=self.tls is not None, insecure=self.insecure, what=what)


class ServingConfig(DocumentModel):
    """The complete file."""

    snapshots: LocalPath = Field(
        "served",
        min_length=1,
        description="The folder that `sparring publish` writes: a path, or a URL of fsspec such as "
        "s3://bucket/served.",
    )
    tables: dict[str, BackendTableDeclaration] = Field(
        default_factory=dict,
        description="Alternative to `snapshots`: tables by name. Their rows stay in the storage of the "
        "training, such as Redis, and each server caches them.",
    )
    shards: tuple[tuple[str, ...], ...] = Field(
        (("127.0.0.1:7433",),),
        min_length=1,
        max_length=4096,
        description="The addresses of the replicas of each shard.",
    )
    map_number: Annotated[int, Field(ge=1, lt=1 << 62)] = Field(
        1,
        description="Version of `shards`. Increase it when you change `shards`, so that clients use the "
        "newer addresses.",
    )
    server: ServerConfig = ServerConfig()
    client: ClientConfig = ClientConfig()
    parameters: ParametersConfig | None = Field(
        None, description="Tables that servers of the role `parameters` train."
    )

    @model_validator(mode="after")
    def _has_addresses(self) -> ServingConfig:
        for address in [each for replicas in self.shards for each in replicas]:
            split_address(address)
        if self.server.address is not None:
            split_address(self.server.address)
        if not all(self.shards):
            raise ValueError(
                "found a shard without replicas; list the address of at least one replica per shard"
            )
        if self.tables and "snapshots" in self.model_fields_set:
            raise ValueError(
                "tables and snapshots are alternative sources of rows; a server uses only one of "
                "them; remove the other"
            )
        if self.tables and self.server.pin is not None:
            raise ValueError(
                "server.pin names a version of snapshots, but tables that are read from their "
                "backend have no versions; remove it"
            )
        pin = self.server.pin
        if pin is not None and ("/" in pin or pin in ("", ".", "..")):
            raise ValueError(
                f"server.pin must be the name of a folder in {self.snapshots}, without a path, found "
                f"{pin!r}"
            )
        if next(find_passwords(self.snapshots), None):
            raise ValueError(
                "the URL of snapshots must not contain a password, because it is printed; remove it"
            )
        return self

    @property
    def shard_map(self) -> ShardReplicas:
        return ShardReplicas(self.shards, self.map_number)


def read_serving_config(path: str | Path, overrides: Sequence[str] = ()) -> ServingConfig:
    """Reads a YAML file.

    Args:
        path: Path of the file. Relative paths in it start at its folder.
        overrides: ``dotted.key=value`` items; later ones win. Their relative paths start at the
            current directory.

    Raises:
        ConfigError: The file cannot be read or is invalid; the message has one line per problem, with
            its location.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from sparring_serve import read_serving_config
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "serving.yaml")
        ...     _ = path.write_text("{snapshots: served, shards: [['127.0.0.1:7000']]}")
        ...     read_serving_config(path, ["client.row_dtype=int8"]).client.row_dtype
        'int8'
    """
    document = read_document(path)
    document.rename_keys(RENAMED_KEYS)
    for each in overrides:
        key, equals, text = each.partition("=")
        document.override(f"{RENAMED_KEYS.get(key.strip(), key)}{equals}{text}")
    document.rename_keys(RENAMED_KEYS)
    return document.as_model(ServingConfig)


def check_plain_text(host: str, *, is_encrypted: bool, insecure: bool, what: str) -> None:
    """Rejects plain text that other machines could read.

    Raises:
        ConfigError: `host` is not a loopback address, there is no encryption, and `insecure` is not
            set.
    """
    if not (is_encrypted or insecure or is_loopback(host)):
        section = what.partition(" ")[0]
        raise ConfigError(
            f"{what}: plain text is allowed for loopback addresses only, found {host}; set "
            f"{section}.tls, or set {section}.insecure=true if the network is trusted"
        )
