"""Looks up embeddings in tables whose rows are on the host or come to it from other ranks.

    Bags, Ids ──► tables of one dtype ──► native batch of all tables ──► embeddings ──► model, loss
              │                               │ pulls distinct rows from other ranks      │
              └─► otherwise: shadows (u, dim), leaves with gradients ──► pool_bags, gather_ids
                                                                                          │
    ResourceManager ◄── gradients of the embeddings, or of the shadows ◄──────────────────┘

Shadows are used if weights require a gradient, if owners pool the bags of a table, and by custom
modules.

`sparring_torch.lookup.batch_lookup` contains the autograd node of the first way,
`sparring_torch.lookup.shadow_pooling` the second way. `sparring_torch.device.path` looks up in tables
on a device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import Lookup, ResourceManager, dedup, look_up
from sparring.contracts import Dedup
from sparring_torch.lookup.batch_lookup import Bags, DirectBatch, Ids, with_gradient
from sparring_torch.lookup.owner_pooling import is_pooled_by_owners, pool_by_owners, split_plan
from sparring_torch.lookup.shadow_pooling import (
    Features,
    Plan,
    Shadow,
    compute_bag_gradients,
    compute_id_gradients,
    compute_weight_gradients,
    gather_ids,
    join_parts,
    plan_bags,
    plan_ids,
    pool_bags,
    pool_parts,
)

__all__ = ["HostPath", "PlannedBatch"]

Requests = Sequence[tuple[str, npt.NDArray[np.int64]]]

_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class PlannedBatch:
    """Batch that is looked up in advance, for a forward pass of training."""

    looked_up: Bags | Ids
    tables: list[str]
    """Table of each request."""
    make: partial[Any] | None = None
    """Creates the native batch."""
    batch: Any | None = None
    """Native batch, which deduplicates and pools all tables together; None if `plan` is used."""
    plan: Plan | None = None
    """Lookups by shadows."""
    lookups: list[Lookup] = field(default_factory=list)
    """One lookup per request, when they have been made; not registered for gradients."""

    def dedup(self) -> list[Dedup]:
        """Deduplicates the ids of each request. Reads no rows, so it may run on any thread."""
        if self.batch is not None:
            found = self.batch.keys()
            return [Dedup(keys, _NOTHING) for keys in found]
        assert self.plan is not None
        return [dedup(ids) for _, ids in self.plan.requests]

    def batch_with(self, make: partial[Any]) -> Any:
        """Returns a native batch with the same ids, and with the weights of `make`."""
        assert self.make is not None
        known, given = _weights_of(self.make), _weights_of(make)
        if known is given or (
            known is not None and given is not None and np.array_equal(known, given, equal_nan=True)
        ):
            return self.batch
        batch = make(finds_rows=False)
        batch.keys()
        return batch


class HostPath:
    """Lookups of one module in its tables.

    `pool` and `gather` register a lookup for a gradient only in training with autograd enabled.
    Otherwise they store nothing and create no rows.

    Args:
        container: the container of the tables.
        tables: names of the tables.
        features: table and pooling of each feature that the module looks up, in the order of its
            outputs.
        dtype: common computing dtype of the tables; None if their dtypes differ.
    """

    def __init__(
        self,
        container: StepContainer,
        tables: Sequence[str],
        features: Features,
        dtype: np.dtype[Any] | None,
    ) -> None:
        self._container = container
        self._resources = container.resources
        self._tables, self._features, self._dtype = tables, features, dtype
        self._prefetched: deque[PlannedBatch] = deque()

    @property
    def pools_at_owners(self) -> bool:
        """Whether the owners of the rows pool the bags of at least one table."""
        return any(is_pooled_by_owners(self._container, table) for table in self._tables)

    def pool(self, bags: Bags, *, is_training: bool) -> Tensor:
        """Returns one embedding per bag, features side by side: ``(num_bags, sum of dims)``.

        Args:
            bags: bags of the path's features.
            is_training: `AnchoredModule.is_training` of the module.
        """
        is_registered = is_training and torch.is_grad_enabled()
        is_joint = self._is_joint and not (_wants_rows(bags) and torch.is_grad_enabled())
        prefetched = self._take_prefetched(bags, is_registered, is_joint=is_joint)
        if not is_joint:
            plan = plan_bags(self._features, bags)
            return self._pool_on_ranks(plan, bags, prefetched, is_training=is_training)
        make = self._maker(bags)
        if prefetched is None and not is_registered and self._is_direct:
            self._container.check_readable(self._tables)
            return torch.from_numpy(self._collection.pool(*make.args))
        with self._span():
            batch = self._make_batch(make, prefetched, is_registered=is_registered)
            out = batch.pool()
        if not is_registered:
            return torch.from_numpy(out)
        held = DirectBatch(self._resources, self._tables, batch.gradients)
        return with_gradient(held, [out])[0]

    def gather(self, ids: Ids, *, is_training: bool) -> Sequence[Tensor]:
        """Returns one embedding per id, ``(ids of the feature, dim)``, for each feature."""
        is_registered = is_training and torch.is_grad_enabled()
        is_joint = self._dtype is not None
        prefetched = self._take_prefetched(ids, is_registered, is_joint=is_joint)
        if not is_joint:
            plan = plan_ids(self._features, ids)
            return gather_ids(plan, self._shadows(plan, prefetched, is_training))
        make = self._maker(ids)
        if prefetched is None and not is_registered and self._is_direct:
            self._container.check_readable(self._tables)
            outputs = self._collection.gather(*make.args)
        else:
            with self._span():
                batch = self._make_batch(make, prefetched, is_registered=is_registered)
                outputs = batch.gather()
        if not is_registered:
            return list(map(torch.from_numpy, outputs))
        held = DirectBatch(self._resources, self._tables, batch.gradients)
        return with_gradient(held, outputs)

    def look_up(self, requests: Requests, *, is_training: bool) -> list[Shadow]:
        """Looks up ids and returns one shadow per request, in one exchange between ranks.

        Args:
            requests: table and ``(n,)`` C-contiguous int64 ids.
            is_training: `AnchoredModule.is_training` of the module.
        """
        is_registered = is_training and torch.is_grad_enabled()
        return self._shadows_of(self._container.lookup_all(requests, is_registered=is_registered))

    # -- lookups by operators of torch

    def take_gradient(self, looked_up: Bags | Ids, parts: Sequence[Tensor]) -> None:
        """Takes the gradients of the result of a `pool` or `gather` that was not registered.

        Args:
            looked_up: the bags or ids that were looked up.
            parts: per feature, ``(num_bags, dim)`` or ``(ids of the feature, dim)``.
        """
        if self._is_direct:
            batch = self._maker(looked_up)(finds_rows=False)
            if isinstance(looked_up, Bags):
                parts = [torch.cat(list(parts), dim=1)]
            DirectBatch(self._resources, self._tables, batch.gradients).accumulate_sources(parts)
            return
        plan = self.plan(looked_up)
        found = [dedup(ids) for _, ids in plan.requests]
        if isinstance(looked_up, Bags):
            gradients = compute_bag_gradients(plan, looked_up, parts, found)
        else:
            gradients = compute_id_gradients(plan, parts, found)
        for (table, _), each, gradient in zip(plan.requests, found, gradients, strict=True):
            shadow_id = self._resources.register(table, each.keys, each.inverse)
            self._resources.accumulate(shadow_id, gradient)
            self._resources.release(shadow_id)

    def weight_gradient(self, bags: Bags, parts: Sequence[Tensor]) -> Tensor:
        """Computes the gradient ``(n,)`` of the weights of pooled bags; reads the rows again.

        Args:
            parts: see `take_gradient`.
        """
        plan = self.plan(bags)
        return compute_weight_gradients(
            plan, bags, parts, self.look_up(plan.requests, is_training=False)
        )

    # -- prefetched lookups

    def plan(self, looked_up: Bags | Ids) -> Plan:
        """Returns the lookups that `pool` or `gather` would make."""
        make: Any = plan_bags if isinstance(looked_up, Bags) else plan_ids
        plan: Plan = make(self._features, looked_up)
        return plan

    def plan_ahead(self, looked_up: Bags | Ids) -> PlannedBatch:
        """Plans the lookups that `pool` or `gather` will make in a forward pass of training."""
        # The model may change the ids of the batch before that pass.
        looked_up = replace(looked_up, ids=looked_up.ids.copy())
        if self._dtype is None or (isinstance(looked_up, Bags) and _wants_rows(looked_up)):
            plan = self.plan(looked_up)
            return PlannedBatch(looked_up, [table for table, _ in plan.requests], plan=plan)
        make = self._maker(looked_up)
        return PlannedBatch(looked_up, self._distinct_tables, make, make(finds_rows=False))

    @property
    def has_prefetched(self) -> bool:
        """Whether there are prefetched lookups for a forward pass."""
        return bool(self._prefetched)

    def set_prefetched(self, prefetched: Iterable[PlannedBatch]) -> None:
        """Sets the batches of the next forward passes of training, in their order, with their lookups.

        They replace unused lookups of an earlier call.
        """
        self._prefetched = deque(prefetched)

    def _take_prefetched(
        self, looked_up: Bags | Ids, is_registered: bool, *, is_joint: bool
    ) -> PlannedBatch | None:
        """Returns the prefetched lookups of this pass, or None if its ids differ."""
        if not is_registered or not self._prefetched:
            return None
        prefetched = self._prefetched.popleft()
        if is_joint != (prefetched.batch is not None) or not looked_up.has_ids_of(
            prefetched.looked_up
        ):
            self._prefetched.clear()
            return None
        return prefetched

    # -- direct lookups and shadows

    @property
    def _is_direct(self) -> bool:
        return self._dtype is not None and self._container.reads_directly(self._tables)

    @property
    def _is_joint(self) -> bool:
        """Whether the bags of all tables are pooled in one native call."""
        return self._is_direct or (self._dtype is not None and not self.pools_at_owners)

    @cached_property
    def _collection(self) -> Any:
        """The lookups of all features as one native call."""
        return self._container.collection(self._features)

    def _span(self) -> AbstractContextManager[None]:
        """Records a lookup on this rank as a span of the trace; an exchange records its own spans."""
        return self._container.span("look up") if self._is_direct else nullcontext()

    def _maker(self, looked_up: Bags | Ids) -> partial[Any]:
        """Returns a function that creates the native batch of all features."""
        if isinstance(looked_up, Ids):
            return partial(self._collection.plan_ids, looked_up.ids, looked_up.spans)
        assert self._dtype is not None
        return partial(
            self._collection.plan_bags,
            looked_up.ids,
            looked_up.offsets,
            looked_up.positions,
            looked_up.num_bags,
            looked_up.numpy_weights(self._dtype),
        )

    @property
    def _distinct_tables(self) -> list[str]:
        return list(dict.fromkeys(table for table, _ in self._features))

    def _make_batch(
        self, make: partial[Any], prefetched: PlannedBatch | None, *, is_registered: bool
    ) -> Any:
        """Creates a native batch that can be read. If rows are on other ranks, it pulls the distinct
        ones in one exchange; an error before the exchange is raised on all ranks."""
        if prefetched is not None:
            self._container.check_open()
            batch = prefetched.batch_with(make)
            batch.set_embeddings([each.rows for each in prefetched.lookups])
            return batch
        if self._is_direct:
            self._container.check_readable(self._tables)
            return make(finds_rows=True)
        tables = self._distinct_tables
        requests: list[tuple[str, Any]] = [(table, np.empty(0, np.int64)) for table in tables]
        batch = None
        own_error: Exception | None = None
        try:
            batch = make(finds_rows=False)
            requests = list(zip(tables, batch.keys(), strict=True))
        except Exception as error:
            own_error = error
        lookups = look_up(
            self._container.state,
            requests,
            is_training=is_registered,
            own_error=own_error,
            are_distinct=True,
        )
        batch.set_embeddings([each.rows for each in lookups])
        return batch

    def _pool_on_ranks(
        self, plan: Plan, bags: Bags, prefetched: PlannedBatch | None, *, is_training: bool
    ) -> Tensor:
        """Pools rows that came from other ranks, and adds the bags that owners pooled."""
        if prefetched is not None or not self.pools_at_owners:
            return pool_bags(plan, bags, self._shadows(plan, prefetched, is_training))
        by_rows, by_owners = split_plan(self._container, plan)
        parts: dict[int, Tensor] = {}
        if by_rows.groups:
            shadows = self._shadows(by_rows, None, is_training)
            parts = pool_parts(by_rows, bags, shadows)
        is_registered = is_training and torch.is_grad_enabled()
        parts |= pool_by_owners(self._container, by_owners, bags, is_registered=is_registered)
        return join_parts(parts)

    def _shadows(
        self, plan: Plan, prefetched: PlannedBatch | None, is_training: bool
    ) -> list[Shadow]:
        if prefetched is None:
            return self.look_up(plan.requests, is_training=is_training)
        register = self._resources.register
        for (table, _), each in zip(plan.requests, prefetched.lookups, strict=True):
            each.shadow_id = register(table, each.keys, each.inverse)
        return self._shadows_of(prefetched.lookups)

    def _shadows_of(self, lookups: Sequence[Lookup]) -> list[Shadow]:
        shadows = []
        for found in lookups:
            rows = torch.from_numpy(found.rows)
            if found.shadow_id is not None:
                rows.requires_grad_()
                hook = _GradientHook(self._resources, found.shadow_id)
                rows.register_hook(hook)  # type: ignore[no-untyped-call]
            shadows.append(Shadow(rows, found.inverse))
        return shadows


def _weights_of(make: partial[Any]) -> npt.NDArray[Any] | None:
    weights: npt.NDArray[Any] | None = make.args[4] if len(make.args) > 4 else None
    return weights


def _wants_rows(bags: Bags) -> bool:
    """Whether the gradient of weights is computed, which requires the rows of the ids."""
    return bags.weights is not None and bags.weights.requires_grad


class _GradientHook:
    """Passes the gradient of a shadow to the step, once per backward pass through the shadow.

    It lives as long as the shadow, and releases the batch input when the graph is freed.
    """

    __slots__ = ("_resources", "_shadow_id")

    def __init__(self, resources: ResourceManager, shadow_id: int) -> None:
        self._resources = resources
        self._shadow_id = shadow_id

    def __call__(self, gradient: Tensor) -> None:
        self._resources.accumulate(self._shadow_id, gradient.contiguous().numpy())

    def __del__(self) -> None:
        if hasattr(self, "_shadow_id"):  # see DirectBatch.__del__
            self._resources.release(self._shadow_id)
