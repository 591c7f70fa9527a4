"""`Optimizer`: torch's own optimizers over the rows of tables."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from sparring.adapter import (
    collect_open_storages,
    format_suggestion,
    join_container,
    non_finite_policy,
    resolve_method,
)
from sparring.contracts import UpdateMethod
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.lookup.row_gradients import Anchor, RowGradients
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.table_module import list_table_modules
from sparring_torch.optim.fused_updater import FusedUpdater
from sparring_torch.optim.native_updater import NativeUpdater

__all__ = ["Optimizer", "to_update_method"]

_ROWS_ARE_IN = (
    "the state_dict of the model, or a snapshot: embeddings and the state of each row; "
    "this state_dict holds hyper-parameters, and what the optimizer keeps for a whole table"
)

_Loss = TypeVar("_Loss")

_of_agents = weakref.WeakKeyDictionary[TrainAgent, "weakref.ref[Optimizer]"]()


class Optimizer(torch.optim.Optimizer):
    """Updates the rows of tables with an optimizer of torch, or with an update method.

    Use it as any optimizer of torch, together with one for the ordinary parameters::

        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)
        faster = sparring_torch.Optimizer(model, "rowwise_adagrad", lr=0.05)

    With a class of torch, `step` gathers the rows that got gradients since the last step, and
    their optimizer state, lets the native optimizer update them as one parameter per table, and
    stores both. Several ``backward()`` before one ``step()`` add up. Learning-rate schedulers see
    the native optimizer's `param_groups`.

    `torch.optim.Adam`, AdamW, SparseAdam, Adagrad, SGD and RMSprop are known: an update method that
    gives the same rows but for rounding takes their steps, without gathering rows. The shadow of rows
    is taken, as for all others, by subclasses; with amsgrad, maximize, dampening, centered, RMSprop's
    momentum, capturable or differentiable; where a table has an admission filter and the
    optimizer counts steps; in steps with a closure or with hooks. `routes` says
    which it is. ``fused=True`` and ``foreach=True`` are accepted, and change nothing.

    What differs from a dense parameter
        - Rows without a gradient in a step do not move: no momentum, no weight decay, and Adam
          is lazy, as `torch.optim.SparseAdam` is. `step` counts the steps of a table, not of a
          row.
        - The state of a new row is what a step with a zero gradient leaves: zeros for Adam,
          `initial_accumulator_value` for Adagrad.
        - `step` uses gradients up, and does not keep them for the next step, to which torch would add
          them: a step with new gradients raises if no `zero_grad` was called since the step before. That
          of the model, of this optimizer or of one that was given ``model.parameters()`` counts.
        - Rows are no parameters: the `weight_decay` of other optimizers does not reach them. Clipping
          by the norm, `torch.amp.GradScaler` and `requires_grad_` do, through a parameter
          without elements in each module with tables (`clip_grad_norm_`).

    Args:
        modules: a module, or several, that hold tables. All of their tables join one container,
            and a step changes the rows of all of them or of none.
        native: an optimizer class of torch or of its kind that works element by element: SGD,
            Adagrad, Adam, AdamW, RMSprop, Adadelta, NAdam, RAdam, Adamax and others. Or the name
            of an update method of sparring, as ``rowwise_adagrad`` (`sparring.updates`), which
            changes each row in one visit, without gathering rows into a parameter; each table
            then has a param_group of its own.
        non_finite_gradients: ``raise``: a NaN or infinite gradient raises
            `NonFiniteGradientError` before any row changes; ``skip``: the rows concerned stay as
            they are and are counted. None leaves it to the container, which raises.
        tables: table → hyper-parameters of its own; with these, each table has a param_group.
        update: ``auto``; or ``shadow``: a class of torch updates rows by its own code always.
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
        native: type[torch.optim.Optimizer] | str | UpdateMethod,
        *,
        non_finite_gradients: str | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        update: str = "auto",
        **hyperparameters: Any,
    ) -> None:
        native = to_update_method(native)
        if not _is_native(native) and not isinstance(native, (str, UpdateMethod)):
            raise InvalidArgumentError(
                "Optimizer takes a class of torch.optim, as torch.optim.Adagrad, or the name of an "
                f"update method, as 'rowwise_adagrad'; found {native!r}"
            )
        if update not in ("auto", "shadow"):
            raise InvalidArgumentError(f"update: found {update!r}; give 'auto' or 'shadow'")
        if update == "shadow" and not isinstance(native, type):
            raise InvalidArgumentError(
                f"update='shadow' is for classes of torch.optim; update method {native!r} changes rows "
                "where they are"
            )
        holders = list_table_modules(modules)
        agents = list({id(each.agent): each.agent for each in holders}.values())
        for agent in agents:
            agent.awaits_state = True
        self.container = join_container(agents)
        if non_finite_gradients is not None:
            self.container.non_finite_gradients = non_finite_policy(non_finite_gradients)
        self._names = list(dict.fromkeys(name for agent in agents for name in agent.table_names))
        given = collect_open_storages(agents)
        self._updater: NativeUpdater | FusedUpdater
        if isinstance(native, type):
            self._updater = NativeUpdater(
                self.container,
                self._names,
                native,
                hyperparameters,
                tables or {},
                given,
                may_fuse=update == "auto",
            )
        else:
            method = resolve_method(native) if isinstance(native, str) else native
            self._updater = FusedUpdater(
                self.container, self._names, method, hyperparameters, tables or {}, given
            )
        for agent in agents:
            agent.has_optimizer = True
            agent.write_initial_rows()
            former = _of_agents.get(agent, lambda: None)()
            if former is not None:
                former._before_step = former._reject_step
            _of_agents[agent] = weakref.ref(self)
        self._is_made = False
        super().__init__(self._updater.parameters, {})
        self._is_made = True
        self.defaults = self._updater.defaults
        self.param_groups = self._updater.param_groups
        self.state = self._updater.state
        self._row_gradients = RowGradients(
            self.container,
            [each.anchor for each in holders],
            [each.agent.table_names for each in holders],
        )
        # Without elements, for gradient scalers: an optimizer of torch steps over them.
        self.param_groups[0]["params"] += self._row_gradients.parameters

    # -- the life of a step ---------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        """Applies the gradients since the last step to the rows of all tables.

        Args:
            closure: computes the loss again, with gradients, and returns it.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and the policy is to raise.
            CapacityError: a storage is full and may not evict.
            InvalidArgumentError: the last step had gradients, and no `zero_grad` followed.
        """
        # What torch puts around `step` takes as long as the update of a small batch.
        if self._has_step_hooks() or torch.autograd.profiler._is_profiler_enabled:
            found: _Loss | None = self._observed_step(closure)
            return found
        return self._step(closure)

    # Gradient scalers then set `grad_scale` and `found_inf` during a step, and take it always.
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    step.hooked = True  # type: ignore[attr-defined]  # so that torch leaves it as it is

    _before_step: Callable[[], None] | None = None
    """Called once before a step: what it is must be looked at first."""

    def _reject_step(self) -> None:
        raise InvalidArgumentError(
            "another Optimizer was made for tables of this one, and takes their gradients: "
            f"{', '.join(self._names)}; step that one, and drop this"
        )

    def _warn_if_no_rows(self) -> None:
        self._before_step = None
        container, rank = self.container, self.container.collective.rank
        parts = [part for name in self._names for part in container.entry(name).parts]
        mine = [part.config.name for part in parts if len(part.layout.shard_of(rank).partitions)]
        # A plan may keep no row on this rank.
        if mine and not any(map(container.num_rows, mine)):
            warnings.warn(
                "this Optimizer goes on from a state_dict that has counted steps, but its tables, "
                f"{', '.join(self._names)}, have no rows here: rows are in the state_dict of the "
                "model, or in a snapshot; load that too",
                stacklevel=4,
            )

    def _step(self, closure: Callable[[], _Loss] | None) -> _Loss | None:
        if self._before_step is not None:
            self._before_step()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        has_gradients = self._row_gradients.check_cleared()
        if self._row_gradients.has_read_norms or self.found_inf is not None:
            if not self._scale_gradients():
                return loss
        else:
            self._row_gradients.forget()
        if isinstance(self._updater, NativeUpdater):
            self._updater.step(self._why_not_fused(closure is not None))
        else:
            self._updater.step()
        self._row_gradients.count_step(has_gradients=has_gradients)
        return loss

    def _scale_gradients(self) -> bool:
        """Brings the scaling of norms to the gradients of rows; False where there is no step to take."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if self.found_inf is not None and float(self.found_inf):
            self.zero_grad()
            return False
        self._row_gradients.scale(1.0 if scale is None else 1.0 / float(scale))
        return True

    _observed_step: Any = torch.optim.Optimizer.profile_hook_step(_step)

    def _has_step_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )

    def _why_not_fused(self, has_closure: bool) -> str | None:
        """Why the own code of the native optimizer must take this step, if it must."""
        if has_closure:
            return "a closure was given"
        return "hooks are registered" if self._has_step_hooks() else None

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method that changes its rows; or ``shadow``, and why an optimizer of
        torch updates them by its own code. Each step of a class of torch may change it."""
        return self._updater.routes

    def __repr__(self) -> str:
        lines = [f"{name}: {route}" for name, route in self.routes.items()]
        return f"{super().__repr__()}\n" + "\n".join(["routes:", *lines])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step. Forward passes under way stay valid.

        Args:
            set_to_none: accepted for torch's sake; there is nothing else to set.
        """
        self._row_gradients.drop(self._names)

    def clip_grad_norm_(
        self, max_norm: float, dense_parameters: Iterable[Tensor] = (), **options: Any
    ) -> Tensor:
        """Clips the gradients of rows and of ordinary parameters by one norm.

        As ``torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`` for the model of this
        optimizer, which does the same. Call it after the last ``backward()`` before a step. The norm is
        of the gradients that the step will apply: added up by key over micro-batches, and
        averaged over all ranks, which all call it.

        Args:
            max_norm: the largest norm that is left as it is.
            dense_parameters: ordinary parameters; their gradients are the same on all ranks.
            **options: of `torch.nn.utils.clip_grad_norm_`, as ``error_if_nonfinite``.

        Returns:
            The norm before.
        """
        own = self._row_gradients.parameters
        others = [each for each in dense_parameters if not isinstance(each, Anchor)]
        return torch.nn.utils.clip_grad_norm_([*own, *others], max_norm, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuses: the tables of an optimizer are those of its modules.

        Raises:
            UnsupportedError: always, once the optimizer is made.
        """
        if not self._is_made:
            return super().add_param_group(param_group)
        raise UnsupportedError(
            "add_param_group: this Optimizer updates the tables of its modules, "
            f"{', '.join(self._names)}, and no parameters; give ordinary parameters to an optimizer "
            "of torch.optim, and other tables to a new Optimizer of all modules"
        )

    # -- what can be saved ------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Hyper-parameters, and the optimizer's scalars of each table: not the rows.

        Embeddings and the optimizer state of each row are in the `state_dict` of the model, and in
        snapshots; the entry ``rows_are_in`` says so to a reader of the file. A model that is loaded
        without this goes on with the state of each row, and counts steps from 0.

        Returns:
            ``native``: the optimizer's name; ``param_groups``: as torch has them, with table
            names in place of parameters; ``state``: table → scalars, as ``step``; ``rows_are_in``.
        """
        return {
            "native": self._updater.name,
            "param_groups": self._updater.saved_groups(),
            "state": self._updater.scalars(),
            "rows_are_in": _ROWS_ARE_IN,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave; ``fused`` stays as it is.

        Raises:
            InvalidArgumentError: it is of another native optimizer, or of other tables; nothing
                is changed.
        """
        self._check_state_dict(state_dict)
        own = {"params"}
        if isinstance(self._updater, NativeUpdater):
            # Torch's fused kernels, if they were used there, take rows to lie without gaps.
            own.add("fused")
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name not in own})
        self._updater.set_scalars(state_dict["state"])
        if self._before_step is None and any(
            float(each.get("step", 0)) > 0 for each in state_dict["state"].values()
        ):
            self._before_step = self._warn_if_no_rows

    def __reduce_ex__(self, protocol: object) -> Any:
        raise UnsupportedError(
            "an Optimizer of rows is not copied or pickled, as it belongs to its model; make "
            "another for the copy of the model, and give it load_state_dict(optimizer.state_dict())"
        )

    def _check_state_dict(self, state_dict: dict[str, Any]) -> None:
        native = self._updater.name
        found = state_dict.get("native")
        if found != native:
            raise InvalidArgumentError(
                f"this state_dict is of optimizer {found!r}, but the tables are updated by "
                f"{native!r}; make the Optimizer with the same class",
                native=found,
            )
        tables = state_dict.get("state", {})
        for name in tables:
            if name not in self._names:
                raise InvalidArgumentError(
                    f"this state_dict has table {name!r}, which no module holds; "
                    + format_suggestion(name, self._names),
                    table=name,
                )
        for name, scalars in self._updater.scalars().items():
            missing = scalars.keys() - tables.get(name, {}).keys()
            if name not in tables or missing:
                raise InvalidArgumentError(
                    f"this state_dict has {sorted(tables.get(name, ())) or 'nothing'} for table "
                    f"{name!r}, expected {sorted(scalars) or 'an empty entry'}",
                    table=name,
                )
        if len(state_dict.get("param_groups", ())) != len(self.param_groups):
            raise InvalidArgumentError(
                f"this state_dict has {len(state_dict.get('param_groups', ()))} param_groups, "
                f"expected {len(self.param_groups)}"
            )


def to_update_method(
    native: type[torch.optim.Optimizer] | str | UpdateMethod,
) -> type[torch.optim.Optimizer] | str | UpdateMethod:
    """The update method that a class stands for, as its `update_method` says; or `native`."""
    method: str = getattr(native, "update_method", "")
    return method or native


def _is_native(native: object) -> bool:
    return isinstance(native, type) and issubclass(native, torch.optim.Optimizer)
