"""Evaluates a model before it is published: the cost of quantization, and whether it got worse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import sparring_packed
from sparring import Snapshot, list_snapshots, open_snapshot
from sparring.errors import SnapshotError
from sparring_serve import hookspecs
from sparring_serve.hookspecs import EvaluatorDescriptor, MetricValue
from sparring_serve.publishing.quality_limits import QualityLimits

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["EvaluationCheck", "EvaluationReport", "MetricLossError"]

_OPTIONS = sparring_packed.WriteOptions(filter_rate=None)


class MetricLossError(SnapshotError):
    """A metric is worse than allowed; nothing was published."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Metric of a version before it is published.

    Args:
        metric: Name of the metric.
        before: Value with the trained rows.
        after: Value with the served rows.
        loss: How much worse `after` is; negative if it is better.
        bytes_before: Size of data files with the trained rows.
        bytes_after: Size of data files with the served rows.
        served: Value of the version that is served now, if it was compared.
    """

    metric: str
    before: float
    after: float
    loss: float
    bytes_before: int
    bytes_after: int
    served: float | None = None


@dataclass(frozen=True, slots=True)
class _Measured:
    """A model with its trained rows, and with its served rows."""

    before: MetricValue
    after: MetricValue
    bytes_before: int
    bytes_after: int


class EvaluationCheck:
    """Evaluates a run's model with the rows of a snapshot, before and after quantization.

    Args:
        config: Configuration of the run, with the model and the test samples; None: the one in the
            snapshot.
        limits: What is published.
        plugin_manager: Plugin manager that finds the evaluator.

    Raises:
        PluginError: There is no evaluator, because sparring-train is not installed.
    """

    def __init__(
        self, config: str | None, limits: QualityLimits, plugin_manager: PluginManager
    ) -> None:
        plugin_manager.extend(hookspecs, {"evaluators": EvaluatorDescriptor})
        self._evaluator = plugin_manager.find("evaluators", "train", EvaluatorDescriptor)
        self._config, self._limits, self._manager = config, limits, plugin_manager
        self._measured: tuple[str, _Measured] | None = None
        self._served: tuple[tuple[str, str], MetricValue] | None = None

    def check(
        self,
        snapshot: Snapshot,
        quantize: Mapping[str, str],
        served: sparring_packed.ServingManifest | str | None = None,
    ) -> EvaluationReport:
        """Measures a snapshot. Repeated calls for the same snapshot return the first result.

        The rows of each measurement are written to the folder for temporary files, and removed.

        Args:
            snapshot: Snapshot to publish.
            quantize: Table → data type.
            served: The served version, if there is one; or its name, if its manifest cannot be read.

        Raises:
            MetricLossError: A limit is exceeded, or a metric is NaN.
            SnapshotError: The served version cannot be compared.
            SparringError: The configuration, its data or the snapshot cannot be read.
        """
        if isinstance(served, str):
            if self._limits.max_drop is not None:
                raise _not_comparable(
                    snapshot,
                    f"{served} cannot be compared, because its manifest cannot be read",
                    "if it is pinned, run sparring publish --unpin; otherwise",
                )
            served = None
        if self._measured is None or self._measured[0] != snapshot.manifest_hash:
            self._measured = snapshot.manifest_hash, self._measure(snapshot, quantize)
        found, limits = self._measured[1], self._limits
        loss = found.before.loss_of(found.after)
        if limits.max_loss is not None and not loss <= limits.max_loss:
            chosen = ", ".join(f"{table}={dtype}" for table, dtype in quantize.items())
            raise _refused(
                snapshot,
                f"with {chosen}, {found.before.metric} changes from {found.before.value:.6f} to "
                f"{found.after.value:.6f}, a loss of {loss:.6f}, above --max-metric-loss "
                f"{limits.max_loss}; use more bits, or increase --max-metric-loss",
            )
        low = limits.find_low_metric(found.after)
        if low:
            raise _refused(snapshot, f"{low}; train longer, or decrease --min")
        compared = None
        if limits.max_drop is not None and served is not None:
            compared = self._of_served(snapshot, served)
            if not compared.loss_of(found.after) <= limits.max_drop:
                raise _refused(
                    snapshot,
                    f"{compared.metric} is {found.after.value:.6f}, and {compared.value:.6f} of the "
                    f"served version of step {served.step:,}, worse by more than --not-worse-than-served "
                    f"{limits.max_drop:g}; train longer, or increase it",
                )
        return EvaluationReport(
            found.before.metric,
            found.before.value,
            found.after.value,
            loss,
            found.bytes_before,
            found.bytes_after,
            None if compared is None else compared.value,
        )

    def _measure(self, snapshot: Snapshot, quantize: Mapping[str, str]) -> _Measured:
        # Serving snapshots do not support float64 and use float32 instead.
        plain = {name: "fp32" for name, each in snapshot.tables.items() if each.dtype == "float64"}
        before, bytes_before = self._quality(snapshot, plain)
        chosen = {**plain, **quantize}
        after, bytes_after = (
            (before, bytes_before) if chosen == plain else self._quality(snapshot, chosen)
        )
        return _Measured(before, after, bytes_before, bytes_after)

    def _of_served(
        self, snapshot: Snapshot, served: sparring_packed.ServingManifest
    ) -> MetricValue:
        """Returns the metrics of the served version on the test samples of a snapshot."""
        key = snapshot.manifest_hash, served.hash
        if self._served is None or self._served[0] != key:
            source = _find_source(snapshot, served)
            if source is None:
                folder = snapshot.url.rpartition("/")[0]
                raise _not_comparable(
                    snapshot,
                    f"of step {served.step:,} cannot be compared, because its snapshot "
                    f"{served.source.name} is not in {folder}",
                    "increase snapshots.keep of the run, and",
                )
            types = {each.name: each.dtype for each in served.tables}
            types = {name: types[name] for name in source.tables if name in types}
            self._served = key, self._quality(source, types, snapshot.url)[0]
        return self._served[1]

    def _quality(
        self, snapshot: Snapshot, dtypes: Mapping[str, str], rows_of: str | None = None
    ) -> tuple[MetricValue, int]:
        with TemporaryDirectory(prefix="sparring-quality-") as folder:
            url = f"{folder}/rows"
            written = sparring_packed.write(snapshot.url, url, quantize=dtypes, options=_OPTIONS)
            storage = {"backend": "packed", "path": url, "verify": "open"}
            arguments = [self._config, snapshot.url, storage, self._manager]
            if rows_of is not None:
                arguments.append(rows_of)
            quality = self._evaluator.quality(*arguments)
            return quality, sum(written.size_bytes.values())


def _refused(snapshot: Snapshot, why: str) -> MetricLossError:
    return MetricLossError(f"snapshot {snapshot.url} is not published: {why}", url=snapshot.url)


def _not_comparable(snapshot: Snapshot, why: str, fix: str) -> SnapshotError:
    return SnapshotError(
        f"snapshot {snapshot.url} is not published: the served version {why}; {fix} publish once with "
        "--min instead of --not-worse-than-served",
        url=snapshot.url,
    )


def _find_source(snapshot: Snapshot, served: sparring_packed.ServingManifest) -> Snapshot | None:
    """Returns the snapshot that the served version was written from; None if it was removed."""
    folder = snapshot.url.rpartition("/")[0]
    for url in list_snapshots(folder):
        if url.rpartition("/")[2] == served.source.name:
            found = open_snapshot(url)
            return found if found.manifest_hash == served.source.hash else None
    return None
