"""`LookupClient` and `AsyncLookupClient` read rows of embedding tables from a lookup service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparring.errors import ClosedError, InvalidArgumentError
from sparring_cli import call_span, tracer
from sparring_serve.client.answer import LookupReply
from sparring_serve.client.arguments import check_text
from sparring_serve.client.grpc_transport import AsyncGrpcTransport, GrpcTransport
from sparring_serve.client.model_steps import ModelFiles, model_steps
from sparring_serve.client.recommend_steps import (
    Queries,
    Recommendations,
    RecommendQuery,
    recommend_steps,
)
from sparring_serve.client.sample import Sample
from sparring_serve.client.session import Description, Session, Steps
from sparring_serve.client.transport import (
    AsyncTransport,
    Transport,
    run_steps,
    run_steps_async,
)
from sparring_serve.config import ClientConfig, ServingConfig, read_serving_config
from sparring_serve.metrics import ServingMetrics
from sparring_serve.security import WatchedFile
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.messages import Missing

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncLookupClient", "Client", "LookupClient", "Targets"]

_Result = TypeVar("_Result")

Targets = str | Sequence[str] | Sequence[Sequence[str]] | ShardReplicas


def _shards(targets: Targets) -> ShardReplicas:
    """Converts one address, a list of replicas of one shard, or a list of such lists, to a shard map."""
    if isinstance(targets, ShardReplicas):
        return targets
    if isinstance(targets, str):
        return ShardReplicas(((targets,),), number=0)
    shards: Sequence[Any] = targets if isinstance(targets, (list, tuple)) else [None]
    if all(isinstance(each, str) for each in shards):
        return ShardReplicas((tuple(shards),), number=0)
    for replicas in shards:
        is_of_text = isinstance(replicas, (list, tuple)) and all(
            isinstance(each, str) for each in replicas
        )
        if not is_of_text:
            raise InvalidArgumentError(
                "targets must be 'host:port', a list of the addresses of one shard's replicas, or a list "
                f"of such lists; found {targets!r}"
            )
    return ShardReplicas(tuple(map(tuple, shards)), number=0)


def _read_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> ServingConfig:
    text = check_text("path", os.fspath(path) if isinstance(path, os.PathLike) else path)
    is_list = isinstance(overrides, (list, tuple))
    if not is_list or not all(isinstance(each, str) for each in overrides):
        raise InvalidArgumentError(
            f"overrides must be a list of strings such as 'client.row_dtype=int8', found {overrides!r}"
        )
    return read_serving_config(Path(text), overrides)


def _missing(given: str) -> Missing:
    try:
        return Missing[given.upper()]
    except (KeyError, AttributeError):
        raise InvalidArgumentError(
            f"missing must be 'initial', 'zero' or 'only_found', found {given!r}"
        ) from None


class Client:
    """Common part of the synchronous and the asyncio clients."""

    def __init__(
        self,
        targets: Targets,
        config: ClientConfig | None = None,
        metrics: ServingMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(config, (ClientConfig, type(None))):
            raise InvalidArgumentError(
                f"config must be a ClientConfig, found {type(config).__name__}; use from_config to read "
                "the file of a service"
            )
        self.config = ClientConfig() if config is None else config
        self.metrics = ServingMetrics() if metrics is None else metrics
        tracer()  # An exporter that is not installed is reported here, and not by each call.
        self._session = Session(_shards(targets), self.config, self.metrics, clock)
        self._is_closed = False

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Self:
        """Creates a client from the configuration file of its service.

        If the file changes and its `map_number` increases, the client uses the new `shards`.

        Args:
            path: Path of the YAML file.
            overrides: ``dotted.key=value`` items.

        Raises:
            ConfigError: The file is invalid.
        """
        config = _read_config(path, overrides)
        client = cls(config.shard_map, config.client)
        client._session.read_newer = WatchedFile(
            Path(path), lambda _: read_serving_config(Path(path), overrides).shard_map
        )
        return client

    def _recommend_steps(
        self, wanted: RecommendQuery, deadline_seconds: float
    ) -> Steps[Recommendations]:
        return recommend_steps(self._session, wanted, self._session.deadline(deadline_seconds))

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("this lookup client is closed; create a new one")


class LookupClient(Client):
    """Synchronous client of a lookup service. All methods are thread-safe.

    Args:
        targets: ``host:port``; or the addresses of the replicas of one shard; or such a list for each
            shard.
        config: Settings, for example deadlines and the data type of rows.
        metrics: Receives the counters; None creates new ones.
        transport: Connections; None uses gRPC.
        clock: Clock for deadlines, in seconds.

    Examples:
        >>> import sparring_packed
        >>> from tempfile import TemporaryDirectory
        >>> from sparring import StepContainer, TableConfig
        >>> from sparring_serve import LookupClient, ServingConfig, open_server
        >>> with TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("item", dim=4))
        ...     _ = container.save(f"{folder}/trained")
        ...     _ = sparring_packed.write(f"{folder}/trained", f"{folder}/served/1")
        ...     config = ServingConfig(snapshots=f"{folder}/served")
        ...     with open_server(config, address="127.0.0.1:0") as server:
        ...         with LookupClient(server.address) as client:
        ...             client.pull({"item": [7, 8]}, deadline_seconds=5.0).rows["item"].shape
        (2, 4)
    """

    def __init__(
        self,
        targets: Targets,
        config: ClientConfig | None = None,
        *,
        metrics: ServingMetrics | None = None,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(targets, config, metrics, clock)
        self._transport = GrpcTransport(self.config) if transport is None else transport

    def pull(
        self,
        ids: Mapping[str, npt.ArrayLike],
        *,
        missing: str = "initial",
        version: str = "",
        deadline_seconds: float | None = None,
        sample: Sample | None = None,
    ) -> LookupReply:
        """Returns the rows of ids, by table.

        Distinct ids are sent concurrently to the shards that have them. If a replica does not reply,
        the call is sent to another one.

        Args:
            ids: ``(n,)`` integers per table, or strings, which are hashed by `sparring.hash_strings`;
                they may repeat.
            missing: Value of a key without a row: ``initial`` as in training, ``zero``, or
                ``only_found``, which returns zeros without sending them.
            version: Hash of a version that the servers keep; empty means the newest.
            deadline_seconds: Deadline of the whole lookup; None uses `ClientConfig.deadline_seconds`.
            sample: What a server with ``server.log`` may log for this lookup.

        Raises:
            UnknownTableError: A table is not served.
            InvalidArgumentError: Ids are neither integers nor strings, or the service rejects the
                call.
            DeadlineError: No replica of a shard replied in time, and `on_failure` is ``raise``.
            ReplicasFailedError: No replica of a shard replied, and `on_failure` is ``raise``.
            VersionGoneError: The version is not kept.
            StaleRowsError: The rows are older than `ClientConfig.max_staleness_seconds`.
            AccessError: The token is missing or wrong.
        """
        return self._run(
            self._session.pull_steps(
                ids, _missing(missing), version, deadline_seconds, sample=sample
            )
        )

    def scan(
        self, table: str, *, chunk_rows: int = 8192, deadline_seconds: float | None = None
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Streams all rows of a table, in one version over all shards.

        Args:
            table: Name of the table.
            chunk_rows: Maximum number of rows per chunk.
            deadline_seconds: Deadline of each chunk; None uses `ClientConfig.deadline_seconds`.

        Yields:
            ``(n,)`` ids and ``(n, dim)`` float32.

        Raises:
            InvalidArgumentError: `chunk_rows` is below 1, or the service does not support scans
                because the tables are trainable or are read from the backend of the training.
            VersionGoneError: The version is no longer kept, because servers switched to newer ones.
            UnknownTableError, DeadlineError, ReplicasFailedError, AccessError: As in `pull`.
        """
        version = ""
        for shard in range(self._session.shards.num_shards):
            cursor: bytes | None = b""
            while cursor is not None:
                position = (version, cursor)
                part = self._run(
                    self._session.scan_steps(table, shard, chunk_rows, position, deadline_seconds)
                )
                version, cursor = part.version, part.cursor or None
                if len(part.ids):
                    yield part.ids, part.rows

    def model(self, *, version: str = "", deadline_seconds: float = 30.0) -> ModelFiles:
        """Returns the parameters and the preprocessing of the model in one version.

        Together with a pull of the same version, a client has all parts of the model in this version.

        Args:
            version: Hash of a version that the servers keep; empty means the newest that all shards
                have.
            deadline_seconds: Deadline of the whole call.

        Raises:
            InvalidArgumentError: The service does not serve snapshots, because the tables are
                trainable or are read from the backend of the training.
            VersionGoneError: The version is no longer kept.
            DeadlineError, ReplicasFailedError, AccessError: As in `pull`.
        """
        return self._run(model_steps(self._session, version, deadline_seconds))

    def recommend(
        self,
        table: str,
        queries: Queries,
        k: int = 10,
        *,
        exclude: Sequence[npt.ArrayLike] | None = None,
        version: str = "",
        deadline_seconds: float = 5.0,
    ) -> Recommendations:
        """Returns the k rows of a table with the largest dot products with each query, in one
        version.

        Each shard compares all of its rows, and the best rows of all shards are merged. Larger
        products are better; for equal products, the smaller key is better.

        Args:
            table: Table whose rows are compared.
            queries: ``(q, dim)`` vectors; or a table and ``(q,)`` keys whose rows are the vectors:
                ``{"user": [7, 8]}``. Keys may be strings, as in `pull`.
            k: Number of rows per query, at least 1.
            exclude: Keys to exclude, for each query.
            version: Hash of a version that the servers keep; empty means the newest that all shards
                have.
            deadline_seconds: Deadline of the whole call.

        Raises:
            InvalidArgumentError: An argument is invalid; the number of queries or `k` exceeds the
                limit of the server; or the service does not support scans because the tables are
                trainable or are read from the backend of the training.
            VersionGoneError: The version is no longer kept.
            UnknownTableError, DeadlineError, ReplicasFailedError, AccessError: As in `pull`.
        """
        wanted = RecommendQuery(table, queries, k, exclude, version)
        return self._run(self._recommend_steps(wanted, deadline_seconds))

    def describe(self, *, deadline_seconds: float | None = None) -> Description:
        """Returns the descriptions of all shards: tables, versions, limits.

        Args:
            deadline_seconds: Deadline of the whole call; None uses `ClientConfig.deadline_seconds`.

        Raises:
            DeadlineError, ReplicasFailedError, AccessError: As in `pull`.
        """
        return self._run(self._session.describe_steps(deadline_seconds))

    def close(self) -> None:
        """Closes the connections. Further calls of other methods raise `ClosedError`."""
        self._is_closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, steps: Steps[_Result]) -> _Result:
        self._check_open()
        with call_span(_span_name(steps)):
            return run_steps(steps, self._transport)


class AsyncLookupClient(Client):
    """`LookupClient` for asyncio; belongs to the event loop that first uses it.

    `targets`, `config` and `metrics` have the same meaning as in `LookupClient`.

    Args:
        transport: Connections; None uses gRPC.
    """

    def __init__(
        self,
        targets: Targets,
        config: ClientConfig | None = None,
        *,
        metrics: ServingMetrics | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        super().__init__(targets, config, metrics, time.monotonic)
        self._transport = AsyncGrpcTransport(self.config) if transport is None else transport

    async def pull(
        self,
        ids: Mapping[str, npt.ArrayLike],
        *,
        missing: str = "initial",
        version: str = "",
        deadline_seconds: float | None = None,
        sample: Sample | None = None,
    ) -> LookupReply:
        """Returns the rows of ids, like `LookupClient.pull`.

        The arguments have the same meaning as in `LookupClient.pull`.

        Raises:
            SparringError: As in `LookupClient.pull`.
        """
        return await self._run(
            self._session.pull_steps(
                ids, _missing(missing), version, deadline_seconds, sample=sample
            )
        )

    async def model(self, *, version: str = "", deadline_seconds: float = 30.0) -> ModelFiles:
        """Returns parameters and preprocessing, like `LookupClient.model`.

        `version` and `deadline_seconds` are those of `LookupClient.model`.

        Raises:
            SparringError: As in `LookupClient.model`.
        """
        return await self._run(model_steps(self._session, version, deadline_seconds))

    async def recommend(
        self,
        table: str,
        queries: Queries,
        k: int = 10,
        *,
        exclude: Sequence[npt.ArrayLike] | None = None,
        version: str = "",
        deadline_seconds: float = 5.0,
    ) -> Recommendations:
        """Returns the best rows for each query, like `LookupClient.recommend`.

        `table`, `queries`, `k`, `exclude`, `version` and `deadline_seconds` are those of
        `LookupClient.recommend`.

        Raises:
            SparringError: As in `LookupClient.recommend`.
        """
        wanted = RecommendQuery(table, queries, k, exclude, version)
        return await self._run(self._recommend_steps(wanted, deadline_seconds))

    async def describe(self, *, deadline_seconds: float | None = None) -> Description:
        """Returns the descriptions of all shards, like `LookupClient.describe`.

        Args:
            deadline_seconds: See `LookupClient.describe`.

        Raises:
            SparringError: As in `LookupClient.describe`.
        """
        return await self._run(self._session.describe_steps(deadline_seconds))

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[_Result]) -> _Result:
        self._check_open()
        with call_span(_span_name(steps)):
            return await run_steps_async(steps, self._transport)


def _span_name(steps: Steps[Any]) -> str:
    """Returns ``client pull`` for the generator `pull_steps`."""
    name: str = getattr(steps, "__name__", "call")
    return f"client {name.removesuffix('_steps')}"
