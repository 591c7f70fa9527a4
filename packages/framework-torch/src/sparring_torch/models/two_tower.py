"""`TwoTower`: maps queries and candidates to one space, for retrieval."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.models.clicks import Batch
from sparring_torch.models.layers import MLP
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import table_features

__all__ = ["TwoTower", "TwoTowerTrainTask"]


class TwoTower(nn.Module):
    """Two towers of layers: one for the embeddings of queries, one for candidates.

    ::

        ids of the first table's feature  ──► (b, dim) ──► query_proj ──► (b, layer_sizes[-1])
        ids of the second table's feature ──► (b, dim) ──► candidate_proj ──► (b, layer_sizes[-1])

    To build an index of candidates, compute ``candidate_proj(rows)``, with rows from a snapshot or, for
    known ids, from ``model.ebc``.

    Args:
        embedding_bag_collection: two tables of one feature each: queries first, then candidates.
        layer_sizes: widths of the layers of each tower; all have an activation.
        device: device of the layers.

    Raises:
        InvalidArgumentError: there are not two tables of one feature each.

    Examples:
        >>> from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig
        >>> from sparring_torch import KeyedJaggedTensor, TwoTower
        >>> configs = [EmbeddingBagConfig(name=name, embedding_dim=4) for name in ("user", "item")]
        >>> model = TwoTower(EmbeddingBagCollection(configs), [8, 2])
        >>> users, items = model(KeyedJaggedTensor(["user", "item"], [1, 2], lengths=[1, 1]))
        >>> users.shape, items.shape
        (torch.Size([1, 2]), torch.Size([1, 2]))
    """

    def __init__(
        self,
        embedding_bag_collection: EmbeddingBagCollection,
        layer_sizes: Sequence[int],
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        configs = embedding_bag_collection.embedding_bag_configs()
        features = [table_features(config) for config in configs]
        if [len(each) for each in features] != [1, 1]:
            raise InvalidArgumentError(
                f"TwoTower: found features {features}, expected two tables of one feature each"
            )
        self._query, self._candidate = (each[0] for each in features)
        self.ebc = embedding_bag_collection
        query, candidate = (config.embedding_dim for config in configs)
        self.query_proj = MLP(query, layer_sizes, device=device)
        self.candidate_proj = MLP(candidate, layer_sizes, device=device)

    def forward(self, kjt: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        """Returns vectors of queries and of candidates, each ``(b, layer_sizes[-1])``.

        Args:
            kjt: ids of both features.
        """
        pooled = self.ebc(kjt)
        return self.query_proj(pooled[self._query]), self.candidate_proj(pooled[self._candidate])


class TwoTowerTrainTask(nn.Module):
    """A `TwoTower` with its loss, for pipelines.

    Args:
        two_tower: the model.
    """

    def __init__(self, two_tower: TwoTower) -> None:
        super().__init__()
        self.two_tower = two_tower

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Returns the mean log loss of dot products, and a tuple: detached loss, logits, labels
        ``(b,)``.

        Dense features of `batch` are ignored.
        """
        queries, candidates = self.two_tower(batch.sparse_features)
        logits = (queries * candidates).sum(1)
        loss = binary_cross_entropy_with_logits(logits, batch.labels.to(logits.dtype))
        return loss, (loss.detach(), logits.detach(), batch.labels.detach())
