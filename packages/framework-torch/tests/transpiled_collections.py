"""A model with TorchRec's collections."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)

__all__ = ["Collections", "batch"]

ROWS, DIM = 20, 4


class Collections(nn.Module):
    """Bags of two features and sequences of one."""

    def __init__(self) -> None:
        super().__init__()
        size = {"embedding_dim": DIM, "num_embeddings": ROWS}
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name="shared", feature_names=["a", "b"], **size),
                EmbeddingBagConfig(
                    name="mean", feature_names=["a"], pooling=PoolingType.MEAN, **size
                ),
            ]
        )
        self.sequences = EmbeddingCollection(
            tables=[EmbeddingConfig(name="single", feature_names=["b"], **size)]
        )
        self.score = nn.Linear(4 * DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        single = self.sequences(features)["b"].to_padded_dense(3).sum(1)
        return self.score(torch.cat([self.bags(features).values(), single], 1)).squeeze(1)


def batch(generator: Generator) -> tuple[KeyedJaggedTensor, Tensor]:
    """Returns features of 6 examples, some of them empty, and targets."""
    lengths = torch.randint(0, 4, (12,), generator=generator, dtype=torch.int32)
    values = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    features = KeyedJaggedTensor(keys=["a", "b"], values=values, lengths=lengths)
    return features, torch.rand(6, generator=generator)
