"""Metrics of servers and clients. Their full names start with ``sparring_serving_``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sparring_cli import MetricCounter, MetricFamily, MetricRegistry, MetricSample

__all__ = ["HELP", "ServingMetrics"]

HELP = {
    "pulls_total": "Calls for rows, by table and status of gRPC",
    "pull_seconds": "Time of a call in the service, including its wait for a thread, without "
    "transport",
    "ids_total": "Ids that were requested",
    "found_total": "Ids that had a row",
    "recommends_total": "Calls for recommendations, by table and status of gRPC",
    "recommend_seconds": "Time of a call for recommendations in the service, including its wait for a "
    "thread",
    "queries_total": "Queries in calls for recommendations",
    "version_step": "Training step of the newest version",
    "staleness_seconds": "Time since the newest version was published",
    "refreshes_total": "Checks for a newer version, by result: taken, unchanged or refused",
    "refresh_seconds": "Time from the detection of the last newer version until it was served",
    "warm_up_seconds": "Time for which the newest version was read before it was served",
    "warm_up_ids": "Ids that were looked up during the warm-up",
    "warm_up_bytes": "Bytes of directories that were read during the warm-up",
    "is_behind": "1 if a newer version was rejected and an older one is served",
    "gate_is_closed": "1 if the gate withholds newer versions",
    "gate_is_pinned": "1 if a pinned version is served instead of the newest",
    "layers": "Number of layers of the newest version: a full version and its deltas",
    "mapped_bytes": "Bytes of mapped files of the newest version",
    "bytes_in_flight": "Bytes of requests and replies of calls in progress",
    "memory_bytes": "Memory of the process without pages of mapped files",
    "memory_limit_bytes": "Limit of the container's memory, or the memory of the machine",
    "start_seconds": "Time since 1970 at which the process started",
    "certificate_expires_seconds": "Time since 1970 at which the certificate of server.tls expires",
    "oldest_call_seconds": "Time for which the longest call in progress has occupied a thread",
    "rejected_total": "Calls that were rejected, by reason",
    "client_calls_total": "Calls of clients with a quota, by client and result: admitted or rejected",
    "client_ids_total": "Ids that clients with a quota requested or pushed, by client",
    "logged_total": "Requests in the sample of the log, by result: queued or dropped",
    "degraded_rows_total": "Rows of a client that no replica returned, by reason and replacement",
    "pushed_steps": "Pushes that this shard has applied",
    "pushes_waiting": "Pushes in the queue",
    "push_bytes_waiting": "Bytes of the pushes in the queue",
    "push_log_bytes": "Bytes of the push log of this shard",
    "push_log_gap": "1 while pushes are not logged, because the log is full or cannot resume",
    "is_leader": "1 if this replica of the shard answers pulls and pushes",
    "leader_epoch": "Number of the leader of the shard; each new leader increases it",
    "followers_in_sync": "Followers of this leader that have every acknowledged push",
    "lacks_follower": "1 if this leader has followers, and none is in sync",
    "follower_lag_records": "Records that the slowest follower of this leader does not have",
    "pushes_lost": "1 if acknowledged pushes may be missing, until a load or an accepted loss",
    "saves_total": "Scheduled saves of this service, by result: saved, skipped or failed",
    "save_age_seconds": "Time since the last scheduled save that did not fail",
    "rows_updated": "Rows that pushes changed since the server started or loaded",
    "gradients_not_admitted": "Gradients of keys without a row that were not admitted",
    "cache_hits": "Ids found in the caches of the backend, each counted once per call",
    "cache_misses": "Ids that were requested from the backend",
    "cache_filtered": "Ids that the filter of existing keys ruled out",
    "cache_rows": "Rows in the caches",
    "cache_notes": "Change notes that were processed",
    "cache_missed_notes": "Number of times that notes were missed or any row may have changed",
    "cache_reread_rows": "Cached rows that were read again because of notes",
    "cache_failed_polls": "Checks for notes that failed",
    "cache_refresh_seconds": "Time to process the last note",
    "cache_behind_seconds": "Time since all cached rows were as recent as the newest note",
    "failovers_total": "Calls of a client that were sent to another replica",
}
"""Name → description of all metrics."""

_PREFIX = "sparring_serving_"


class ServingMetrics:
    """Counters of a service or a client. All methods are thread-safe.

    Examples:
        >>> from sparring_serve import ServingMetrics
        >>> metrics = ServingMetrics()
        >>> metrics.note_pull(["item"], "OK", ids=(3, 2), seconds=0.01)
        >>> metrics.value("ids_total")
        3.0
    """

    def __init__(self) -> None:
        self.registry = MetricRegistry()
        counter = self._counter
        self._pulls = counter("pulls_total", "table", "code")
        self._seconds = self.registry.histogram(_PREFIX + "pull_seconds", HELP["pull_seconds"])
        self._recommends = counter("recommends_total", "table", "code")
        self._recommend_seconds = self.registry.histogram(
            _PREFIX + "recommend_seconds", HELP["recommend_seconds"]
        )
        self._queries = counter("queries_total")
        self._ids, self._found = counter("ids_total"), counter("found_total")
        self._refreshes = counter("refreshes_total", "result")
        self._rejected = counter("rejected_total", "reason")
        self._client_calls = counter("client_calls_total", "client", "result")
        self._client_ids = counter("client_ids_total", "client")
        self._logged = counter("logged_total", "result")
        self._degraded = counter("degraded_rows_total", "reason", "given")
        self._failovers = counter("failovers_total")
        self._saves = counter("saves_total", "result")
        self._gauges: list[Callable[[], Mapping[str, float]]] = []
        self.registry.add_source(self._read_gauges)

    def note_pull(
        self, tables: Iterable[str], code: str, ids: tuple[int, int], seconds: float
    ) -> None:
        """Counts one call.

        Args:
            tables: Requested tables that exist.
            code: Status of the call.
            ids: Number of requested ids, and number of those that have a row.
            seconds: Duration of the call.
        """
        for table in tables:
            self._pulls.add(table=table, code=code)
        self._ids.add(ids[0])
        self._found.add(ids[1])
        self._seconds.observe(seconds)

    def note_recommend(self, table: str, code: str, num_queries: int, seconds: float) -> None:
        """Counts one call for recommendations.

        Args:
            table: Table whose rows were compared; empty if it does not exist.
            code: Status of the call.
            num_queries: Number of queries.
            seconds: Duration of the call.
        """
        self._recommends.add(table=table, code=code)
        self._queries.add(num_queries)
        self._recommend_seconds.observe(seconds)

    def count_rejected(self, reason: str) -> None:
        """Counts one rejected call.

        Args:
            reason: Reason of the rejection, for example ``max_bytes``.
        """
        self._rejected.add(reason=reason)

    def count_client_call(self, client: str, *, is_admitted: bool) -> None:
        """Counts a call of a client with a quota.

        Args:
            client: Name of the client.
            is_admitted: Whether its quota was not used up.
        """
        self._client_calls.add(client=client, result="admitted" if is_admitted else "rejected")

    def count_client_ids(self, client: str, num_ids: int) -> None:
        """Counts ids of a call of a client with a quota.

        Args:
            client: Name of the client.
            num_ids: Number of ids.
        """
        self._client_ids.add(num_ids, client=client)

    def count_logged(self, result: str) -> None:
        """Counts a request that was selected for the log.

        Args:
            result: ``queued`` or ``dropped``.
        """
        self._logged.add(result=result)

    def count_refresh(self, result: str) -> None:
        """Counts a check for a newer version.

        Args:
            result: ``taken``, ``unchanged`` or ``refused``.
        """
        self._refreshes.add(result=result)

    def count_save(self, result: str, num_saves: int = 1) -> None:
        """Counts scheduled saves.

        Args:
            result: ``saved``, ``skipped`` or ``failed``.
            num_saves: Number of saves; 0 only exports the counter.
        """
        self._saves.add(num_saves, result=result)

    def count_degraded(self, num_rows: int, reason: str, given: str) -> None:
        """Counts rows that no replica returned.

        Args:
            num_rows: Number of the rows.
            reason: Error because of which they were not returned.
            given: Replacement: ``failed``, ``stale`` and others, as in `RowStatus`.
        """
        self._degraded.add(num_rows, reason=reason, given=given)

    def count_failover(self) -> None:
        """Counts one call of a client that was sent to another replica."""
        self._failovers.add()

    def add_gauges(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Registers a function that returns gauges.

        Args:
            read: Returns values by name. It is called whenever metrics are read.
        """
        self._gauges.append(read)

    def value(self, name: str, **labels: str) -> float:
        """Returns one value, 0 if nothing was counted; omitted labels are summed over.

        Args:
            name: Name of the metric without the prefix ``sparring_serving_``.
            **labels: Labels and their values.
        """
        return self.registry.value(_PREFIX + name, **labels)

    def gauges(self) -> dict[str, float]:
        """Returns the current values of all gauges."""
        return {name: value for read in self._gauges for name, value in read().items()}

    def _counter(self, name: str, *labels: str) -> MetricCounter:
        return self.registry.counter(_PREFIX + name, HELP[name], labels)

    def _read_gauges(self) -> Iterator[MetricFamily]:
        for name, value in self.gauges().items():
            yield MetricFamily(_PREFIX + name, "gauge", HELP[name], [MetricSample({}, value)])
