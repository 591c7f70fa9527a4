"""Trains a DLRM on random clicks, on one rank or several: TorchRec's golden training example.

    python train_dlrm.py
    torchrun --nproc-per-node 2 train_dlrm.py

The calls are the same as in examples/golden_training/train_dlrm.py of github.com/pytorch/torchrec.
docs/how-to/come-from-torchrec.md describes the differences.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

from sparring_torch.torchrec import (
    DLRM,
    Batch,
    DistributedModelParallel,
    DLRMTrain,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    ExchangeOptions,
    KeyedJaggedTensor,
    KeyedOptimizerWrapper,
    RowWiseAdagrad,
    TrainPipelineSparseDist,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)

NUM_NUMBERS = 13
FEATURES = [f"cat_{place}" for place in range(6)]
NUM_IDS = 300


def random_batch(generator: torch.Generator, batch_size: int, rank: int, ranks: int) -> Batch:
    """Returns a rank's share of a batch. Clicks are likely if the first number is high and the first
    id even."""
    numbers = torch.randn(batch_size, NUM_NUMBERS, generator=generator)
    ids = torch.randint(NUM_IDS, (batch_size, len(FEATURES)), generator=generator)
    labels = (numbers[:, 0] + 1.0 - 2.0 * (ids[:, 0] % 2) > 0).float()
    own = slice(rank, None, ranks)
    values = ids[own].T.flatten()
    features = KeyedJaggedTensor(FEATURES, values, lengths=torch.ones_like(values))
    return Batch(numbers[own], features, labels[own])


def random_batches(num_steps: int, batch_size: int, rank: int, ranks: int) -> Iterator[Batch]:
    """Yields batches that do not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        yield random_batch(generator, batch_size, rank, ranks)


def train(
    embedding_dim: int = 8,
    learning_rate: float = 0.2,
    batch_size: int = 256,
    num_steps: int = 40,
) -> float:
    """Trains a DLRM; returns its log loss on a new batch."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        device, backend = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}"), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    if ranks > 1:
        dist.init_process_group(backend)
    torch.manual_seed(1)

    tables = [
        EmbeddingBagConfig(name=f"t_{name}", embedding_dim=embedding_dim, feature_names=[name])
        for name in FEATURES
    ]
    model = DLRM(
        embedding_bag_collection=EmbeddingBagCollection(tables, device=torch.device("meta")),
        dense_in_features=NUM_NUMBERS,
        dense_arch_layer_sizes=[16, embedding_dim],
        over_arch_layer_sizes=[16, 1],
        dense_device=device,
    )
    train_model = DLRMTrain(model)
    apply_optimizer_in_backward(
        RowWiseAdagrad, train_model.model.sparse_arch.parameters(), {"lr": learning_rate}
    )
    distributed = DistributedModelParallel(
        module=train_model,
        device=device,
        # Replaces QCommsConfig; exact, so that results do not depend on the number of ranks.
        exchange=ExchangeOptions(row_wire_dtype="exact", gradient_wire_dtype="exact"),
    )
    dense_optimizer = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(distributed.named_parameters())),
        lambda params: torch.optim.Adagrad(params, lr=learning_rate),
    )
    pipeline = TrainPipelineSparseDist(distributed, dense_optimizer, device)

    batches = random_batches(num_steps, batch_size, rank, ranks)
    while True:
        try:
            pipeline.progress(batches)
        except StopIteration:
            break

    distributed.eval()
    unseen = random_batch(torch.Generator().manual_seed(1), 1000, 0, 1).to(device)
    with torch.no_grad():
        logits = model(unseen.dense_features, unseen.sparse_features).squeeze(1)
    loss = float(binary_cross_entropy_with_logits(logits, unseen.labels))
    distributed.close()
    if ranks > 1:
        dist.destroy_process_group()
    return loss


if __name__ == "__main__":
    found = train()
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"log loss {found:.9f}")
