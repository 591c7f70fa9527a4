"""Small typical programs for one machine, without sparring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adagrad, Adam, SparseAdam

__all__ = ["PROGRAMS", "STEPS", "Program", "optimizers_of", "train"]

STEPS = 20
ROWS, DIM = 40, 8


@dataclass(frozen=True)
class Program:
    """A model, its optimizer, its batches, and the training loop.

    Args:
        model: creates the model.
        optimizer: creates the optimizer, or several, of the model.
        batch: arguments of the model for 8 examples.
        loop: receives model, optimizers, batches.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Any]
    batch: Callable[[Generator], tuple[Any, ...]]
    loop: Callable[..., None]


def ids(generator: Generator, *shape: int, rows: int = ROWS) -> Tensor:
    return torch.randint(0, rows, shape, generator=generator)


def target(generator: Generator, count: int = 8) -> Tensor:
    return torch.rand(count, generator=generator)


def optimizers_of(given: Any) -> list[torch.optim.Optimizer]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


# -- models


class Pooled(nn.Module):
    """Mean of embeddings, then a layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM, **options)
        self.score = nn.Linear(DIM, 1, dtype=options.get("dtype"))

    def forward(self, words: Tensor) -> Tensor:
        return self.score(self.words(words).flatten(1, -2).mean(1)).squeeze(1)


class Scaled(nn.Embedding):
    """A custom class that starts with small rows."""

    def reset_parameters(self) -> None:
        self.weight.data.normal_(0, 0.1)


class Factorization(nn.Module):
    """Users and items, with biases of dim 1."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = Scaled(ROWS, DIM), Scaled(ROWS, DIM)
        self.user_bias, self.item_bias = Scaled(ROWS, 1), Scaled(ROWS, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        bias = self.user_bias(user) + self.item_bias(item)
        return (self.user(user) * self.item(item)).sum(-1) + bias.squeeze(-1)


class Bags(nn.Module):
    """One bag per example."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, DIM, **options)
        self.score = nn.Linear(DIM, 1)

    def forward(self, *given: Tensor) -> Tensor:
        return self.score(self.bags(*given)).squeeze(1)


class WeightedBags(nn.Module):
    """Weights of ids are trained, too."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.positions = nn.Parameter(torch.rand(5))
        self.score = nn.Linear(DIM, 1)

    def forward(self, words: Tensor) -> Tensor:
        weights = self.positions.expand(len(words), 5)
        return self.score(self.bags(words, per_sample_weights=weights)).squeeze(1)


class Towers(nn.Module):
    """Two towers; if `is_shared`, their common part is one module with two names."""

    def __init__(self, is_shared: bool = False) -> None:
        super().__init__()
        self.query = nn.Embedding(ROWS, DIM)
        self.item = self.query if is_shared else nn.Embedding(ROWS, DIM)
        self.left = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.right = nn.Linear(DIM, DIM)

    def forward(self, query: Tensor, item: Tensor) -> Tensor:
        return (self.left(self.query(query).mean(1)) * self.right(self.item(item))).sum(1)


class Clicks(nn.Module):
    """DLRM: bags of several features, their products, and two stacks of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True) for _ in range(3)
        )
        self.bottom = nn.Sequential(nn.Linear(4, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM + 6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, *features: Tensor) -> Tensor:
        first = self.bottom(dense)
        parts = [first, *(table(each) for table, each in zip(self.tables, features, strict=True))]
        stacked = torch.stack(parts, 1)
        products = stacked @ stacked.transpose(1, 2)
        row, column = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([first, products[:, row, column]], 1)).squeeze(1)


class Sequences(nn.Module):
    """An LSTM with embeddings and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, DIM, padding_idx=0)
        self.lstm = nn.LSTM(DIM, DIM, batch_first=True)
        self.score = nn.Linear(DIM, 1)

    def forward(self, items: Tensor) -> Tensor:
        return self.score(self.lstm(self.items(items))[0][:, -1]).squeeze(1)


class Attention(nn.Module):
    """Words and positions in a transformer layer; an output layer over all classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(ROWS, DIM), nn.Embedding(6, DIM)
        self.layer = nn.TransformerEncoderLayer(DIM, 2, 16, dropout=0.0, batch_first=True)
        self.classes = nn.Linear(DIM, ROWS)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1]).expand_as(words)
        embedded = self.words(words) + self.positions(places)
        return self.classes(self.layer(embedded)).logsumexp(-1).mean(1)


class SkipGrams(nn.Module):
    """Centers and contexts with negative examples."""

    def __init__(self) -> None:
        super().__init__()
        self.center = nn.Embedding(ROWS, DIM, sparse=True)
        self.context = nn.Embedding(ROWS, DIM, sparse=True)

    def forward(self, center: Tensor, context: Tensor, negative: Tensor) -> Tensor:
        middle = self.center(center)
        near = (middle * self.context(context)).sum(-1)
        far = (self.context(negative) @ middle.unsqueeze(2)).squeeze(2)
        return functional.logsigmoid(near) + functional.logsigmoid(-far).sum(1)


class Machine(nn.Module):
    """A factorization machine with features in a dict."""

    def __init__(self) -> None:
        super().__init__()
        names = ["shop", "city", "hour of day"]
        self.factors = nn.ModuleDict({name: nn.Embedding(ROWS, DIM) for name in names})
        self.linear = nn.ModuleDict({name: nn.Embedding(ROWS, 1) for name in names})

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        parts = torch.stack([self.factors[name](each) for name, each in features.items()], 1)
        pairs = (parts.sum(1).square() - parts.square().sum(1)).sum(1) / 2
        return pairs + sum(self.linear[name](each) for name, each in features.items()).squeeze(1)


class Pretrained(nn.Module):
    """Frozen words with trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.known = nn.Embedding.from_pretrained(torch.rand(ROWS, DIM))
        self.words = nn.Embedding(ROWS, DIM)
        self.score = nn.Linear(2 * DIM, 1)

    def forward(self, words: Tensor) -> Tensor:
        joined = torch.cat([self.known(words), self.words(words)], -1)
        return self.score(joined.mean(1)).squeeze(1)


class Nested(nn.Module):
    """An embedding inside of torch's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Sequential(nn.Embedding(ROWS, DIM), nn.LayerNorm(DIM)),
            nn.Flatten(),
            nn.Linear(24, 1),
        )

    def forward(self, words: Tensor) -> Tensor:
        return self.body(words).squeeze(1)


# -- loops


def losses(model: nn.Module, batches: Iterator[Any]) -> Iterator[Tensor]:
    for given, wanted in batches:
        yield functional.mse_loss(model(*given), wanted)


def plain(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    for loss in losses(model, batches):
        for each in optimizers:
            each.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()


def by_model(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    """The model drops gradients, and some steps only evaluate."""
    for number, (given, wanted) in enumerate(batches):
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(*given)
            model.train()
        model.zero_grad()
        functional.mse_loss(model(*given), wanted).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()


def accumulated(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    for number, loss in enumerate(losses(model, batches)):
        (loss / 2).backward()
        if number % 2:
            optimizers[0].step()
            optimizers[0].zero_grad()


def scheduled(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    (optimizer,) = optimizers
    rates = [lambda step: 0.9**step for _ in optimizer.param_groups]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
    for loss in losses(model, batches):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.param_groups[0]["lr"] *= 0.99  # by hand too


def clipped(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    for loss in losses(model, batches):
        optimizers[0].zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizers[0].step()


def with_closure(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    for given, wanted in batches:

        def closure(given: Any = given, wanted: Any = wanted) -> Tensor:
            optimizers[0].zero_grad()
            loss = functional.mse_loss(model(*given), wanted)
            loss.backward()
            return loss

        assert optimizers[0].step(closure) is not None


def in_bfloat16(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    for given, wanted in batches:
        optimizers[0].zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.mse_loss(model(*given).float(), wanted)
        loss.backward()
        optimizers[0].step()


def loss_scaled(model: nn.Module, optimizers: list[Any], batches: Iterator[Any]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for loss in losses(model, batches):
        optimizers[0].zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[0])
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizers[0])
        scaler.update()


def train(
    program: Program, model: nn.Module, optimizers: list[Any], part: slice = slice(None)
) -> None:
    """Trains on the program's batches, or on some examples of each."""
    generator = Generator().manual_seed(7)

    def batches() -> Iterator[Any]:
        for _ in range(STEPS):
            given, wanted = program.batch(generator), target(generator)
            yield tuple(_part(each, part) for each in given), wanted[part]

    program.loop(model, optimizers, batches())


def _part(given: Any, part: slice) -> Any:
    if isinstance(given, dict):
        return {name: _part(each, part) for name, each in given.items()}
    return given[part] if part != slice(None) else given


# -- programs


def sgd(model: nn.Module) -> Any:
    return SGD(model.parameters(), lr=0.02)


def adagrad(model: nn.Module) -> Any:
    return Adagrad(model.parameters(), lr=0.1)


def decayed(model: nn.Module) -> Any:
    return Adagrad(model.parameters(), lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1)


def two_optimizers(model: Any) -> Any:
    return [
        SparseAdam(model.words.parameters(), lr=0.01),
        Adam(model.score.parameters(), lr=0.01),
    ]


def grouped(model: Any) -> Any:
    return SGD(
        [{"params": model.score.parameters(), "lr": 0.01}, {"params": [model.words.weight]}], lr=0.8
    )


def rates(model: Any) -> Any:
    """Each embedding has a separate learning rate, and one shares its group with layers."""
    groups = [
        {"params": [*model.item.parameters(), *model.left.parameters()], "lr": 0.02},
        {"params": model.right.parameters()},
        {"params": model.query.parameters(), "lr": 0.3, "lr_decay": 0.05},
    ]
    return Adagrad(groups, lr=0.1)


def named(model: nn.Module) -> Any:
    return Adagrad(model.named_parameters(), lr=0.1)


def one(*shape: int) -> Callable[[Generator], tuple[Any, ...]]:
    return lambda generator: (ids(generator, 8, *shape),)


def two(*shape: int) -> Callable[[Generator], tuple[Any, ...]]:
    return lambda generator: (ids(generator, 8, *shape), ids(generator, 8))


def bags(generator: Generator) -> tuple[Any, ...]:
    """Offsets, with empty bags."""
    lengths = torch.randint(0, 4, (8,), generator=generator)
    return ids(generator, int(lengths.sum())), lengths.cumsum(0) - lengths


def ended_bags(generator: Generator) -> tuple[Any, ...]:
    given, offsets = bags(generator)
    return given, torch.cat([offsets, torch.tensor([len(given)])])


def clicks(generator: Generator) -> tuple[Any, ...]:
    dense = torch.rand(8, 4, generator=generator)
    return (dense, *(ids(generator, 8, 3) for _ in range(3)))


def words_in_int32(generator: Generator) -> tuple[Any, ...]:
    return (ids(generator, 8, 2, 3).int(),)


def features(generator: Generator) -> tuple[Any, ...]:
    names = ["shop", "city", "hour of day"]
    return ({name: ids(generator, 8) for name in names},)


def grams(generator: Generator) -> tuple[Any, ...]:
    return ids(generator, 8), ids(generator, 8), ids(generator, 8, 3)


PROGRAMS: dict[str, Program] = {
    "sgd": Program(Pooled, sgd, one(3), plain),
    "sgd, sparse": Program(lambda: Pooled(sparse=True), sgd, one(3), plain),
    "adagrad": Program(Pooled, adagrad, one(3), plain),
    "adagrad, sparse": Program(lambda: Pooled(sparse=True), decayed, one(3), plain),
    "SparseAdam and Adam": Program(lambda: Pooled(sparse=True), two_optimizers, one(3), plain),
    "padding": Program(lambda: Pooled(padding_idx=-1), adagrad, one(3), plain),
    "float64": Program(lambda: Pooled(dtype=torch.float64), sgd, one(3), plain),
    "3-D ids of int32": Program(Pooled, adagrad, words_in_int32, plain),
    "bags with offsets": Program(lambda: Bags(mode="sum"), sgd, bags, plain),
    "bags with an end": Program(
        lambda: Bags(mode="mean", include_last_offset=True, padding_idx=3),
        adagrad,
        ended_bags,
        plain,
    ),
    "bags of one length": Program(Bags, adagrad, one(4), plain),
    "bags with weights": Program(WeightedBags, sgd, one(5), plain),
    "factorization": Program(Factorization, sgd, two(), plain),
    "two towers": Program(Towers, adagrad, two(4), plain),
    "shared embedding": Program(lambda: Towers(is_shared=True), adagrad, two(4), plain),
    "DLRM": Program(Clicks, sgd, clicks, plain),
    "LSTM": Program(Sequences, adagrad, one(5), plain),
    "transformer": Program(Attention, sgd, one(6), plain),
    "skip-grams": Program(SkipGrams, sgd, grams, plain),
    "factorization machine": Program(Machine, adagrad, features, plain),
    "frozen and trained": Program(Pretrained, adagrad, one(4), plain),
    "sequential": Program(Nested, adagrad, one(3), plain),
    "two groups": Program(Pooled, grouped, one(3), plain),
    "named parameters": Program(Pooled, named, one(3), plain),
    "zeroed by the model": Program(Towers, sgd, two(4), by_model),
    "accumulated gradients": Program(Towers, adagrad, two(4), accumulated),
    "scheduler": Program(Pooled, sgd, one(3), scheduled),
    "groups of embeddings": Program(Towers, rates, two(4), scheduled),
    "scheduler of two groups": Program(Pooled, grouped, one(3), scheduled),
    "clipped gradients": Program(Towers, sgd, two(4), clipped),
    "closure": Program(Pooled, sgd, one(3), with_closure),
    "autocast bfloat16": Program(Towers, adagrad, two(4), in_bfloat16),
    "scaled loss": Program(Towers, sgd, two(4), loss_scaled),
}
