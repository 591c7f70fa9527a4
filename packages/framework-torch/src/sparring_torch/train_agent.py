"""`TrainAgent`: joins autograd to the step.

    lookup ──► shadow (u, dim), a leaf that requires a gradient ──► gather / pool ──► model, loss
                  │                                                                      │
    ResourceManager.accumulate(shadow id, gradient)  ◄── hook on the shadow ◄────────────┘

`pool` and `gather` do without a shadow where they can: see `sparring_torch.batch_lookup`.

Modules hold an agent; `Optimizer` brings the agents of all its modules into one container and
drives `StepContainer.apply`. No other code need know that there are steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.adapter import (
    Lookup,
    ResourceManager,
    StepContainer,
    TableDeclaration,
    dedup,
    pulls_on_device,
)
from sparring_torch import misuse
from sparring_torch.batch_lookup import Bags, DirectBatch, Ids, with_gradient
from sparring_torch.device_groups import DeviceGroup
from sparring_torch.device_kernels import current_gpu, kernel_set_for
from sparring_torch.device_path import DevicePath
from sparring_torch.intra_op_threads import borrow_intra_op_threads
from sparring_torch.owner_pooling import are_pooled, divided, pooled_by_owners
from sparring_torch.row_copies import CopiedTables
from sparring_torch.shadow_pooling import (
    Plan,
    Shadow,
    bag_gradients,
    gathered,
    id_gradients,
    joined,
    plan_bags,
    plan_ids,
    pooled,
    pooled_parts,
    weight_gradients,
)

__all__ = [
    "Prefetched",
    "Shadow",
    "TrainAgent",
]

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prefetched:
    """Lookups of a forward pass, made before it began."""

    plan: Plan
    lookups: list[Lookup]
    """One for each request of the plan; not registered."""


class TrainAgent(CopiedTables):
    """The tables of a module, and the container that they live in.

    Args:
        declarations: the module's tables.
        features: table and pooling (``sum`` or ``mean``) of each feature that the module looks
            up, in the order of its outputs.
        container: where they live; None means a container of the agent's own, made when it is
            first needed, unless an `Optimizer` brings several agents together before any row is
            written.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        features: Sequence[tuple[str, str]],
        container: StepContainer | None = None,
    ) -> None:
        self._features = list(features)
        by_table = {each.table.name: each.table.computing_dtype for each in declarations}
        self.dtypes = [
            torch.from_numpy(np.empty(0, by_table[table])).dtype for table, _ in features
        ]
        """Of the embeddings of each feature."""
        computing = set(by_table.values())
        self.output_dtype = torch.float64 if np.dtype(np.float64) in computing else torch.float32
        self._dtype = computing.pop() if len(computing) == 1 else None
        self._collection: Any = None
        self._prefetched: deque[Prefetched] = deque()
        self._path: DevicePath | None = None
        self._brought_in: list[tuple[str, Index, npt.NDArray[Any]]] = []
        self._may_train = False
        self.awaits_state = False
        """Whether an `Optimizer` is being made: rows that are brought in wait for their state."""
        self.known_method: str | None = None
        """The optimizer that was named for the tables, where that is known before it is made."""
        self.known_hyperparameters: Mapping[str, Any] = {}
        self._first_step: int | None = None
        self.has_optimizer = False
        """Whether an optimizer takes the gradients of the tables."""
        for each in declarations:
            misuse.check_backend(each.storage, container)
        for device in {each.device for each in declarations} - {"cpu"}:
            # Where there is no such device, the module's constructor raises.
            kernel_set_for(device)
        borrow_intra_op_threads()  # the thread that makes a model also trains it
        super().__init__(declarations, container)

    def _own_device(self, container: StepContainer) -> str | None:
        return container.own_device or current_gpu()

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        self._collection = None
        self._resources = self.container.resources
        devices = {each.device for each in declarations}
        (device,) = devices if len(devices) == 1 else ("cpu",)
        self._path = None if device == "cpu" else DevicePath(device)
        if self._path is not None:
            self.container.keep_on_device(self.table_names, self._path.kernels)
        if not self.awaits_state:
            self.write_brought_in()

    def bring_in(self, table: str, ids: Index, embeddings: npt.NDArray[Any]) -> None:
        """Rows that `table` begins with, once its container is known; all ranks give the same.

        Args:
            ids: ``(n,)``.
            embeddings: ``(n, dim)``.
        """
        self._brought_in.append((table, ids, embeddings))
        if self.has_container:
            self.write_brought_in()

    def write_brought_in(self) -> None:
        """Writes the rows that tables begin with, each rank a part of them."""
        collective = self.container.collective
        while self._brought_in:
            table, ids, embeddings = self._brought_in.pop(0)
            mine = slice(collective.rank, None, collective.world_size)
            self.container.assign(table, ids[mine], embeddings[mine])

    # -- on a device

    @property
    def features(self) -> list[tuple[str, str]]:
        """Table and pooling of each feature that the module looks up."""
        return self._features

    @property
    def device(self) -> torch.device:
        """Where ids are best: that of the tables, if all of them lie on one GPU."""
        _ = self.container
        return torch.device("cpu") if self._path is None else self._path.device

    @property
    def stays_on_device(self) -> bool:
        """Whether lookups never come to the host, so that nothing can be prefetched there."""
        container = self.container
        return self._path is not None and self._leaves_rows(container)

    @property
    def pools_at_owners(self) -> bool:
        """Whether bags of any table are pooled by the owners of their rows."""
        container = self._container or self.container
        return any(are_pooled(container, table) for table in self.table_names)

    @property
    def can_prefetch(self) -> bool:
        """Whether lookups may begin before their turn: of rows that come to the host."""
        return not (self.stays_on_device or self.pools_at_owners)

    def _leaves_rows(self, container: StepContainer) -> bool:
        """Whether rows need not come to the host: the same on all ranks."""
        names = self.table_names
        return container.reads_directly(names) or pulls_on_device(container.state, names)

    def path_for(self, ids: Tensor, *, is_training: bool) -> DevicePath | None:
        """Path that looks up `ids` on their device; None: via the host.

        Args:
            ids: on any device.
            is_training: the module's own `training`.

        Raises:
            InvalidArgumentError: the tables lie on a device, and the ids on another.
        """
        container = self._container or self.container
        if torch._C._is_tracing():  # half the time of torch.jit.is_tracing
            misuse.refuse_tracing(self.table_names)
        if is_training and not self._may_train and torch.is_grad_enabled():
            self._check_training(container)
        path = self._path
        if path is None:
            return None
        with self.refusing(path, is_training=is_training):
            path.check_place(self.table_names, "ids", ids)
        return path if self._leaves_rows(container) else None

    def _check_training(self, container: StepContainer) -> None:
        """Refuses a pass of training whose gradients, or those of the pass before, would be lost."""
        try:
            if not self.is_container_given:
                misuse.check_ranks(self.table_names, container)
            step = container.counters.steps
            if self._first_step is None:
                self._first_step = step  # a model that was loaded has taken steps
            self._may_train = self.has_optimizer or step > self._first_step
            if not self._may_train:
                misuse.check_gradients_are_taken(self.table_names, container)
        except Exception as error:
            self.refuse(error, is_training=True)

    def refusing(self, path: DevicePath, *, is_training: bool) -> AbstractContextManager[None]:
        """Raises on all ranks an error of the block, which precedes a lookup on the device."""
        return path.refusing(self.container, self.table_names, is_training=is_training)

    def refuse(self, error: Exception, *, is_training: bool) -> NoReturn:
        """Raises `error`, which came before a lookup, on all ranks: the others have begun it.

        Args:
            is_training: the module's own `training`.
        """
        container, is_registered = self.container, is_training and torch.is_grad_enabled()
        # What was prefetched, the others take without this rank.
        is_alone = container.reads_directly(self.table_names)
        if is_alone or (self._prefetched and is_registered):
            raise error
        if self._path is not None:
            with self.refusing(self._path, is_training=is_training):
                raise error
        requests = [(table, np.empty(0, np.int64)) for table in self.table_names]
        container.lookup_all(requests, is_registered=is_registered, refusal=error)
        raise error

    def pool_on(
        self, path: DevicePath, groups: Sequence[DeviceGroup], *, is_training: bool
    ) -> list[Tensor]:
        """One embedding for each bag of each group: ``(bags, dim)``."""
        return path.pool(self.container, groups, is_training=is_training)

    # -- via the host

    def pool(self, bags: Bags, *, is_training: bool) -> Tensor:
        """One embedding for each bag of each feature, side by side: ``(num_bags, sum of dims)``.

        Registered for a gradient only while training with autograd on; otherwise nothing is
        kept, and no id earns a row.

        Args:
            bags: of the features that were given to the agent.
            is_training: the module's own `training`.
        """
        is_registered = is_training and torch.is_grad_enabled()
        wants_rows = bags.weights is not None and bags.weights.requires_grad
        is_direct = self._is_direct and not (wants_rows and torch.is_grad_enabled())
        prefetched = None
        if not is_direct or (self._prefetched and is_registered):
            plan = plan_bags(self._features, bags)
            prefetched = self._take_prefetched(plan, is_registered)
        if not is_direct:
            return self._pool_on_ranks(plan, bags, prefetched, is_training=is_training)
        assert self._dtype is not None
        self._check_readable(prefetched)
        collection = self._collection
        if collection is None:
            collection = self._collection = self.container.collection(self._features)
        weights = None if bags.weights is None else bags.numpy_weights(self._dtype)
        places = bags.places
        if not is_registered:
            out = collection.pool(bags.ids, bags.offsets, places, bags.num_bags, weights)
            return torch.from_numpy(out)
        batch = collection.plan_bags(
            bags.ids, bags.offsets, places, bags.num_bags, weights, finds_rows=prefetched is None
        )
        if prefetched is None:
            out = batch.pool()
        else:
            with torch.no_grad():
                out = pooled(plan, bags, _still(prefetched)).numpy()
        held = DirectBatch(self._resources, self.table_names, batch.gradients)
        return with_gradient(held, [out])[0]

    def _pool_on_ranks(
        self, plan: Plan, bags: Bags, prefetched: Prefetched | None, *, is_training: bool
    ) -> Tensor:
        """Of rows that came from other ranks, and of bags that these have pooled."""
        if prefetched is not None or not self.pools_at_owners:
            return pooled(plan, bags, self._shadows(plan, prefetched, is_training))
        by_rows, by_owners = divided(self.container, plan)
        parts: dict[int, Tensor] = {}
        if by_rows.groups:
            shadows = self._shadows(by_rows, None, is_training)
            parts = pooled_parts(by_rows, bags, shadows)
        is_registered = is_training and torch.is_grad_enabled()
        parts |= pooled_by_owners(self.container, by_owners, bags, is_registered=is_registered)
        return joined(parts)

    def gather(self, ids: Ids, *, is_training: bool) -> Sequence[Tensor]:
        """One embedding for each id: ``(ids of the feature, dim)`` of each feature."""
        is_registered = is_training and torch.is_grad_enabled()
        is_direct = self._is_direct
        prefetched = None
        if not is_direct or (self._prefetched and is_registered):
            plan = plan_ids(self._features, ids)
            prefetched = self._take_prefetched(plan, is_registered)
        if not is_direct:
            return gathered(plan, self._shadows(plan, prefetched, is_training))
        self._check_readable(prefetched)
        collection = self._collection
        if collection is None:
            collection = self._collection = self.container.collection(self._features)
        if not is_registered:
            return [torch.from_numpy(each) for each in collection.gather(ids.ids, ids.spans)]
        batch = collection.plan_ids(ids.ids, ids.spans, finds_rows=prefetched is None)
        if prefetched is None:
            outputs = batch.gather()
        else:
            outputs = [each.numpy() for each in gathered(plan, _still(prefetched))]
        held = DirectBatch(self._resources, self.table_names, batch.gradients)
        return with_gradient(held, outputs)

    # -- lookups that operators of torch made

    def path_of_gradient(self, ids: Tensor) -> DevicePath | None:
        """As `path_for`, where the gradient of what was looked up has come."""
        with torch.enable_grad():  # so that it is refused where no optimizer takes it
            return self.path_for(ids, is_training=True)

    def take_gradient(self, wanted: Bags | Ids, parts: Sequence[Tensor]) -> None:
        """Takes the gradients of what `pool` or `gather` gave without registering it.

        Args:
            wanted: what was looked up.
            parts: of each feature, ``(num_bags, dim)`` or ``(ids of the feature, dim)``.
        """
        if self._is_direct:
            collection = self._collection
            if collection is None:
                collection = self._collection = self.container.collection(self._features)
            if isinstance(wanted, Bags):
                assert self._dtype is not None
                weights = wanted.numpy_weights(self._dtype)
                bags = wanted.ids, wanted.offsets, wanted.places, wanted.num_bags, weights
                batch = collection.plan_bags(*bags, finds_rows=False)
                parts = [torch.cat(list(parts), dim=1)]
            else:
                batch = collection.plan_ids(wanted.ids, wanted.spans, finds_rows=False)
            DirectBatch(self._resources, self.table_names, batch.gradients).hold(parts)
            return
        plan = self.plan(wanted)
        found = [dedup(ids) for _, ids in plan.requests]
        if isinstance(wanted, Bags):
            gradients = bag_gradients(plan, wanted, parts, found)
        else:
            gradients = id_gradients(plan, parts, found)
        for (table, _), each, gradient in zip(plan.requests, found, gradients, strict=True):
            shadow_id = self._resources.register(table, each.keys, each.inverse)
            self._resources.accumulate(shadow_id, gradient)
            self._resources.release(shadow_id)

    def weight_gradient(self, bags: Bags, parts: Sequence[Tensor]) -> Tensor:
        """The gradient ``(n,)`` of the weights of bags that `pool` gave; the rows are read again.

        Args:
            parts: as of `take_gradient`.
        """
        plan = self.plan(bags)
        return weight_gradients(
            plan, bags, parts, self.lookup_all(plan.requests, is_training=False)
        )

    # -- prefetched lookups

    def plan(self, wanted: Bags | Ids) -> Plan:
        """Lookups that `pool` or `gather` would make."""
        make: Any = plan_bags if isinstance(wanted, Bags) else plan_ids
        plan: Plan = make(self._features, wanted)
        return plan

    def give_prefetched(self, prefetched: Iterable[Prefetched]) -> None:
        """Sets the lookups of the next forward passes of training, in their order.

        It takes the place of what was given before and not used.
        """
        self._prefetched = deque(prefetched)

    def _take_prefetched(self, plan: Plan, is_registered: bool) -> Prefetched | None:
        """Prefetched lookups of this pass; None where the pass looks up something else."""
        if not is_registered or not self._prefetched:
            return None
        prefetched = self._prefetched.popleft()
        if not plan.is_same(prefetched.plan):
            self._prefetched.clear()
            return None
        return prefetched

    def _check_readable(self, prefetched: Prefetched | None) -> None:
        container = self._container or self.container
        if prefetched is None:
            container.check_readable(self.table_names)
        else:
            # Nothing is read, so a concurrent lookup may go on.
            container.check_open()

    def _shadows(
        self, plan: Plan, prefetched: Prefetched | None, is_training: bool
    ) -> list[Shadow]:
        if prefetched is None:
            return self.lookup_all(plan.requests, is_training=is_training)
        register = self.container.resources.register
        for (table, _), each in zip(plan.requests, prefetched.lookups, strict=True):
            each.shadow_id = register(table, each.keys, each.inverse)
        return self._shadows_of(prefetched.lookups)

    @property
    def _is_direct(self) -> bool:
        container = self._container or self.container
        return self._dtype is not None and container.reads_directly(self.table_names)

    def lookup(self, table: str, ids: npt.NDArray[np.int64], *, is_training: bool) -> Shadow:
        """Ids to a shadow; see `lookup_all`."""
        return self.lookup_all([(table, ids)], is_training=is_training)[0]

    def lookup_all(
        self, requests: Sequence[tuple[str, npt.NDArray[np.int64]]], *, is_training: bool
    ) -> list[Shadow]:
        """Ids to shadows, one for each request, in one exchange between ranks.

        Registered for a gradient only while training with autograd on; otherwise nothing is
        kept, and no id earns a row.

        Args:
            requests: table and ``(n,)`` C-contiguous int64 ids.
            is_training: the module's own `training`.
        """
        container = self._container or self.container
        is_registered = is_training and torch.is_grad_enabled()
        return self._shadows_of(container.lookup_all(requests, is_registered=is_registered))

    def _shadows_of(self, lookups: Sequence[Lookup]) -> list[Shadow]:
        shadows = []
        for found in lookups:
            rows = torch.from_numpy(found.rows)
            if found.shadow_id is not None:
                rows.requires_grad_()
                hook = _GradientHook(self.container.resources, found.shadow_id)
                rows.register_hook(hook)  # type: ignore[no-untyped-call]
            shadows.append(Shadow(rows, found.inverse))
        return shadows


def _still(prefetched: Prefetched) -> list[Shadow]:
    """Rows that are only read."""
    return [Shadow(torch.from_numpy(each.rows), each.inverse) for each in prefetched.lookups]


class _GradientHook:
    """Hands a shadow's gradient to the step, once for each backward pass through it.

    It lives as long as the shadow. A graph that is dropped without a backward pass, or after it,
    takes the batch input with it.
    """

    __slots__ = ("_resources", "_shadow_id")

    def __init__(self, resources: ResourceManager, shadow_id: int) -> None:
        self._resources = resources
        self._shadow_id = shadow_id

    def __call__(self, gradient: Tensor) -> None:
        self._resources.accumulate(self._shadow_id, gradient.contiguous().numpy())

    def __del__(self) -> None:
        if hasattr(self, "_shadow_id"):  # see `DirectBatch`
            self._resources.release(self._shadow_id)
