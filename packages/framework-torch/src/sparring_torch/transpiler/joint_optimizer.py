"""`JointOptimizer`: the user's optimizer for rows of tables and for the remaining parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparring import StepContainer
from sparring.adapter import DistributionReport
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.lookup.row_gradients import Anchor
from sparring_torch.optim.combined_optimizer import OptimizerOfParts
from sparring_torch.optim.known_optimizers import KnownOptimizer
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.state.sharded_tensors import shard_state
from sparring_torch.transpiler.service import find_hyper

__all__ = ["JointOptimizer"]

_OWN = ("params", "param_names")


class JointOptimizer(OptimizerOfParts):
    """Replaces the user's optimizer; rows and parameters take their steps together.

    `param_groups` correspond to the groups of the user's optimizer. Changes to a group, for example by a
    scheduler, also apply to the rows of its embeddings. `step` steps the rows first: if this raises, no
    parameter has changed.

    Args:
        dense: the user's optimizer, from whose groups the embeddings were removed.
        rows: optimizer of the rows.
        places: for each group of `rows`, the number of the group of `dense` from which its
            embeddings were removed.
        report: report on the modules.
        known: finds the update method of `rows` for a group; None if `rows` uses the class of `dense`.
    """

    def __init__(
        self,
        dense: torch.optim.Optimizer,
        rows: Optimizer,
        places: Sequence[int],
        report: DistributionReport,
        known: KnownOptimizer | None = None,
    ) -> None:
        self.dense, self.rows, self.report, self._known = dense, rows, report, known
        self._parts = {"rows": rows, "dense": dense}
        self._places = places
        self._is_made = False
        groups = [
            {name: each for name, each in group.items() if name != "param_names"}
            for group in dense.param_groups
        ]
        for place, group in enumerate(groups):
            group["params"] = list(group["params"])
            # Parameters without elements, where gradient scalers find the gradients of rows.
            for own, of in zip(rows.param_groups, places, strict=True):
                group["params"] += own["params"] if of == place else []
        super().__init__(groups, dict(dense.defaults))
        self._is_made = True

    @property
    def container(self) -> StepContainer:
        """The container of the tables."""
        return self.rows.container

    @property
    def state(self) -> Any:
        """State of each parameter; the state of rows is stored with the rows."""
        return self.dense.state if hasattr(self, "dense") else {}

    @state.setter
    def state(self, state: object) -> None:
        """Ignores the state that torch's constructor sets."""

    def _write_groups(self) -> None:
        """Copies hyper-parameters from `param_groups` to both parts."""
        for shown, group in zip(self.param_groups, self.dense.param_groups, strict=True):
            group.update({name: each for name, each in shown.items() if name not in _OWN})
        for own, place in zip(self.rows.param_groups, self._places, strict=True):
            shown = self.param_groups[place]
            values = {name: each for name, each in shown.items() if name not in _OWN}
            own.update(values if self._known is None else find_hyper(self._known, shown))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of ordinary parameters; parameters that represent rows are skipped."""
        if not self._is_made:
            return super().add_param_group(param_group)
        parameters = param_group["params"]
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        kept = [each for each in parameters if not isinstance(each, Anchor)]
        self.dense.add_param_group({**param_group, "params": kept})
        super().add_param_group({**param_group, "params": kept})
        return None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a `state_dict`.

        Raises:
            InvalidArgumentError: it belongs to another optimizer; nothing is changed.
        """
        if set(state_dict) != {"rows", "dense"}:
            raise InvalidArgumentError(
                f"load_state_dict: found {', '.join(map(str, state_dict)) or 'nothing'}, expected rows "
                "and dense; load a state_dict from before `distribute` before you call it"
            )
        self.rows.load_state_dict(state_dict["rows"])
        self.dense.load_state_dict(shard_state(state_dict["dense"], self.dense))
        for shown, group in zip(self.param_groups, self.dense.param_groups, strict=True):
            shown.update({name: each for name, each in group.items() if name not in _OWN})

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UnsupportedError(
            "a distributed optimizer cannot be copied or pickled, because it belongs to its model; "
            "save its state_dict()"
        )
