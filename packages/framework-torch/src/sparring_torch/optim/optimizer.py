"""`Optimizer`: PyTorch optimizers for the rows of tables."""

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
from sparring_torch.modules.table_module import list_table_modules, name_tables_by_path
from sparring_torch.optim.fused_updater import FusedUpdater
from sparring_torch.optim.native_updater import NativeUpdater

__all__ = ["Optimizer", "to_update_method"]

_ROWS_ARE_IN = (
    "the state_dict of the model, or a snapshot: embeddings and the state of each row; "
    "this state_dict contains hyper-parameters, and the optimizer state per table"
)

_Loss = TypeVar("_Loss")


class Optimizer(torch.optim.Optimizer):
    """Updates the rows of tables with a torch optimizer, or with an update method.

    It is used like any torch optimizer, together with one for the ordinary parameters::

        sparse = sparring_torch.Optimizer(model, torch.optim.Adagrad, lr=0.05)
        dense = torch.optim.Adam(model.parameters(), lr=1e-3)
        faster = sparring_torch.Optimizer(model, "rowwise_adagrad", lr=0.05)

    With a class of torch, `step` gathers the rows with gradients since the last step, and their
    optimizer state, lets the native optimizer update them as one parameter per table, and stores
    both. Several ``backward()`` before one ``step()`` sum their gradients. Learning-rate schedulers
    work on the native optimizer's `param_groups`.

    For `torch.optim.Adam`, AdamW, SparseAdam, Adagrad, SGD and RMSprop, an update method with the same
    results up to rounding takes the steps, without gathering rows. Rows are gathered for all others,
    for subclasses, for steps with a closure or hooks, with amsgrad, maximize, dampening, centered,
    RMSprop's momentum, capturable or differentiable, and if a table has an admission filter and the
    optimizer counts steps. `routes` reports which way is used. ``fused=True`` and ``foreach=True``
    are accepted and have no effect.

    Differences from a dense parameter
        - Rows without a gradient in a step do not change: there is no momentum and no weight decay,
          and Adam is lazy, like `torch.optim.SparseAdam`. `step` counts the steps of a table, not of
          a row.
        - The state of a new row is the result of a step with a zero gradient: zeros for Adam,
          `initial_accumulator_value` for Adagrad.
        - `step` consumes gradients, but torch would keep them and add the next ones. Therefore a step
          with new gradients raises if `zero_grad` was not called since the last step, on the model,
          on this optimizer or on one with ``model.parameters()``.
        - Rows are not parameters, so the `weight_decay` of other optimizers does not apply to them.
          Clipping by norm, `torch.amp.GradScaler` and `requires_grad_` do apply, through a parameter
          without elements in each module with tables (`clip_grad_norm_`).

    Args:
        modules: one or more modules with tables. All tables join one container, and a step changes
            the rows of all of them or of none.
        optimizer_class: an elementwise optimizer class of torch or a compatible one: SGD, Adagrad,
            Adam, AdamW, RMSprop, Adadelta, NAdam, RAdam, Adamax and others; or the name of an update
            method of sparring, for example ``rowwise_adagrad`` (`sparring.updates`). A method updates
            rows where they are stored, and each table has a separate param_group.
        non_finite_gradients: ``raise``: a NaN or infinite gradient raises
            `NonFiniteGradientError` before any row changes; ``skip``: rows with such gradients stay
            unchanged and are counted. None means the container's setting, by default ``raise``.
        tables: table → hyper-parameters that differ from the others; if given, each table has a
            separate param_group.
        update: ``auto``, or ``shadow`` to always run the code of the optimizer class.
        reset_state: False continues the state of rows that exist, such as moments, together with the
            number of steps of their tables; True resets both, also if they belong to another optimizer.
        **hyperparameters: hyper-parameters of the optimizer class or update method.

    Raises:
        InvalidArgumentError: `modules` contains no tables; tables are in different containers, or two
            tables have one name; the optimizer class rejects the hyper-parameters; or rows have
            another optimizer's state.
        UnsupportedError: the state of the optimizer cannot be split into rows, or the update of a
            row depends on other rows (LBFGS, Adafactor, Muon, LAMB), or its state starts with the first
            gradient (SGD with momentum and dampening).

    Examples:
        >>> import torch, sparring_torch
        >>> users = sparring_torch.Embedding(4, name="users")
        >>> optimizer = sparring_torch.Optimizer(users, torch.optim.SGD, lr=0.1)
        >>> optimizer.zero_grad()
        >>> users(torch.tensor([3, 3, 5])).sum().backward()
        >>> optimizer.step()
        >>> users.num_rows()
        {'users': 2}
    """

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        optimizer_class: type[torch.optim.Optimizer] | str | UpdateMethod,
        *,
        non_finite_gradients: str | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        update: str = "auto",
        reset_state: bool = False,
        **hyperparameters: Any,
    ) -> None:
        optimizer_class = to_update_method(optimizer_class)
        if not _is_native(optimizer_class) and not isinstance(optimizer_class, (str, UpdateMethod)):
            raise InvalidArgumentError(
                "Optimizer: expected a class of torch.optim, for example torch.optim.Adagrad, or the "
                f"name of an update method, for example 'rowwise_adagrad', found {optimizer_class!r}"
            )
        if update not in ("auto", "shadow"):
            raise InvalidArgumentError(f"update: found {update!r}, expected 'auto' or 'shadow'")
        if update == "shadow" and not isinstance(optimizer_class, type):
            raise InvalidArgumentError(
                "update='shadow' requires a class of torch.optim, found update method "
                f"{optimizer_class!r}; omit update"
            )
        modules = modules if isinstance(modules, nn.Module) else list(modules)
        holders = list_table_modules(modules)
        name_tables_by_path(modules)
        agents = list({id(each.agent): each.agent for each in holders}.values())
        for agent in agents:
            agent.awaits_state = True
        self.container = join_container(agents)
        if non_finite_gradients is not None:
            self.container.non_finite_gradients = non_finite_policy(non_finite_gradients)
        self._names = list(dict.fromkeys(name for agent in agents for name in agent.table_names))
        given = collect_open_storages(agents)
        self._updater: NativeUpdater | FusedUpdater
        if isinstance(optimizer_class, type):
            self._updater = NativeUpdater(
                self.container,
                self._names,
                optimizer_class,
                hyperparameters,
                tables or {},
                given,
                may_fuse=update == "auto",
                resets=reset_state,
            )
        else:
            method = (
                resolve_method(optimizer_class)
                if isinstance(optimizer_class, str)
                else optimizer_class
            )
            self._updater = FusedUpdater(
                self.container,
                self._names,
                method,
                hyperparameters,
                tables or {},
                given,
                resets=reset_state,
            )
        for agent in agents:
            agent.has_optimizer = True
            agent.write_initial_rows()
            former = None if agent.optimizer is None else agent.optimizer()
            if former is not None:
                former._before_step = former._reject_step
            agent.optimizer = weakref.ref(self)
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
        # Parameters without elements, so that gradient scalers find the norms of gradients, in the
        # group of their tables if it is the same for all.
        tables_of = [each["params"] for each in self._updater.saved_groups()]
        for norm, own in zip(
            self._row_gradients.parameters, self._row_gradients.tables, strict=True
        ):
            found = [place for place, names in enumerate(tables_of) if not own.isdisjoint(names)]
            self.param_groups[found[0] if len(found) == 1 else 0]["params"].append(norm)

    # -- steps ----------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], _Loss]) -> _Loss: ...

    def step(self, closure: Callable[[], _Loss] | None = None) -> _Loss | None:
        """Applies the gradients since the last step to the rows of all tables.

        Args:
            closure: computes the loss again, calls backward, and returns the loss.

        Raises:
            NonFiniteGradientError: a gradient contains NaN or infinity, and the policy is to raise.
            CapacityError: a storage is full and does not evict rows.
            InvalidArgumentError: the last step had gradients, but `zero_grad` was not called.
        """
        # torch's wrapper of `step` takes as long as the update of a small batch.
        if self._has_step_hooks() or torch.autograd.profiler._is_profiler_enabled:
            found: _Loss | None = self._observed_step(closure)
            return found
        return self._step(closure)

    # Gradient scalers then always call step, and set `grad_scale` and `found_inf` before.
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    step.hooked = True  # type: ignore[attr-defined]  # so that torch does not wrap it

    _before_step: Callable[[], None] | None = None
    """Check that runs once before the next step."""

    def _reject_step(self) -> None:
        raise InvalidArgumentError(
            f"step: a newer Optimizer takes the gradients of tables {', '.join(self._names)}; use only "
            "the newer one"
        )

    def _warn_if_no_rows(self) -> None:
        self._before_step = None
        container, rank = self.container, self.container.collective.rank
        parts = [part for name in self._names for part in container.entry(name).parts]
        mine = [part.config.name for part in parts if len(part.layout.shard_of(rank).partitions)]
        # With some plans, this rank stores no rows.
        if mine and not any(map(container.num_rows, mine)):
            warnings.warn(
                "Optimizer: the loaded state_dict has counted steps, but its tables, "
                f"{', '.join(self._names)}, have no rows on this rank; also load the rows, from the "
                "state_dict of the model or a snapshot",
                stacklevel=4,
            )

    def _guess_steps(self) -> None:
        steps, unknown = self.container.counters.steps, self._updater.unknown
        if self.container.collective.world_size == 1:  # other ranks may have rows
            unknown -= {name for name in unknown if not self.container.num_rows(name)}
        tables = sorted(filter(self._updater.uses_steps, unknown))
        if tables:
            warnings.warn(
                f"Optimizer: the rows of {', '.join(map(repr, tables))} have optimizer state of an "
                f"unknown number of steps; counting continues from the {steps} steps of the container. "
                "Load the state_dict of their optimizer, or create this one with reset_state=True",
                stacklevel=4,
            )
        self._updater.guess_steps(steps)

    def _step(self, closure: Callable[[], _Loss] | None) -> _Loss | None:
        if self._before_step is not None:
            self._before_step()
        if self._updater.unknown:
            self._guess_steps()
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
        """Applies the scaling of norms to the gradients; returns False if the step is skipped."""
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
        """Returns why the optimizer's code must take this step, or None."""
        if has_closure:
            return "a closure was given"
        return "hooks are registered" if self._has_step_hooks() else None

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method that changes its rows, or ``shadow`` and the reason why the
        optimizer's code updates them. With a class of torch, the value may change in each step."""
        return self._updater.routes

    def __repr__(self) -> str:
        lines = [f"{name}: {route}" for name, route in self.routes.items()]
        return f"{super().__repr__()}\n" + "\n".join(["routes:", *lines])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients since the last step. Pending forward passes remain valid.

        Args:
            set_to_none: has no effect; exists for compatibility with torch.
        """
        self._row_gradients.drop(self._names)

    def clip_grad_norm_(
        self, max_norm: float, dense_parameters: Iterable[Tensor] = (), **options: Any
    ) -> Tensor:
        """Clips the gradients of rows and of ordinary parameters by their joint norm.

        Same as ``torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`` for the model of this
        optimizer. Call it on all ranks, after the last ``backward()`` before a step. The norm refers
        to the gradients of the step: summed by key over micro-batches, and averaged over ranks.

        Args:
            max_norm: the maximum norm.
            dense_parameters: ordinary parameters, whose gradients are the same on all ranks.
            **options: options of `torch.nn.utils.clip_grad_norm_`, for example ``error_if_nonfinite``.

        Returns:
            The norm before clipping.
        """
        own = self._row_gradients.parameters
        others = [each for each in dense_parameters if not isinstance(each, Anchor)]
        return torch.nn.utils.clip_grad_norm_([*own, *others], max_norm, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported, because the modules determine the optimizer's tables.

        Args:
            param_group: ignored.

        Raises:
            UnsupportedError: always, after construction.
        """
        if not self._is_made:
            return super().add_param_group(param_group)
        raise UnsupportedError(
            "add_param_group is not supported: this Optimizer updates the tables of its modules, "
            f"{', '.join(self._names)}; give ordinary parameters to an optimizer of torch.optim, and "
            "create a new Optimizer of all modules for more tables"
        )

    # -- saving and loading -----------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the hyper-parameters and the optimizer state per table, without rows.

        Embeddings, the optimizer state of each row and the numbers of steps are also in the `state_dict`
        of the model and in snapshots, so an optimizer continues them if only the model is loaded.

        Returns:
            ``native``: name of the optimizer; ``param_groups``: as in torch, with table names instead
            of parameters; ``state``: table → scalars, for example ``step``; ``rows_are_in``: a note
            for people who read the file.
        """
        return {
            "native": self._updater.name,
            "param_groups": self._updater.saved_groups(),
            "state": self._updater.scalars(),
            "rows_are_in": _ROWS_ARE_IN,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict`, except ``fused``, which stays unchanged.

        Args:
            state_dict: result of `state_dict` of an optimizer of the same kind and tables.

        Raises:
            InvalidArgumentError: it belongs to another optimizer or other tables; nothing is changed.
        """
        self._check_state_dict(state_dict)
        own = {"params"}
        if isinstance(self._updater, NativeUpdater):
            # torch's fused kernels require contiguous rows.
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
            "an Optimizer of rows cannot be copied or pickled, because it belongs to its model; create "
            "one for the copy of the model, and call its load_state_dict(optimizer.state_dict())"
        )

    def _check_state_dict(self, state_dict: dict[str, Any]) -> None:
        expected = self._updater.name
        found = state_dict.get("native")
        if found != expected:
            raise InvalidArgumentError(
                f"load_state_dict: found a state_dict of optimizer {found!r}, expected {expected!r}; "
                "create the Optimizer with the same class",
                optimizer=found,
            )
        tables = state_dict.get("state", {})
        for name in tables:
            if name not in self._names:
                raise InvalidArgumentError(
                    f"load_state_dict: found table {name!r}, which is in no module; "
                    + format_suggestion(name, self._names),
                    table=name,
                )
        for name, scalars in self._updater.scalars().items():
            missing = scalars.keys() - tables.get(name, {}).keys()
            if name not in tables or missing:
                raise InvalidArgumentError(
                    f"load_state_dict: found {sorted(tables.get(name, ())) or 'nothing'} for table "
                    f"{name!r}, expected {sorted(scalars) or 'an empty entry'}",
                    table=name,
                )
        if len(state_dict.get("param_groups", ())) != len(self.param_groups):
            raise InvalidArgumentError(
                f"load_state_dict: found {len(state_dict.get('param_groups', ()))} param_groups, "
                f"expected {len(self.param_groups)}; create the Optimizer with the same tables"
            )


def to_update_method(
    optimizer_class: type[torch.optim.Optimizer] | str | UpdateMethod,
) -> type[torch.optim.Optimizer] | str | UpdateMethod:
    """Returns the update method that a class names in `update_method`, else `optimizer_class`."""
    method: str = getattr(optimizer_class, "update_method", "")
    return method or optimizer_class


def _is_native(optimizer_class: object) -> bool:
    return isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)
