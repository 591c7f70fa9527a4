"""`EmbeddingBagCollection`: tables whose embeddings are pooled, feature by feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.device.groups import build_bag_groups, split_by_feature
from sparring_torch.device.memory import memory_errors
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.jagged.keyed_parts import check_inverse
from sparring_torch.jagged.keyed_tensor import KeyedTensor
from sparring_torch.lookup.batch_lookup import Bags
from sparring_torch.lookup.feature_router import FeatureRouter
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.table_configs import (
    EmbeddingBagConfig,
    PoolingType,
    choose_storage,
    declare_table,
    feature_outputs,
    table_features,
)
from sparring_torch.modules.table_module import TableModule

__all__ = ["EmbeddingBagCollection"]


class EmbeddingBagCollection(TableModule):
    """Looks up and pools the ids of a `KeyedJaggedTensor` into a `KeyedTensor`, as in TorchRec.

    With tables ``users`` of dim 4 for feature ``user`` and ``items`` of dim 8 for features
    ``viewed`` and ``bought``, a batch of b examples becomes ``(b, 4 + 8 + 8)``, and
    ``keyed["viewed"]`` is ``(b, 8)``. The two features share the rows of ``items``.

    Rows are not parameters: they are in storages, and `sparring_torch.Optimizer` trains them. If
    `training` is off, or under `torch.no_grad`, lookups only read; an id that was never trained
    reads as its initial value and gets no row.

    Args:
        tables: the tables.
        is_weighted: whether each embedding is multiplied by the weight of its id in the batch;
            weights may require a gradient. Otherwise weights are ignored.
        unknown_features: ``ignore`` features of a batch that belong to no table, as TorchRec does,
            or ``reject`` them with an error.
        storage: storage of tables whose configuration names none.
        device: device of the rows, see `EmbeddingBag`. If all tables are on a GPU, batches on that
            GPU are looked up, pooled and trained there. A batch that does not know its number of
            ids per feature waits for the GPU once; `KeyedJaggedTensor.sync` before ``to`` avoids it.
        container: container of the tables; None leaves the choice to the `Optimizer`.
        shared: whether other modules may use the same rows: a second module that declares the name of
            the table raises an error unless one of both has ``shared=True``.

    Raises:
        InvalidArgumentError: there are no tables, two tables have one name, or a number is out of
            range.

    Examples:
        >>> import torch
        >>> from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
        >>> tables = [EmbeddingBagConfig(name="items", embedding_dim=8, feature_names=["viewed"])]
        >>> batch = KeyedJaggedTensor(
        ...     ["viewed"], torch.tensor([1, 2, 3]), lengths=torch.tensor([2, 1])
        ... )
        >>> EmbeddingBagCollection(tables)(batch)["viewed"].shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        is_weighted: bool = False,
        *,
        unknown_features: str = "ignore",
        storage: StorageLike = "hkv",
        device: torch.device | str | None = None,
        container: StepContainer | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        outputs = feature_outputs(tables)
        self._tables = list(tables)
        self._is_weighted = is_weighted
        pooled = [
            (config.name, _mode(config))
            for config, each in zip(tables, outputs, strict=True)
            for _ in each
        ]
        self._names = [name for each in outputs for name in each]
        self._dims = [
            config.embedding_dim for config, each in zip(tables, outputs, strict=True) for _ in each
        ]
        self._router = FeatureRouter(
            [table_features(config) for config in tables],
            "EmbeddingBagCollection",
            unknown_features,
        )
        everywhere = choose_storage(device, storage)
        declared = [declare_table(config, everywhere) for config in tables]
        self.agent = TrainAgent(declared, pooled, container, shared=shared)
        self.register_for_ops()

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """Returns the configurations of the tables."""
        return self._tables

    def is_weighted(self) -> bool:
        return self._is_weighted

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Returns pooled embeddings ``(examples, sum of dims)``, on the device of the ids.

        Args:
            features: a batch with the features of all tables, in any order.

        Raises:
            InvalidArgumentError: features and tables do not match, weights are missing, or a value
                is not a valid id.
        """
        if not torch.compiler.is_compiling():
            return self._eager(features)
        positions, inverse = self._router.op_positions(features), None
        if features.variable_stride_per_key():
            inverse = features.inverse_indices()[1][positions[:-1]]
            features = features.with_even_stride()
        values = torch.ops.sparring.pooled_lookup(
            features.values(),
            features.lengths(),
            features.weights() if self._is_weighted else None,
            *self.op_arguments(),
            positions,
            features.stride(),
            sum(self._dims),
        )
        return self._keyed(values, inverse)

    def _eager(self, features: KeyedJaggedTensor) -> KeyedTensor:
        is_training = self.is_training
        try:
            positions = self._router.positions(features)
            inverse = None
            if features.variable_stride_per_key():
                inverse = features.inverse_indices()[1][positions]
                features = features.with_even_stride()
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        path = self.agent.path_for(features.values(), is_training=is_training)
        if path is not None:
            with memory_errors(path.device):
                with self.agent.raising_on_all_ranks(path, is_training=is_training):
                    weights = features.weights() if self._is_weighted else None
                    groups = build_bag_groups(self.agent.features, features, positions, weights)
                outputs = path.pool(self.agent.container, groups, is_training=is_training)
                parts = split_by_feature(groups, outputs, [features.stride()] * len(positions))
                return self._keyed(torch.cat(parts, dim=1), inverse)
        try:
            bags = self.parse_input(features)
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        values = self.agent.host.pool(bags, is_training=is_training)
        if features.device().type != "cpu":
            values = values.to(features.device())
        return self._keyed(values, inverse)

    def _keyed(self, values: Tensor, inverse: Tensor | None) -> KeyedTensor:
        """Expands pooled embeddings of bags to examples.

        Args:
            values: ``(bags of a feature, sum of dims)``.
            inverse: ``(outputs, examples)``, the bag of each example; None if bags are examples.
        """
        if inverse is not None:
            check_inverse(inverse, len(values))
            parts = zip(
                torch.split(values, self._dims, dim=1), inverse.to(values.device), strict=True
            )
            values = torch.cat([part.index_select(0, bags) for part, bags in parts], dim=1)
        return KeyedTensor._from_valid(self._names, self._dims, values)

    def look_up(self, *arguments: Any) -> Tensor:
        """Returns the result of `forward` for an operator of torch, without recording a gradient.

        Args:
            *arguments: ids, lengths, weights, positions of the features, and the number of bags.
        """
        ids, lengths, weights, positions, _num_bags = arguments
        with torch.no_grad():
            return self._eager(self._router.batch(ids, lengths, weights, positions)).values()

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> Tensor | None:
        """Adds the gradient of a lookup by an operator of torch to the gradients of the next step.

        Args:
            gradient: ``(examples, sum of dims)``.
            *arguments: arguments of the operator, as in `look_up`, and whether the weights require
                a gradient.

        Returns:
            The gradient of the weights, or None if they require none.

        Raises:
            UnsupportedError: the tables are on a device, and the weights require a gradient.
        """
        ids, lengths, weights, positions, _num_bags, are_weights_trained = arguments
        features = self._router.batch(ids, lengths, weights, positions)
        path = self.agent.path_of_gradient(features.values())
        split = zip(torch.split(gradient, self._dims, dim=1), self.agent.dtypes, strict=True)
        parts = [part.to(dtype) for part, dtype in split]
        if path is not None:
            groups = build_bag_groups(self.agent.features, features, positions[:-1], weights)
            joined = [torch.cat([parts[each] for each in group.members]) for group in groups]
            path.accumulate_sources(self.agent.container, groups, joined)
            if are_weights_trained:
                raise UnsupportedError(
                    "backward: a compiled EmbeddingBagCollection on a device cannot train weights; "
                    "call it outside of torch.compile, or put its tables in host memory"
                )
            return None
        bags, parts = self.parse_input(features), [part.cpu() for part in parts]
        self.agent.host.take_gradient(bags, parts)
        if not are_weights_trained:
            return None
        return self.agent.host.weight_gradient(bags, parts).to(features.device())

    def parse_input(self, features: KeyedJaggedTensor) -> Bags:
        """Returns the bags that `forward` looks up.

        Args:
            features: see `forward`.

        Raises:
            InvalidArgumentError: see `forward`.
        """
        return self._router.route(features, is_weighted=self._is_weighted)

    def extra_repr(self) -> str:
        return ", ".join(f"{config.name}: {config.embedding_dim}" for config in self._tables)


def _mode(config: EmbeddingBagConfig) -> str:
    try:
        found = PoolingType(config.pooling)
    except ValueError:
        found = PoolingType.NONE
    if found is PoolingType.NONE:
        raise InvalidArgumentError(
            f"pooling of table {config.name!r} must be PoolingType.SUM or PoolingType.MEAN, "
            f"found {config.pooling!r}; for embeddings without pooling use an EmbeddingCollection",
            table=config.name,
        )
    name: str = found.value
    return name.lower()
