"""Uses that would silently lose or freeze rows raise an error with the fix."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparring import StepContainer, StorageChoice
from sparring.adapter import TableUpdate
from sparring.contracts import TableConfig
from sparring.errors import (
    InvalidArgumentError,
    NonFiniteGradientError,
    PluginError,
    UnsupportedError,
)
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import Embedding, EmbeddingBag, EmbeddingBagCollection, Optimizer, misuse
from sparring_torch.modules.table_configs import EmbeddingBagConfig

IDS = torch.tensor([1, 2])


def made(**options: Any) -> Embedding:
    return Embedding(2, name="item", storage="memory", **options)


def test_a_second_pass_without_a_step_for_its_gradients_is_rejected() -> None:
    module = made()
    module(IDS).sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"'item' .* sparring_torch\.Optimizer\(model"):
        module(IDS)
    with torch.no_grad():
        module(IDS)
    module.eval()(IDS)
    optimizer = Optimizer(module.train(), torch.optim.SGD, lr=1.0)
    module(IDS)
    optimizer.step()
    optimizer.zero_grad()
    assert module.num_rows() == {"item": 2}


def test_passes_without_gradients_and_late_optimizers_are_accepted() -> None:
    module = made()
    for _ in range(3):
        module(IDS)
    Optimizer(module, torch.optim.SGD, lr=1.0)
    for _ in range(3):
        module(IDS).sum().backward()


def test_manual_steps_are_accepted() -> None:
    with StepContainer() as container:
        module = made(container=container)
        for _ in range(3):
            module(IDS).sum().backward()
            container.apply(
                lambda views: [TableUpdate(each.table, each.keys, each.rows) for each in []]
            )


def test_gradients_that_one_rank_would_lose_are_rejected_on_all() -> None:
    def body(collective: Any) -> str:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            module = made(container=container)
            out = module(IDS)
            if collective.rank == 1:
                out.sum().backward()
            with pytest.raises(InvalidArgumentError) as caught:
                module(IDS)
            return str(caught.value)

    one, other = run_ranks(2, body)
    assert "rank 1" in one
    assert "no optimizer applies them" in one
    assert "no optimizer applies them" in other


def test_ranks_of_torch_without_a_wrapper_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    module = made()
    module.eval()(IDS)
    with pytest.raises(
        InvalidArgumentError, match=r"model = sparring_torch\.DistributedModelParallel\(model\)"
    ):
        module.train()(IDS)
    with StepContainer() as container:
        made(container=container)(IDS)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_trace_is_rejected(is_training: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedError, match=r"torch\.export"):
            torch.jit.trace(made().train(is_training), IDS)


def test_a_bound_that_is_not_a_range_is_reported_once() -> None:
    misuse._warn_about_bound_once.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made(num_embeddings=100)
        EmbeddingBag(2, num_embeddings=100, storage="memory")
    assert [str(each.message).partition(" is the maximum")[0] for each in said] == [
        "table 'item': num_embeddings=100"
    ]


@pytest.mark.parametrize("module", [Embedding, EmbeddingBag])
@pytest.mark.parametrize("container", [True, False])
def test_a_storage_without_a_plugin_is_rejected_by_the_constructor(
    module: Any, container: bool
) -> None:
    options = {"container": StepContainer()} if container else {}
    for storage in ("memroy", {"backend": "memroy"}, StorageChoice("memroy")):
        with pytest.raises(PluginError, match=r"'memroy' is unknown; did you mean 'memory'\?"):
            module(2, storage=storage, **options)


@pytest.mark.parametrize("module", [Embedding, EmbeddingBag])
def test_arguments_of_torch_are_explained(module: Any) -> None:
    name = module.__name__
    for given in (lambda: module(10, 4), lambda: module(10, embedding_dim=4)):
        with pytest.raises(
            InvalidArgumentError,
            match=rf"write {name}\(4\), or {name}\(4, num_embeddings=10\)",
        ):
            given()
    with pytest.raises(
        InvalidArgumentError, match=r"sparse is an argument .*, found True; omit it"
    ):
        module(4, sparse=True)
    with pytest.raises(InvalidArgumentError, match=rf"{name}\.from_pretrained\(weights\)"):
        module(4, _weight=torch.ones(1, 4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'dimm'"):
        module(4, dimm=3)
    made = module(num_embeddings=10, embedding_dim=4, storage="memory")
    assert made.embedding_dim == 4
    with pytest.raises(
        AttributeError, match=r"no weight, .* read rows with read_embeddings\(ids\)"
    ):
        _ = made.weight
    assert not hasattr(made, "weights")


def test_advice_on_gradients_names_the_argument_of_the_optimizer() -> None:
    module = made()
    optimizer = Optimizer(module, torch.optim.SGD, lr=1.0)
    (module(IDS) * float("nan")).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="non_finite_gradients='skip'"):
        optimizer.step()
    optimizer = Optimizer(module, torch.optim.SGD, lr=1.0, non_finite_gradients="skip")
    (module(IDS) * float("nan")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_outputs_follow_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(name="bags", embedding_dim=2)], storage="memory"
    )
    model = torch.nn.ModuleDict({"item": made(), "bags": bags, "top": torch.nn.Linear(2, 1)})
    optimizer = Optimizer(model, torch.optim.SGD, lr=1.0)
    before = model["item"](IDS)
    assert model.to(dtype)["item"](IDS).dtype is dtype
    model["top"](model["item"](IDS)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    after = model.float()["item"](IDS)
    assert after.dtype is torch.float32
    weight = model["top"].weight.detach().to(dtype).float()
    torch.testing.assert_close(after, before - weight, rtol=0.02, atol=1e-3)
    assert module_dtype(bags.to(dtype)) is dtype


def module_dtype(bags: EmbeddingBagCollection) -> torch.dtype:
    from sparring_torch import KeyedJaggedTensor

    return bags(KeyedJaggedTensor(["bags"], [1], lengths=[1]))["bags"].dtype


def test_float64_tables_also_follow_the_dtype_of_the_model() -> None:
    module = made(dtype=torch.float64)
    assert module(IDS).dtype is torch.float64
    assert module.double()(IDS).dtype is torch.float64
    assert module.float()(IDS).dtype is torch.float32
    assert module.agent.container.tables["item"] == TableConfig("item", 2, "float64")


def test_an_optimizer_whose_tables_belong_to_another_takes_no_more_steps() -> None:
    module = Embedding(2, name="user")
    former = Optimizer(module, "sgd", lr=1.0)
    latter = Optimizer(module, "sgd", lr=0.5)
    module(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"a newer Optimizer takes .* user; use only"):
        former.step()
    latter.step()
    latter.zero_grad()
    assert module.num_rows() == {"user": 1}


def test_a_state_of_an_optimizer_without_the_rows_warns_once() -> None:
    def make() -> tuple[Embedding, Optimizer]:
        module = Embedding(2, name="user")
        return module, Optimizer(module, torch.optim.Adam, lr=0.1)

    def step(module: Embedding, optimizer: Optimizer) -> None:
        module(torch.tensor([1])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    module, optimizer = make()
    step(module, optimizer)
    rows, state = module.state_dict(), optimizer.state_dict()
    other, alone = make()
    alone.load_state_dict(state)
    with pytest.warns(UserWarning, match="user, have no rows on this rank; also load"):
        step(other, alone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(other, alone)
        third, whole = make()
        whole.load_state_dict(state)
        third.load_state_dict(rows)
        step(third, whole)


def test_an_argument_that_is_not_a_container_is_explained() -> None:
    with pytest.raises(InvalidArgumentError, match=r"found str; pass a StepContainer\(\)"):
        Embedding(2, name="user", container="redis")  # type: ignore[arg-type]


def test_gradients_that_no_step_takes_are_reported(recwarn: pytest.WarningsRecorder) -> None:
    tables = [Embedding(2, name="one"), Embedding(2, name="two")]
    optimizer = Optimizer(tables, "sgd", lr=0.1)

    def run(num_passes: int) -> list[str]:
        recwarn.clear()
        for _ in range(num_passes):
            sum(each(torch.tensor([1, 2])).sum() for each in tables).backward()
        return [str(each.message) for each in recwarn if "backward passes" in str(each.message)]

    assert run(100) == []  # many micro-batches
    optimizer.step()
    optimizer.zero_grad()
    assert run(60) == []
    optimizer.zero_grad()
    assert run(60) == []
    (found,) = run(60)
    assert "100 backward passes" in found
    assert "'one'" in found
