"""`JointOptimizer`: the user's optimizer, over the rows of tables and over what remained of it."""

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
    """One optimizer in place of one: rows and parameters take their steps together.

    `param_groups` are those of the user's optimizer, as many and in the same order: what is written to a
    group, by a scheduler or by hand, is the rows' too where the group had embeddings. `step` steps the
    rows first, because it may refuse a step, and then no parameter has moved.

    Args:
        dense: the user's optimizer, from whose groups the embeddings were taken.
        rows: of the tables.
        places: which group of `dense` the embeddings were in, for each group of `rows`.
        report: what became of the modules.
        known: where `rows` steps by an update method: which, for a group as it is; None: by the class
            of `dense`.
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
            # Without elements: gradient scalers find the gradients of rows there.
            for own, of in zip(rows.param_groups, places, strict=True):
                group["params"] += own["params"] if of == place else []
        super().__init__(groups, dict(dense.defaults))
        self._is_made = True

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""
        return self.rows.container

    @property
    def state(self) -> Any:
        """State of each parameter; that of rows is with the rows."""
        return self.dense.state if hasattr(self, "dense") else {}

    @state.setter
    def state(self, state: object) -> None:
        """Ignores what torch's constructor sets."""

    def _write_groups(self) -> None:
        """Brings hyper-parameters, as they are in `param_groups`, to both parts."""
        for shown, group in zip(self.param_groups, self.dense.param_groups, strict=True):
            group.update({name: each for name, each in shown.items() if name not in _OWN})
        for own, place in zip(self.rows.param_groups, self._places, strict=True):
            shown = self.param_groups[place]
            values = {name: each for name, each in shown.items() if name not in _OWN}
            own.update(values if self._known is None else find_hyper(self._known, shown))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds ordinary parameters, as torch's; what stands for rows is left out."""
        if not self._is_made:
            return super().add_param_group(param_group)
        parameters = param_group["params"]
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        kept = [each for each in parameters if not isinstance(each, Anchor)]
        self.dense.add_param_group({**param_group, "params": kept})
        super().add_param_group({**param_group, "params": kept})
        return None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            InvalidArgumentError: it is of another optimizer; nothing is changed.
        """
        if set(state_dict) != {"rows", "dense"}:
            raise InvalidArgumentError(
                f"this state_dict has {', '.join(map(str, state_dict)) or 'nothing'}, expected rows and "
                "dense; one that was saved before `distribute` is loaded before it"
            )
        self.rows.load_state_dict(state_dict["rows"])
        self.dense.load_state_dict(shard_state(state_dict["dense"], self.dense))
        for shown, group in zip(self.param_groups, self.dense.param_groups, strict=True):
            shown.update({name: each for name, each in group.items() if name not in _OWN})

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UnsupportedError(
            "a distributed optimizer is not copied or pickled, as it belongs to its model; save its "
            "state_dict()"
        )
