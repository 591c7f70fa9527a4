"""Modules with column-wise sharded tables train bit-identically to one process, or raise an error."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring import StepContainer
from sparring.contracts import Collective, Reduction, TableSharding
from sparring.errors import UnsupportedError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import collect_pieces, join_pieces, make_batch
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.optim.optimizer_probe import probe


def container_of(
    collective: Collective | None, *, has_column_blocks: bool = True, transfer: Any = "rows"
) -> StepContainer:
    plan = {"user": TableSharding("column_wise", (1, 0), transfer, columns=2)}
    return StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(2) if collective else None,
        reduction=Reduction.SUM,
        plan=plan if collective and has_column_blocks else None,
    )


def one_id_bags(ids: Any) -> KeyedJaggedTensor:
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["a"], values=torch.from_numpy(ids), lengths=torch.ones(len(ids), dtype=torch.int64)
    )


def made(name: str, container: StepContainer) -> Any:
    """A module, and a function that returns embeddings ``(n, 4)`` of ids."""
    if name == "EmbeddingBagCollection":
        bag = EmbeddingBagConfig(name="user", embedding_dim=4, feature_names=["a"])
        bags = EmbeddingBagCollection(tables=[bag], container=container)
        return bags, lambda ids: bags(one_id_bags(ids)).values()
    if name == "EmbeddingCollection":
        config = EmbeddingConfig(name="user", embedding_dim=4, feature_names=["a"])
        found = EmbeddingCollection(tables=[config], container=container)
        return found, lambda ids: found(one_id_bags(ids))["a"].values()
    if name == "EmbeddingBag":
        bag_of = EmbeddingBag(4, name="user", mode="sum", container=container)
        return bag_of, lambda ids: bag_of(torch.from_numpy(ids)[:, None])
    embedding = Embedding(4, name="user", container=container)
    return embedding, lambda ids: embedding(torch.from_numpy(ids))


def train(
    module: str, native: Any, options: dict[str, Any], ranks: Any, held: StepContainer
) -> Any:
    """Runs three steps with gradients whose float sums are exact; returns rows and outputs."""
    part, embed = made(module, held)
    optimizer = Optimizer(part, native, lr=0.125, **options)
    seen = []
    for step in range(3):
        ids, gradients = make_batch(step, ranks)
        output = embed(ids)
        seen.append(output.detach().numpy().copy())
        (output * torch.from_numpy(gradients)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(optimizer.state_dict()["state"]["user"].get("step", 3)) == 3
    return collect_pieces(held), seen, part


@pytest.mark.parametrize(
    ("module", "native", "options"),
    [
        ("EmbeddingBagCollection", torch.optim.Adam, {}),
        ("EmbeddingBagCollection", torch.optim.Adam, {"update": "shadow"}),
        ("EmbeddingCollection", torch.optim.Adagrad, {"update": "shadow"}),
        ("EmbeddingBag", torch.optim.NAdam, {}),
        ("Embedding", torch.optim.SGD, {"momentum": 0.5, "update": "shadow"}),
        ("EmbeddingBag", "adagrad", {}),
    ],
    ids=str,
)
def test_modules_and_optimizers_have_the_bits_of_one_process(
    module: str, native: Any, options: dict[str, Any]
) -> None:
    with container_of(None) as held:
        rows, seen, _ = train(module, native, options, range(2), held)
        expected = join_pieces([rows])

    def body(collective: Collective) -> Any:
        with container_of(collective) as held:
            rows, read, _ = train(module, native, options, [collective.rank], held)
            assert held.entry("user").has_column_blocks
            return rows, read

    found = run_ranks(2, body)
    assert join_pieces([each[0] for each in found]) == expected
    assert len(expected) > 20
    for step, read in enumerate(seen):
        assert np.concatenate([each[1][step] for each in found]).tobytes() == read.tobytes()


def test_owners_of_blocks_pool_the_bags() -> None:
    """Gradients are exact, so rows are bit-identical; so are pools of one id each."""

    def body(collective: Collective, transfer: str) -> Any:
        with container_of(collective, transfer=transfer) as held:
            ranks = [collective.rank]
            found = train("EmbeddingBagCollection", torch.optim.Adam, {}, ranks, held)[:2]
            assert held.transfer("user")[0] == transfer
            return found

    by_rows, pooled = (
        run_ranks(2, lambda collective, transfer=transfer: body(collective, transfer))
        for transfer in ("rows", "pooled")
    )
    assert join_pieces([rows for rows, _ in pooled]) == join_pieces([rows for rows, _ in by_rows])
    for (_, mine), (_, theirs) in zip(pooled, by_rows, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_norm_of_gradients_equals_whole_rows() -> None:
    def norm_of(held: StepContainer, ranks: Any) -> tuple[float, Any]:
        module, embed = made("Embedding", held)
        optimizer = Optimizer(module, torch.optim.SGD, lr=1.0)
        ids, gradients = make_batch(1, ranks)
        (embed(ids) * torch.from_numpy(gradients)).sum().backward()
        norm = optimizer.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm), collect_pieces(held)

    with container_of(None) as held:
        expected, rows = norm_of(held, range(2))

    def body(collective: Collective) -> Any:
        with container_of(collective) as held:
            return norm_of(held, [collective.rank])

    found = run_ranks(2, body)
    assert [each[0] for each in found] == pytest.approx([expected] * 2)
    whole, after = join_pieces([rows]), join_pieces([each[1] for each in found])
    for key, (row, _) in whole.items():
        one, other = np.frombuffer(row, np.float32), np.frombuffer(after[key][0], np.float32)
        assert np.allclose(one, other, atol=1e-6)


class _ByNorm(torch.optim.Optimizer):
    """An optimizer that divides the gradient of a row by its norm."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                norms = each.grad.norm(dim=1, keepdim=True).clamp(min=1e-9)
                each.data -= group["lr"] * each.grad / norms


def test_a_probe_detects_optimizers_that_couple_columns() -> None:
    assert probe(_ByNorm, {"lr": 0.1}, torch.float32).why_coupled
    for elementwise in (torch.optim.Adadelta, torch.optim.RAdam, torch.optim.AdamW):
        assert not probe(elementwise, {"lr": 0.1}, torch.float32).why_coupled


@pytest.mark.parametrize(
    ("native", "words"),
    [(_ByNorm, "_ByNorm cannot"), ("rowwise_adagrad", "'rowwise_adagrad' cannot")],
)
def test_optimizers_that_require_whole_rows_are_rejected_by_name(native: Any, words: str) -> None:
    def body(collective: Collective) -> None:
        with container_of(collective) as held, pytest.raises(UnsupportedError, match=words):
            Optimizer(made("Embedding", held)[0], native, lr=0.1)

    run_ranks(2, body)


def test_a_state_dict_names_a_snapshot_that_loads_under_another_plan(tmp_path: Path) -> None:
    url = str(tmp_path / "saved")

    def body(collective: Collective, other: Any = None) -> Any:
        with container_of(collective, has_column_blocks=other is None) as held:
            if other is None:
                rows, _, module = train("Embedding", torch.optim.Adam, {}, [collective.rank], held)
                held.save(url)
                return rows, module.state_dict()
            module, _ = made("Embedding", held)
            Optimizer(module, torch.optim.Adam, lr=0.125)
            module.load_state_dict(other)
            assert not held.entry("user").has_column_blocks
            return collect_pieces(held)

    found = run_ranks(2, body)
    states = [each[1] for each in found]
    after = run_ranks(2, lambda collective: body(collective, states[collective.rank]))
    assert join_pieces(after) == join_pieces([each[0] for each in found])


@pytest.mark.parametrize(
    "sharding",
    [TableSharding("column_wise", (1, 0), columns=2), TableSharding("table_wise", (0,))],
    ids=str,
)
def test_an_optimizer_continues_on_a_rank_without_rows_or_without_the_first_block(
    sharding: TableSharding, tmp_path: Path
) -> None:
    url, plan = str(tmp_path / "saved"), {"user": sharding}

    def opened(collective: Collective) -> StepContainer:
        made = ThreadRendezvous(2)
        return StepContainer(collective=collective, rendezvous=made, plan=plan)

    def saves(collective: Collective) -> Any:
        with opened(collective) as held:
            module, embed = made("Embedding", held)
            optimizer = Optimizer(module, torch.optim.Adam, lr=0.125)
            embed(np.arange(9)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            held.save(url)
            return optimizer.state_dict()

    states = run_ranks(2, saves)

    def loads(collective: Collective) -> None:
        with opened(collective) as held:
            module, embed = made("Embedding", held)
            optimizer = Optimizer(module, torch.optim.Adam, lr=0.125)
            held.load(url)
            optimizer.load_state_dict(states[collective.rank])
            embed(np.arange(9)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that rows are missing
        run_ranks(2, loads)


def test_each_rank_counts_the_rows_of_its_columns() -> None:
    def body(collective: Collective) -> Any:
        with container_of(collective) as held:
            *_, module = train("Embedding", torch.optim.SGD, {}, [collective.rank], held)
            return module.num_rows()["user"], held.num_rows_to_sum("user")

    (mine, once), (theirs, other) = run_ranks(2, body)
    assert mine == theirs > 0
    assert sorted((once, other)) == [0, mine], "the sum over ranks counts a row once"
