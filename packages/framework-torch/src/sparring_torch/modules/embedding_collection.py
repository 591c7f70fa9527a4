"""`EmbeddingCollection`: several tables, without pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring_torch.device.groups import build_id_groups, split_by_feature
from sparring_torch.device.memory import memory_errors
from sparring_torch.device.path import DevicePath
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.lookup.batch_lookup import Bags, Ids
from sparring_torch.lookup.feature_router import FeatureRouter
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.table_configs import (
    EmbeddingConfig,
    choose_storage,
    declare_table,
    feature_outputs,
    table_features,
)
from sparring_torch.modules.table_module import TableModule, untraced

__all__ = ["EmbeddingCollection"]

# torch < 2.7 does not have it; there, batches of unknown lengths are not exported.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)


class EmbeddingCollection(TableModule):
    """Looks up one embedding per id of a `KeyedJaggedTensor`, without pooling.

    The result is a `JaggedTensor` of embeddings per feature, for sequences: a feature with bags of 2,
    3 and 1 ids in a table of dim 8 becomes values ``(6, 8)`` with lengths ``[2, 3, 1]``, which
    ``to_padded_dense()`` converts to ``(3, 3, 8)``. See `EmbeddingBagCollection` for training and
    evaluation.

    Args:
        tables: the tables.
        unknown_features: see `EmbeddingBagCollection`.
        storage: storage of tables whose configuration names none.
        device: see `EmbeddingBagCollection`.
        container: container of the tables; None leaves the choice to the `Optimizer`.
        shared: whether other modules may use the same rows: a second module that declares the name of
            the table raises an error unless one of both has ``shared=True``.

    Raises:
        InvalidArgumentError: there are no tables, two tables have one name, or a number is out of
            range.

    Examples:
        >>> import torch
        >>> from sparring_torch import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
        >>> words = EmbeddingConfig(name="words", embedding_dim=8, feature_names=["text"])
        >>> batch = KeyedJaggedTensor(
        ...     ["text"], torch.tensor([1, 2, 3, 4, 5, 6]), lengths=torch.tensor([2, 3, 1])
        ... )
        >>> found = EmbeddingCollection([words])(batch)["text"]
        >>> found.values().shape, found.lengths().tolist()
        (torch.Size([6, 8]), [2, 3, 1])
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        *,
        unknown_features: str = "ignore",
        storage: StorageLike = "hkv",
        device: torch.device | str | None = None,
        container: StepContainer | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self._tables = list(tables)
        self._outputs = feature_outputs(tables)
        self._router = FeatureRouter(
            [table_features(config) for config in tables],
            "EmbeddingCollection",
            unknown_features,
        )
        self._names = [name for each in self._outputs for name in each]
        self._dims = [
            config.embedding_dim
            for config, each in zip(tables, self._outputs, strict=True)
            for _ in each
        ]
        # The pooling has no effect, because each id is a separate bag.
        looked_up = [
            (config.name, "sum")
            for config, each in zip(tables, self._outputs, strict=True)
            for _ in each
        ]
        everywhere = choose_storage(device, storage)
        declared = [declare_table(config, everywhere) for config in tables]
        self.agent = TrainAgent(declared, looked_up, container, shared=shared)
        self.register_for_ops()

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """Returns the configurations of the tables."""
        return self._tables

    def embedding_names_by_table(self) -> list[list[str]]:
        """Returns the names of the outputs, table by table."""
        return self._outputs

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Returns embeddings ``(ids of the feature, dim)`` per feature, on the device of the ids.

        Args:
            features: a batch with the features of all tables, in any order.

        Raises:
            InvalidArgumentError: features and tables do not match, or a value is not a valid id.
        """
        if not torch.compiler.is_compiling():
            return self._eager(features)
        if features.length_per_key_or_none() is None and not _is_exporting():
            return self._forward_unsynced(features)
        positions, strides = self._router.positions(features), features.stride_per_key()
        features = features.with_even_stride()
        counts = features.length_per_key()
        sizes = [
            counts[position] * dim for position, dim in zip(positions, self._dims, strict=True)
        ]
        # One operator for features of different dims: each element of the output is a row.
        flat = torch.ops.sparring.pooled_lookup(
            features.values(),
            features.lengths(),
            None,
            *self.op_arguments(),
            self._router.op_positions(features),
            sum(sizes),
            1,
        )
        lengths = features.lengths().to(torch.int64).view(len(counts), features.stride())
        parts = self._build_output(torch.split(flat, sizes))
        return {
            name: JaggedTensor._from_valid(part, None, lengths[position, : strides[position]])
            for name, position, part in zip(self._names, positions, parts, strict=True)
        }

    @untraced
    def _forward_unsynced(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Same as `forward`, if a compiler cannot know the shapes of the result."""
        return self._eager(features)

    def _eager(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        is_training = self.is_training
        try:
            positions = self._router.positions(features)
            strides = features.stride_per_key()
            features = features.with_even_stride()
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        path = self.agent.path_for(features.values(), is_training=is_training)
        if path is not None:
            with memory_errors(path.device):
                return self._on_device(path, features, positions, strides)
        try:
            bags = self._router.route(features, is_weighted=False)
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        device, stride = features.device(), features.stride()
        parts = self.agent.host.gather(
            _split_ids(bags, len(features.keys())), is_training=is_training
        )
        lengths = torch.from_numpy(bags.offsets).diff().to(device)
        result: dict[str, JaggedTensor] = {}
        for name, position, part in zip(self._names, bags.positions, parts, strict=True):
            own = lengths[position * stride : position * stride + strides[position]]
            embeddings = part if device.type == "cpu" else part.to(device)
            result[name] = JaggedTensor._from_valid(embeddings, None, own)
        return result

    def _on_device(
        self,
        path: DevicePath,
        features: KeyedJaggedTensor,
        positions: list[int],
        strides: list[int],
    ) -> dict[str, JaggedTensor]:
        with self.agent.raising_on_all_ranks(path, is_training=self.is_training):
            groups = build_id_groups(self.agent.features, features, positions)
        outputs = path.pool(self.agent.container, groups, is_training=self.is_training)
        counts, stride = features.length_per_key(), features.stride()
        parts = split_by_feature(groups, outputs, [counts[position] for position in positions])
        lengths = features.lengths().to(torch.int64)
        return {
            name: JaggedTensor._from_valid(
                part, None, lengths[position * stride : position * stride + strides[position]]
            )
            for name, position, part in zip(self._names, positions, parts, strict=True)
        }

    def _build_output(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Reshapes elements ``(n, 1)`` to embeddings ``(ids of the feature, dim)``, or gradients."""
        return [
            part.view(-1, dim).to(dtype)
            for part, dim, dtype in zip(parts, self._dims, self.agent.dtypes, strict=True)
        ]

    def look_up(self, *arguments: Any) -> Tensor:
        """Returns the result of `forward` for an operator of torch, without recording a gradient.

        Args:
            *arguments: ids, lengths, weights, positions of the features, and the number of
                elements.
        """
        ids, lengths, weights, positions, _num_elements = arguments
        with torch.no_grad():
            found = self._eager(self._router.batch(ids, lengths, weights, positions))
        return torch.cat([each.values().reshape(-1, 1) for each in found.values()])

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> None:
        """Adds the gradient of a lookup by an operator of torch to the gradients of the next step.

        Args:
            gradient: ``(elements, 1)``, the gradients of all embeddings, feature after feature.
            *arguments: arguments of the operator, as in `look_up`.
        """
        ids, lengths, weights, positions, *_ = arguments
        features = self._router.batch(ids, lengths, weights, positions)
        positions = positions[:-1]
        counts = features.length_per_key()
        sizes = [
            counts[position] * dim for position, dim in zip(positions, self._dims, strict=True)
        ]
        parts = self._build_output(torch.split(gradient, sizes))
        path = self.agent.path_of_gradient(features.values())
        if path is None:
            self.agent.host.take_gradient(
                self.parse_input(features), [part.cpu() for part in parts]
            )
            return
        groups = build_id_groups(self.agent.features, features, positions)
        joined = [torch.cat([parts[each] for each in group.members]) for group in groups]
        path.accumulate_sources(self.agent.container, groups, joined)

    def parse_input(self, features: KeyedJaggedTensor) -> Ids:
        """Returns the ids that `forward` looks up.

        Args:
            features: see `forward`.

        Raises:
            InvalidArgumentError: see `forward`.
        """
        return _split_ids(self._router.route(features, is_weighted=False), len(features.keys()))

    def extra_repr(self) -> str:
        return ", ".join(f"{config.name}: {config.embedding_dim}" for config in self._tables)


def _split_ids(bags: Bags, num_features: int) -> Ids:
    """Splits the ids of bags by feature.

    Args:
        num_features: number of features of the batch.
    """
    stride = bags.num_bags
    ends = bags.offsets[::stride].tolist() if stride else [0] * (num_features + 1)
    return Ids(bags.ids, [(ends[position], ends[position + 1]) for position in bags.positions])
