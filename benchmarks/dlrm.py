"""A complete DLRM with 26 tables, compared with TorchRec: the same dense layers and batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads
from sparring import _native
from sparring_torch.device.intra_op_threads import borrow_intra_op_threads

__all__ = ["Batch", "Dense", "batch_of", "features_of", "measure"]

NUM_TABLES, DIM, NUM_ROWS, NUM_SAMPLES, NUM_INTEGERS = 26, 16, 100_000, 8_192, 13
THREADS, NUM_BATCHES, LR, EPS, BAR = 2, 8, 0.02, 1e-8, 1.1
TOLERANCE = 1e-4
Batch = tuple[Tensor, Tensor, Tensor]
"""Concatenated ids of all features, integers, labels."""


class Dense(nn.Module):
    """The layers that both models share: a bottom network, dot products, a top network."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(NUM_INTEGERS, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU()
        )
        pairs = torch.tril_indices(NUM_TABLES + 1, NUM_TABLES + 1, offset=-1)
        self.register_buffer("pairs", pairs[0] * (NUM_TABLES + 1) + pairs[1])
        self.top = nn.Sequential(nn.Linear(DIM + pairs.shape[1], 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, integers: Tensor, embeddings: Tensor) -> Tensor:
        bottom = self.bottom(integers)
        vectors = torch.cat([bottom.unsqueeze(1), embeddings.view(-1, NUM_TABLES, DIM)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        logits: Tensor = self.top(torch.cat([bottom, products], dim=1)).squeeze(1)
        return logits


@torch_threads(THREADS)
def measure(scale: Scale) -> list[Figure]:
    """Measures samples per second, including all optimizer steps."""
    what = f"DLRM, {NUM_TABLES} tables of dim {DIM}, batches of {NUM_SAMPLES:,}"
    try:
        # Imported here, because not every environment contains it.
        import torchrec  # noqa: F401
        from fbgemm_gpu.split_embedding_configs import EmbOptimType  # noqa: F401
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return [Figure(what, "not measured", bar=f">= {BAR:g} x", detail=detail)]
    num_rows, num_samples = scale.rows(NUM_ROWS), scale.rows(NUM_SAMPLES)
    random = np.random.default_rng(0)
    weights = [
        random.standard_normal((num_rows, DIM), np.float32) * np.float32(0.05)
        for _ in range(NUM_TABLES)
    ]
    inputs = [batch_of(random, num_rows, num_samples) for _ in range(NUM_BATCHES)]
    ours, our_loss = _ours(weights, inputs)
    theirs, their_loss = _theirs(weights, inputs)
    losses = [(our_loss(), their_loss())]
    for _ in range(3):
        ours()
        theirs()
        losses.append((our_loss(), their_loss()))
    for one, other in losses:
        if abs(one - other) > TOLERANCE:
            raise AssertionError(f"the losses differ: {losses}")
    contenders = {"ours": ours, "theirs": theirs, "dense": _dense_alone(inputs)}
    contenders["own threads"] = _on_own_threads(ours)
    timings = alternate(contenders, rounds=scale.rounds(15))
    gain = ratios(timings["own threads"], timings["ours"])
    found = ratios(timings["theirs"], timings["ours"])
    most = ratios(timings["theirs"], timings["dense"])
    return [
        Figure(
            what=what,
            value=f"{median(found):.2f} x TorchRec EmbeddingBagCollection, fused rowwise Adagrad",
            bar=f">= {BAR:g} x",
            is_reached=median(found) >= BAR,
            detail=(
                f"{num_samples / timings['ours'].median:,.0f} against "
                f"{num_samples / timings['theirs'].median:,.0f} samples/s; rounds "
                f"{min(found):.2f}-{max(found):.2f}"
            ),
            ratio=median(found),
        ),
        Figure(
            what="  upper limit, with embeddings that take no time",
            value=f"{median(most):.2f} x",
            detail=f"only the dense layers take {timings['dense'].median * 1e3:.1f} ms of our "
            f"{timings['ours'].median * 1e3:.1f} ms",
        ),
        Figure(
            what="  loops on torch's threads, compared with a separate thread pool",
            value=f"{median(gain):.2f} x",
            detail=f"{timings['own threads'].median * 1e3:.1f} ms on a pool; rounds "
            f"{min(gain):.2f}-{max(gain):.2f}",
            ratio=median(gain),
        ),
    ]


def _on_own_threads(step: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        _native.give_back_threads()
        try:
            return step()
        finally:
            borrow_intra_op_threads()

    return run


def batch_of(
    random: np.random.Generator, num_rows: int, num_samples: int, bag_size: int = 1
) -> Batch:
    ids = np.minimum(random.zipf(1.2, NUM_TABLES * num_samples * bag_size) - 1, num_rows - 1)
    integers = random.standard_normal((num_samples, NUM_INTEGERS), np.float32)
    labels = (random.random(num_samples) < 0.3).astype(np.float32)
    return torch.from_numpy(ids), torch.from_numpy(integers), torch.from_numpy(labels)


def features_of(kind: Any, batch: Batch) -> Any:
    names = [f"f{i}" for i in range(NUM_TABLES)]
    num_bags = NUM_TABLES * len(batch[1])
    lengths = torch.full((num_bags,), len(batch[0]) // num_bags, dtype=torch.int64)
    return kind(keys=names, values=batch[0], lengths=lengths)


def _runner(
    embed: Any, features: list[Any], inputs: list[Batch], update: Any
) -> tuple[Callable[[], object], Callable[[], float]]:
    torch.manual_seed(0)
    dense = Dense()
    adam = torch.optim.Adam(dense.parameters(), lr=1e-3)
    turns = cycle(list(zip(features, inputs, strict=True)))

    def loss_of(jagged: Any, batch: Batch) -> Tensor:
        logits = dense(batch[1], embed(jagged).values())
        return nn.functional.binary_cross_entropy_with_logits(logits, batch[2])

    def step() -> object:
        loss_of(*next(turns)).backward()
        update()
        adam.step()
        return adam.zero_grad()

    def loss() -> float:
        with torch.no_grad():
            return float(loss_of(features[0], inputs[0]))

    return step, loss


def _dense_alone(inputs: list[Batch]) -> Callable[[], object]:
    """A step with embeddings that take no time: an upper limit for all kinds of tables."""
    num_samples = len(inputs[0][1])
    embeddings = torch.randn(num_samples, NUM_TABLES * DIM, requires_grad=True)

    class Free:
        def values(self) -> Tensor:
            return embeddings

    step, _ = _runner(lambda _: Free(), [None] * len(inputs), inputs, lambda: None)
    return step


def _ours(
    weights: list[np.ndarray[Any, Any]], inputs: list[Batch]
) -> tuple[Callable[[], object], Callable[[], float]]:
    from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
    from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
    from sparring_torch.modules.table_configs import EmbeddingBagConfig
    from sparring_torch.optim.optimizer import Optimizer

    module = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=DIM, feature_names=[f"f{i}"])
            for i in range(NUM_TABLES)
        ]
    )
    optimizer = Optimizer(module, "rowwise_adagrad", lr=LR, eps=EPS)
    for i, weight in enumerate(weights):
        rows = np.zeros((len(weight), DIM + 1), np.float32)
        rows[:, :DIM] = weight
        optimizer.container.storage(f"t{i}").upsert(np.arange(len(weight)), rows)
    features = [features_of(KeyedJaggedTensor, batch) for batch in inputs]

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return _runner(module, features, inputs, update)


def _theirs(
    weights: list[np.ndarray[Any, Any]], inputs: list[Batch]
) -> tuple[Callable[[], object], Callable[[], float]]:
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    module = FusedEmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t{i}",
                embedding_dim=DIM,
                num_embeddings=len(weight),
                feature_names=[f"f{i}"],
            )
            for i, weight in enumerate(weights)
        ],
        optimizer_type=torchrec.optim.RowWiseAdagrad,
        optimizer_kwargs={"lr": LR, "eps": EPS},
        device=torch.device("cpu"),
    )
    assert EmbOptimType is not None
    state = module.state_dict()
    with torch.no_grad():
        for i, weight in enumerate(weights):
            state[f"embedding_bags.t{i}.weight"].copy_(torch.from_numpy(weight))
    features = [features_of(torchrec.KeyedJaggedTensor, batch) for batch in inputs]
    return _runner(module, features, inputs, lambda: None)
