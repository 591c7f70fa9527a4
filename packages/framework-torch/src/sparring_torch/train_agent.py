"""`TrainAgent`: joins autograd to the step.

    lookup ──► shadow (u, dim), a leaf that requires a gradient ──► gather / pool ──► model, loss
                  │                                                                      │
    ResourceManager.accumulate(shadow id, gradient)  ◄── hook on the shadow ◄────────────┘

`pool` and `gather` do without a shadow where they can: see `sparring_torch.batch_lookup`.

Modules hold an agent; `Optimizer` brings the agents of all its modules into one container and
drives `StepContainer.apply`. Nobody else need know that there are steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparring import ResourceManager, StepContainer
from sparring.errors import InvalidArgumentError
from sparring_torch import shadow_pooling
from sparring_torch.batch_lookup import Bags, DirectBatch, Ids, with_gradient
from sparring_torch.table_configs import TableDeclaration

__all__ = ["Shadow", "TableModule", "TrainAgent", "agents_of"]


@dataclass(slots=True)
class Shadow:
    """What stands in for a table in one forward pass."""

    rows: Tensor
    """``(u, dim)``: a leaf, which requires a gradient where the lookup was registered."""
    inverse: npt.NDArray[np.int64]
    """``(n,)``: the row of each id."""


class TrainAgent:
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
        self.declarations = list(declarations)
        self._features = list(features)
        computing = {each.table.computing_dtype for each in declarations}
        self._dtype = computing.pop() if len(computing) == 1 else None
        self._collection: Any = None
        self.is_container_given = container is not None
        self._container: StepContainer | None = None
        if container is not None:
            self.join(container)

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""
        if self._container is None:
            self.join(StepContainer())
            assert self._container is not None
        return self._container

    @property
    def has_container(self) -> bool:
        return self._container is not None

    @property
    def table_names(self) -> list[str]:
        return [each.table.name for each in self.declarations]

    @property
    def holds_rows(self) -> bool:
        """Whether any of the tables has a row on this rank."""
        container = self._container
        return container is not None and any(map(container.num_rows, self.table_names))

    def join(self, container: StepContainer) -> None:
        """Declares the tables in `container` and stays there.

        Raises:
            InvalidArgumentError: rows exist elsewhere already, or the container knows another
                table of one of these names.
        """
        if self._container is container:
            return
        if self.holds_rows:
            raise InvalidArgumentError(
                f"tables {self.table_names} hold rows in another container already; give all "
                "modules one container=… when making them"
            )
        for each in self.declarations:
            container.declare(each.table, each.storage)
        self._container = container
        self._collection = None

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
        if not self._is_direct or (wants_rows and torch.is_grad_enabled()):
            return shadow_pooling.pool_features(self, self._features, bags, is_training)
        assert self._dtype is not None
        self.container.check_readable(self.table_names)
        collection = self._native_collection()
        weights = bags.numpy_weights(self._dtype)
        places = bags.places
        out = collection.pool(bags.ids, bags.offsets, places, bags.num_bags, weights)
        if not is_registered:
            return torch.from_numpy(out)

        def sources(gradients: Sequence[npt.NDArray[Any]]) -> Any:
            return collection.bag_gradients(
                bags.ids, bags.offsets, places, bags.num_bags, weights, gradients[0]
            )

        return with_gradient(self._direct_batch(sources), [out])[0]

    def gather(self, ids: Ids, *, is_training: bool) -> Sequence[Tensor]:
        """One embedding for each id: ``(ids of the feature, dim)`` of each feature."""
        if not self._is_direct:
            return shadow_pooling.gather_features(self, self._features, ids, is_training)
        self.container.check_readable(self.table_names)
        collection = self._native_collection()
        outputs = collection.gather(ids.ids, ids.spans)
        if not (is_training and torch.is_grad_enabled()):
            return [torch.from_numpy(each) for each in outputs]

        def sources(gradients: Sequence[npt.NDArray[Any]]) -> Any:
            return collection.id_gradients(ids.ids, ids.spans, gradients)

        return with_gradient(self._direct_batch(sources), outputs)

    @property
    def _is_direct(self) -> bool:
        return self._dtype is not None and self.container.reads_directly

    def _native_collection(self) -> Any:
        if self._collection is None:
            self._collection = self.container.collection(self._features)
        return self._collection

    def _direct_batch(self, sources: Any) -> DirectBatch:
        return DirectBatch(self.container.resources, self.table_names, sources)

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
        shadows = []
        for found in container.lookup_all(requests, is_registered=is_registered):
            rows = torch.from_numpy(found.rows)
            if found.shadow_id is not None:
                rows.requires_grad_()
                hook = _GradientHook(container.resources, found.shadow_id)
                rows.register_hook(hook)  # type: ignore[no-untyped-call]
            shadows.append(Shadow(rows, found.inverse))
        return shadows


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
        self._resources.release(self._shadow_id)


class TableModule(nn.Module):
    """The base of modules that look up in tables."""

    agent: TrainAgent

    def num_rows(self) -> dict[str, int]:
        """Table name → rows held on this rank."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}


def agents_of(modules: nn.Module | Iterable[nn.Module]) -> list[TrainAgent]:
    """The agents in some modules and their parts, each once, in the order of the modules.

    Raises:
        InvalidArgumentError: something else than modules, or no table in any of them.
    """
    roots: list[Any] = [modules] if isinstance(modules, nn.Module) else list(modules)
    found: dict[int, TrainAgent] = {}
    for root in roots:
        if not isinstance(root, nn.Module):
            raise InvalidArgumentError(
                f"Optimizer takes modules that hold tables, found {type(root).__name__}; give "
                "ordinary parameters to an optimizer of torch.optim"
            )
        for module in root.modules():
            if isinstance(module, TableModule):
                found.setdefault(id(module.agent), module.agent)
    if not found:
        raise InvalidArgumentError(
            f"none of the {len(roots)} modules given holds a table; give modules that contain an "
            "EmbeddingBagCollection, EmbeddingCollection, Embedding or EmbeddingBag of "
            "sparring_torch"
        )
    return list(found.values())
