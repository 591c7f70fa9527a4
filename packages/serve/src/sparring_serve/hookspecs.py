"""Hooks of sparring-serve: evaluators that measure and read the models of a training program.

Implement them with ``@hookimpl(optionalhook=True)``, so that the plugin also loads if sparring-serve
is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    from sparring import PluginManager, Snapshot
    from sparring_packed import ComputedTable

__all__ = ["EvaluatorDescriptor", "MetricValue", "sparring_register_evaluators"]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """Value of a metric of a model.

    Args:
        metric: Name of the metric, for example ``auc``.
        value: Value of the metric.
        is_higher_better: Whether higher values are better.
        others: Other metrics of the same evaluation.

    Examples:
        >>> from sparring_serve import MetricValue
        >>> served = MetricValue("auc", 0.75, is_higher_better=True)
        >>> served.loss_of(MetricValue("auc", 0.5, is_higher_better=True))
        0.25
    """

    metric: str
    value: float
    is_higher_better: bool
    others: tuple[MetricValue, ...] = ()

    def loss_of(self, other: MetricValue) -> float:
        """Returns how much worse `other` is than this value; negative if it is better.

        Args:
            other: Value of the same metric for another model.
        """
        return (self.value - other.value) * (1 if self.is_higher_better else -1)


@dataclass(frozen=True, kw_only=True)
class EvaluatorDescriptor(Descriptor):
    """Evaluator for models of a training program. `name` is the program, for example ``train``.

    `quality(config, snapshot_url, storage, plugin_manager, rows_of)` builds the model of the
    configuration file `config`, with the dense parameters of the snapshot and the rows of `storage`, and
    evaluates it on the test samples of the configuration. It changes nothing. If `config` is None, the
    configuration is read from the snapshot. `rows_of` is the URL of another snapshot with the test
    samples and the configuration, and is passed only if it differs.

    `model_files(snapshot, plugin_manager)` returns the files of the model for a serving snapshot, by
    kind: ``parameters`` and ``preprocessing``; nothing if the program did not save the snapshot. None:
    not supported.

    `computed_tables(snapshot, plugin_manager)` returns tables that the model computes from its rows and
    parameters, such as the vectors of items. It is called if `model_files` returned files. None: not
    supported.
    """

    quality: Callable[..., MetricValue]
    model_files: Callable[[Snapshot, PluginManager], Mapping[str, bytes]] | None = None
    computed_tables: Callable[[Snapshot, PluginManager], Mapping[str, ComputedTable]] | None = None


@hookspec
def sparring_register_evaluators() -> Sequence[EvaluatorDescriptor]:
    """Returns the evaluators of this plugin, one per training program."""
