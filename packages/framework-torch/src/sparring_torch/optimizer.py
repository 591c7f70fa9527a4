"""`Optimizer`: torch's own optimizers over the rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import nn

from sparring import StepContainer, Storage
from sparring.errors import InvalidArgumentError
from sparring.step import NonFinite, TableUpdate
from sparring_torch.probing import probe
from sparring_torch.row_state import RowState
from sparring_torch.shadow_parameter import ShadowParameter
from sparring_torch.suggestions import suggestion
from sparring_torch.train_agent import TrainAgent, agents_of

__all__ = ["Optimizer"]

_ROWS_ARE_IN = (
    "the storages of the tables: a snapshot of them holds embeddings and the state of each row; "
    "this state_dict holds hyper-parameters, and what the optimizer keeps for a whole table"
)

_Loss = TypeVar("_Loss")


class Optimizer(torch.optim.Optimizer):
    """Updates the rows of tables with an optimizer of torch, whatever their number.

    Use it as any optimizer of torch, beside one for the ordinary parameters::

        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)

    `step` gathers the rows that got gradients since the last step, and their optimizer state,
    lets the native optimizer update them as one parameter per table, and stores both. Several
    ``backward()`` before one ``step()`` add up. Learning-rate schedulers see the native
    optimizer's `param_groups`.

    What differs from a dense parameter
        - Rows without a gradient in a step do not move: no momentum, no weight decay, and Adam
          is lazy, as `torch.optim.SparseAdam` is. `step` counts the steps of a table, not of a
          row.
        - The state of a new row is what a step with a zero gradient leaves: zeros for Adam,
          `initial_accumulator_value` for Adagrad.
        - `step` uses gradients up; it does not wait for `zero_grad` to forget them.
        - Rows are no parameters: `clip_grad_norm_` and `weight_decay` of others do not see them.

    Args:
        modules: a module, or several, that hold tables. All of their tables join one container,
            and a step changes the rows of all of them or of none.
        native: an optimizer class of torch or of its kind that works element by element: SGD,
            Adagrad, Adam, AdamW, RMSprop, Adadelta, NAdam, RAdam, Adamax and others.
        non_finite_gradients: ``raise``: a NaN or infinite gradient raises
            `NonFiniteGradientError` before any row changes; ``skip``: the rows concerned stay as
            they are and are counted. None leaves it to the container, which raises.
        **hyperparameters: those of `native`.

    Raises:
        InvalidArgumentError: no tables in `modules`; tables that live in different containers, or
            two different ones of one name; hyper-parameters that `native` refuses; rows with
            another optimizer's state.
        UnsupportedError: `native` keeps a state that cannot be cut into rows, or moves a row
            depending on others (LBFGS, Adafactor, LAMB).
    """

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        native: type[torch.optim.Optimizer],
        *,
        non_finite_gradients: str | None = None,
        **hyperparameters: Any,
    ) -> None:
        if not (isinstance(native, type) and issubclass(native, torch.optim.Optimizer)):
            raise InvalidArgumentError(
                f"Optimizer takes a class of torch.optim, as torch.optim.Adagrad, found {native!r}"
            )
        agents = agents_of(modules)
        self.container = _joined(agents)
        if non_finite_gradients is not None:
            self.container.non_finite = _policy(non_finite_gradients)
        names = list(dict.fromkeys(name for agent in agents for name in agent.table_names))
        given = {
            each.table.name: each.storage
            for agent in agents
            for each in agent.declarations
            if isinstance(each.storage, Storage)
        }
        self._shadows = self._make_shadows(names, native, hyperparameters, given)
        parameters = [shadow.parameter for shadow in self._shadows.values()]
        self._native = native(parameters, **hyperparameters)
        # The step without the hooks around it: those of this object run already.
        self._native_step = _unhooked(native)
        super().__init__(parameters, {})
        self.defaults = self._native.defaults
        self.param_groups = self._native.param_groups
        self.state = self._native.state
        for shadow in self._shadows.values():
            shadow.adopt(self.state)

    def _make_shadows(
        self,
        names: Sequence[str],
        native: type[torch.optim.Optimizer],
        hyperparameters: dict[str, Any],
        given: dict[str, Storage],
    ) -> dict[str, ShadowParameter]:
        layouts: dict[torch.dtype, RowState] = {}
        shadows = {}
        for name in names:
            table = self.container.tables[name]
            dtype = getattr(torch, table.dtype)
            if dtype not in layouts:
                layouts[dtype] = probe(native, hyperparameters, dtype)
            layout = layouts[dtype]
            if name in given:
                _check_width(given[name], layout.width(table.dim), native)
            self.container.set_state(
                name, np.array(layout.initial_row(table.dim), table.numpy_dtype)
            )
            # Opened now: a backend that is missing should not be found out by the first step.
            self.container.storage(name)
            shadows[name] = ShadowParameter(table.dim, dtype, layout)
        return shadows

    # -- the life of a step ---------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        """Applies the gradients since the last step to the rows of all tables.

        Args:
            closure: computes the loss anew, with gradients, and returns it.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise.
            CapacityError: a storage is full and may not evict.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.container.apply(self._update)
        return loss

    def _update(self, updates: Sequence[TableUpdate]) -> None:
        loaded = []
        for update in updates:
            shadow = self._shadows.get(update.table.name)
            if shadow is None:
                raise InvalidArgumentError(
                    f"table {update.table.name!r} has gradients, but its module was not given to "
                    f"this Optimizer; it updates {', '.join(self._shadows)}",
                    table=update.table.name,
                )
            shadow.load(update.rows, update.gradients)
            loaded.append(shadow)
        try:
            if loaded:
                self._native_step(self._native)
            for shadow in loaded:
                shadow.store()
        finally:
            for shadow in loaded:
                shadow.unload()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step. Forward passes under way stay valid.

        Args:
            set_to_none: accepted for torch's sake; there is nothing else to set.
        """
        for name in self._shadows:
            self.container.resources.drop(name)

    # -- what can be saved ------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Hyper-parameters, and the optimizer's scalars of each table: not the rows.

        Embeddings and the optimizer state of each row live in the storages, where snapshots save
        them; the entry ``rows_are_in`` says so to whoever opens a file.

        Returns:
            ``native``: the optimizer's name; ``param_groups``: as torch has them, with table
            names in place of parameters; ``state``: table → scalars, as ``step``; ``rows_are_in``.
        """
        names = list(self._shadows)
        return {
            "native": type(self._native).__name__,
            "param_groups": [{**group, "params": list(names)} for group in self.param_groups],
            "state": {name: shadow.scalars() for name, shadow in self._shadows.items()},
            "rows_are_in": _ROWS_ARE_IN,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave.

        Raises:
            InvalidArgumentError: it is of another native optimizer, or of other tables; nothing
                is changed.
        """
        self._check_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})
        for name, shadow in self._shadows.items():
            shadow.set_scalars(state_dict["state"][name])

    def _check_state_dict(self, state_dict: dict[str, Any]) -> None:
        native = type(self._native).__name__
        found = state_dict.get("native")
        if found != native:
            raise InvalidArgumentError(
                f"this state_dict is of optimizer {found!r}, but the tables are updated by "
                f"{native!r}; make the Optimizer with the same class",
                native=found,
            )
        tables = state_dict.get("state", {})
        for name in tables:
            if name not in self._shadows:
                raise InvalidArgumentError(
                    f"this state_dict has table {name!r}, which no module holds; "
                    + suggestion(name, self._shadows),
                    table=name,
                )
        for name, shadow in self._shadows.items():
            missing = shadow.scalars().keys() - tables.get(name, {}).keys()
            if name not in tables or missing:
                raise InvalidArgumentError(
                    f"this state_dict has {sorted(tables.get(name, ())) or 'nothing'} for table "
                    f"{name!r}, expected {sorted(shadow.scalars()) or 'an empty entry'}",
                    table=name,
                )
        if len(state_dict.get("param_groups", ())) != len(self.param_groups):
            raise InvalidArgumentError(
                f"this state_dict has {len(state_dict.get('param_groups', ()))} param_groups, "
                f"expected {len(self.param_groups)}"
            )


def _unhooked(native: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The optimizer's own step, without what torch wraps around it for hooks and profiling."""
    step: Any = native.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def _policy(name: str) -> NonFinite:
    try:
        return NonFinite(name)
    except ValueError as error:
        raise InvalidArgumentError(
            f"non_finite_gradients must be 'raise' or 'skip', found {name!r}"
        ) from error


def _check_width(storage: Storage, state_width: int, native: type[torch.optim.Optimizer]) -> None:
    if storage.table.state_width != state_width:
        raise InvalidArgumentError(
            f"the storage given for table {storage.table.name!r} has rows with "
            f"{storage.table.state_width} elements of state, but {native.__name__} keeps "
            f"{state_width}; open it with state_width={state_width} in its TableConfig",
            table=storage.table.name,
            state_width=state_width,
        )


def _joined(agents: Sequence[TrainAgent]) -> StepContainer:
    """The one container of all agents; those that are free join it."""
    bound = [agent for agent in agents if agent.is_container_given or agent.holds_rows]
    containers = {id(agent.container): agent.container for agent in bound}
    if len(containers) > 1:
        names = sorted(name for agent in bound for name in agent.table_names)
        raise InvalidArgumentError(
            f"tables {names} live in {len(containers)} containers, and one step must change all "
            "of them; give all modules one container=… when making them",
            tables=names,
        )
    if containers:
        container = next(iter(containers.values()))
    else:
        made = [agent for agent in agents if agent.has_container]
        container = made[0].container if made else StepContainer()
    for agent in agents:
        agent.join(container)
    return container
