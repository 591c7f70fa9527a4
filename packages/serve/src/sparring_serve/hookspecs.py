"""Hooks of sparring-serve: evaluators of the quality of a model over rows that are to be served.

A plugin implements them with ``@hookimpl(optionalhook=True)``, so that it also loads where
sparring-serve is not installed.
"""

# A hook specification is a signature and its description; it has no body to return from.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparring.contracts import Descriptor, hookspec

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["EvaluatorDescriptor", "MetricValue", "sparring_register_evaluators"]


@dataclass(frozen=True, slots=True)
class MetricValue:
    """Value of a metric of a model.

    Args:
        metric: name of the metric, as ``auc``.
        value: of it.
        is_higher_better: of two values.
    """

    metric: str
    value: float
    is_higher_better: bool

    def loss_of(self, other: MetricValue) -> float:
        """Loss of `other` against this one; below 0 where it is better."""
        return (self.value - other.value) * (1 if self.is_higher_better else -1)


@dataclass(frozen=True, kw_only=True)
class EvaluatorDescriptor(Descriptor):
    """Evaluator of the models of a training program. `name` is the program's: ``train``.

    `quality(config, snapshot_url, storage, plugin_manager)` makes the model that the file `config`
    describes, with ordinary parameters of the snapshot and rows that `storage` has, and evaluates
    it on the configuration's test samples. It changes nothing.
    """

    quality: Callable[[str, str, Mapping[str, Any], PluginManager], MetricValue]


@hookspec
def sparring_register_evaluators() -> Sequence[EvaluatorDescriptor]:
    """Evaluators that this plugin offers, one for each training program."""
