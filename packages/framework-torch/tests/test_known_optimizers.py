"""Optimizers of torch that run as update methods give the same rows as their own code.

The file is long because every optimizer is tested in each of these ways.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sparring import StepContainer
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import RowBytes, read_rows
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

Native = type[torch.optim.Optimizer]
NUM_IDS = 200
IDS = torch.arange(NUM_IDS) * 7 - 300

FUSED: list[tuple[Native, dict[str, Any], str]] = [
    (SGD, {"lr": 0.1}, "sgd"),
    (SGD, {"lr": 0.1, "weight_decay": 0.03, "foreach": True}, "sgd"),
    (SGD, {"lr": 0.1, "momentum": 0.9}, "momentum"),
    (SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}, "momentum"),
    (Adagrad, {"lr": 0.1}, "adagrad"),
    (Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3}, "adagrad"),
    (Adagrad, {"lr": 0.1, "weight_decay": 0.03, "eps": 1e-4}, "adagrad"),
    (Adam, {"lr": 0.01}, "adam"),
    (Adam, {"lr": 0.01, "betas": (0.4, 0.9), "weight_decay": 0.1, "eps": 1e-3}, "adam"),
    (Adam, {"lr": 0.01, "foreach": True}, "adam"),
    (Adam, {"lr": 0.01, "fused": True}, "adam"),
    (AdamW, {"lr": 0.01}, "adamw"),
    (AdamW, {"lr": 0.01, "weight_decay": 0.3, "betas": (0.5, 0.99)}, "adamw"),
    (RMSprop, {"lr": 0.01}, "rmsprop"),
    (RMSprop, {"lr": 0.01, "alpha": 0.7, "weight_decay": 0.1}, "rmsprop"),
]
if "decoupled_weight_decay" in Adam([torch.empty(1)]).defaults:
    FUSED.append((Adam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}, "adamw"))
FUSED_NAMES = [f"{native.__name__}-{number}" for number, (native, _, _) in enumerate(FUSED)]

# One or two settings of each update method; the others are tested at length.
IN_SHORT = {"SGD-1", "SGD-3", "Adagrad-5", "Adam-8", "Adam-10", "AdamW-12", "RMSprop-14", "Adam-15"}

SHADOWED: list[tuple[Native, dict[str, Any], str]] = [
    (Adam, {"amsgrad": True}, "amsgrad=True"),
    (Adam, {"amsgrad": True, "fused": True}, "amsgrad=True"),
    (AdamW, {"maximize": True}, "maximize=True"),
    (Adam, {"lr": torch.tensor(0.01)}, "lr is a tensor"),
    (SGD, {"lr": 0.1, "dampening": 0.5}, "dampening=0.5"),
    (RMSprop, {"centered": True}, "centered=True"),
    (RMSprop, {"momentum": 0.5}, "momentum=0.5"),
    (torch.optim.NAdam, {}, "no update method is known for NAdam"),
    (type("MyAdam", (Adam,), {}), {}, "no update method is known for MyAdam"),
]


def made(
    native: Native, hyper: dict[str, Any], dim: int = 7, dtype: Any = torch.float32, **options: Any
) -> tuple[Embedding, Optimizer]:
    embedding = Embedding(dim, name="table", dtype=dtype, storage="memory")
    return embedding, Optimizer(embedding, native, **hyper, **options)


def rows_of(optimizer: Optimizer) -> npt.NDArray[Any]:
    found = optimizer.container.storage("table").find(IDS.numpy())
    assert found.found.all()
    return found.rows


def backward(embedding: Embedding, step: int, num_ids: int = NUM_IDS) -> None:
    """Returns gradients of different magnitudes; step 0 has one for all rows."""
    random = np.random.default_rng(step)
    chosen = random.permutation(NUM_IDS)[: NUM_IDS if step == 0 else num_ids].copy()
    scale = random.standard_normal((len(chosen), 1)) * 10.0 ** random.uniform(-3, 1)
    found = embedding(IDS[torch.from_numpy(chosen)])
    factor = torch.from_numpy(random.standard_normal(tuple(found.shape)) * scale)
    (found * factor.to(found.dtype)).sum().backward()


# -- the same rows ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "hyper", "method", "dim", "dtype"),
    [
        pytest.param(
            *FUSED[number],
            dim,
            dtype,
            id=f"{name}-{dim}-{dtype}",
            # Every setting has one dim in each dtype.
            marks=pytest.mark.long
            if dim != dims[number % 3]
            else pytest.mark.slow
            if dtype == (torch.float32, torch.float64)[number % 2]
            else [],
        )
        for number, name in enumerate(FUSED_NAMES)
        for dtype, dims in ((torch.float32, (7, 64, 1)), (torch.float64, (64, 1, 7)))
        for dim in dims
    ],
)
def test_a_step_from_equal_rows_differs_by_rounding_at_most(
    native: Native, hyper: dict[str, Any], method: str, dim: int, dtype: torch.dtype
) -> None:
    """Tests a schedule that changes the learning rate in each step."""
    pairs = [made(native, hyper, dim, dtype, update=route) for route in ("auto", "shadow")]
    (_, ours), (_, theirs) = pairs
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for _, each in pairs]
    before = None
    for step in range(12):
        for embedding, optimizer in pairs:
            backward(embedding, step, 150)
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        assert ours.routes == {"table": method}
        assert theirs.routes["table"].startswith("shadow")
        found, expected = rows_of(ours), rows_of(theirs)
        # The state, and results without roots, are bit-identical.
        state = slice(0 if native is SGD else dim, None)
        assert np.array_equal(found[:, state], expected[:, state])
        if before is not None:
            difference = np.abs(found - expected)
            own = np.spacing(np.maximum(np.abs(before), np.abs(expected)))
            moved = np.abs(expected - before)
            # One unit in the last place, except for elements that the step changes by about their
            # own size: roots of torch's library are off by one.
            assert (difference <= own)[moved < 0.2 * np.abs(expected)].all()
            assert (difference <= own + 4 * np.spacing(moved)).all()
            assert (difference > own).mean() < 0.03
        theirs.container.storage("table").upsert(IDS.numpy(), found)
        before = found.copy()
    for name, value in theirs.state_dict()["state"]["table"].items():
        assert torch.equal(torch.as_tensor(ours.state_dict()["state"]["table"][name]), value)


SHORT_OF: dict[str, Any] = dict.fromkeys(IN_SHORT, pytest.mark.slow) | {"Adam-8": []}


@pytest.mark.parametrize(
    ("native", "hyper", "method"),
    [
        pytest.param(*each, id=name, marks=SHORT_OF.get(name, pytest.mark.long))
        for name, each in zip(FUSED_NAMES, FUSED, strict=True)
    ],
)
def test_after_100_steps_rows_are_as_close_to_float64_as_the_shadows(
    native: Native, hyper: dict[str, Any], method: str
) -> None:
    runs = {
        "exact": made(native, hyper, dtype=torch.float64, update="shadow"),
        "shadow": made(native, hyper, update="shadow"),
        "fused": made(native, hyper),
    }
    for embedding, optimizer in runs.values():
        for step in range(100):
            backward(embedding, step, 120)
            optimizer.step()
            optimizer.zero_grad()
    assert runs["fused"][1].routes == {"table": method}
    rows = {name: rows_of(optimizer).astype(np.float64) for name, (_, optimizer) in runs.items()}

    def error(name: str) -> float:
        return float(np.sqrt(np.mean((rows[name] - rows["exact"])[:, :7] ** 2)))

    assert 0 < error("fused") <= 1.05 * error("shadow")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("native", [SGD, Adagrad, Adam])
def test_rows_of_16_bits_are_rounded_equally(native: Native, dtype: torch.dtype) -> None:
    found = []
    for route in ("auto", "shadow"):
        embedding, optimizer = made(native, {"lr": 0.05}, 8, dtype, update=route)
        for step in range(5):
            backward(embedding, step)
            optimizer.step()
            optimizer.zero_grad()
        found.append(embedding(IDS).detach())
        assert ("shadow" in optimizer.routes["table"]) == (route == "shadow")
    unequal = (found[0] != found[1]).float().mean()
    assert unequal < 0.01


# -- which route ------------------------------------------------------------------


@pytest.mark.parametrize(("native", "hyper", "reason"), SHADOWED)
def test_settings_without_an_update_method_use_the_shadow(
    native: Native, hyper: dict[str, Any], reason: str
) -> None:
    embedding, optimizer = made(native, hyper)
    backward(embedding, 0)
    optimizer.step()
    optimizer.zero_grad()
    route = optimizer.routes["table"]
    assert route.startswith("shadow: ")
    assert reason in route
    assert f"table: {route}" in repr(optimizer)


def test_the_shadow_can_be_requested(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sparring_torch"):
        _, fused = made(Adam, {})
        _, shadowed = made(Adam, {}, update="shadow")
    assert fused.routes == {"table": "adam"}
    assert shadowed.routes == {"table": "shadow: update='shadow' was given"}
    assert [each.getMessage() for each in caplog.records] == [
        "Adam updates tables table by route adam",
        "Adam updates tables table by route shadow: update='shadow' was given",
    ]
    with pytest.raises(InvalidArgumentError, match="expected 'auto' or 'shadow'"):
        made(Adam, {}, update="native")
    with pytest.raises(InvalidArgumentError, match="found update method 'adam'"):
        Optimizer(Embedding(3, name="t"), "adam", update="shadow")


def test_unknown_hyperparameters_of_a_class_use_the_shadow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulates hyper-parameters of a later release of torch."""
    original = Adam.__init__

    def extended(self: Any, params: Any, *, cautious: bool = False, **hyper: Any) -> None:
        original(self, params, **hyper)
        self.defaults["cautious"] = cautious
        for group in self.param_groups:
            group["cautious"] = cautious

    monkeypatch.setattr(Adam, "__init__", extended)
    _, optimizer = made(Adam, {})
    assert optimizer.routes == {"table": "shadow: hyper-parameters cautious are unknown"}


def test_a_class_with_a_changed_step_uses_the_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SGD.step

    def step(self: Any, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.sign()
        return original(self, closure)

    monkeypatch.setattr(SGD, "step", step)
    _, optimizer = made(SGD, {"lr": 0.1})
    assert optimizer.routes == {"table": "shadow: this build of torch rounds differently"}


def test_closures_and_hooks_use_the_shadow_for_their_steps() -> None:
    embedding, optimizer = made(Adam, {})

    def step(closure: Any = None) -> str:
        backward(embedding, 1)
        optimizer.step(closure)
        optimizer.zero_grad()
        return optimizer.routes["table"]

    assert step() == "adam"
    assert step(lambda: 1.0) == "shadow: a closure was given"
    for register in (
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    ):
        hook = register(lambda *_: None)
        assert step() == "shadow: hooks are registered"
        hook.remove()
        assert step() == "adam"
    assert float(optimizer.state_dict()["state"]["table"]["step"]) == 10


def test_a_group_that_changes_uses_the_route_of_its_values() -> None:
    embedding, optimizer = made(Adam, {"lr": 0.1})
    (group,) = optimizer.param_groups
    for change, route in (
        ({"lr": 0.2}, "adam"),
        ({"lr": torch.tensor(0.3)}, "shadow: lr is a tensor"),
        ({"lr": np.float32(0.3)}, "adam"),
        ({"maximize": True}, "shadow: found maximize=True"),
        ({"maximize": False}, "adam"),
        ({"lr": -0.1}, "shadow: update method 'adam': hyper-parameter 'lr'"),
        ({"lr": 0.1, "weight_decay": 0.1}, "adam"),
    ):
        group.update(change)
        backward(embedding, 0)
        optimizer.step()
        optimizer.zero_grad()
        assert optimizer.routes["table"].startswith(route)


def test_a_momentum_that_becomes_zero_uses_the_shadow() -> None:
    """Rows keep the state with which they were created."""
    found = []
    for route in ("auto", "shadow"):
        embedding, optimizer = made(SGD, {"lr": 0.1, "momentum": 0.9}, update=route)
        for step, momentum in enumerate((0.9, 0.0, 0.0, 0.9)):
            optimizer.param_groups[0]["momentum"] = momentum
            backward(embedding, step)
            optimizer.step()
            optimizer.zero_grad()
            if route == "auto":
                reason = "shadow: rows were created without the state of update method 'sgd'"
                assert optimizer.routes["table"] == ("momentum" if momentum else reason)
        found.append(rows_of(optimizer))
    assert np.array_equal(*found)


@pytest.mark.parametrize("native", [SGD, Adagrad, Adam, AdamW, type("MyAdam", (Adam,), {})])
def test_fused_kernels_of_torch_are_not_used(native: Native) -> None:
    """They require contiguous rows; rows of tables would become NaN."""

    def trained(ask: Callable[[Optimizer], object]) -> npt.NDArray[Any]:
        embedding, optimizer = made(native, {"lr": 0.01})
        ask(optimizer)
        optimizer.register_step_post_hook(lambda *_: None)
        for step in range(3):
            backward(embedding, step)
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer.routes["table"].startswith("shadow: ")
        assert optimizer.param_groups[0]["fused"] is None
        return rows_of(optimizer)

    def load(optimizer: Optimizer) -> None:
        saved = optimizer.state_dict()
        saved["param_groups"][0]["fused"] = True
        optimizer.load_state_dict(saved)

    expected = trained(lambda _: None)
    assert np.isfinite(expected).all()
    assert np.array_equal(trained(load), expected)
    assert np.array_equal(trained(lambda each: each.param_groups[0].update(fused=True)), expected)


def test_in_place_changes_of_tensor_betas_are_seen() -> None:
    found = []
    for route in ("auto", "shadow"):
        embedding, optimizer = made(Adam, {"lr": 0.01}, update=route)
        betas = (torch.tensor(0.9), torch.tensor(0.999))
        optimizer.param_groups[0]["betas"] = betas
        for step in range(3):
            backward(embedding, step)
            optimizer.step()
            optimizer.zero_grad()
            betas[0].fill_(0.3)
        found.append(rows_of(optimizer))
        if route == "auto":
            assert optimizer.routes["table"] == "shadow: betas has a tensor"
    assert np.array_equal(*found)


def test_changes_of_a_list_of_betas_are_seen() -> None:
    found = []
    for route in ("auto", "shadow"):
        embedding, optimizer = made(Adam, {"lr": 0.01}, update=route)
        betas = optimizer.param_groups[0]["betas"] = [0.9, 0.999]
        for step in range(3):
            backward(embedding, step)
            optimizer.step()
            optimizer.zero_grad()
            betas[0] = 0.3
        found.append(rows_of(optimizer))
    assert optimizer.routes["table"].startswith("shadow")
    np.testing.assert_allclose(*found, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("native", [SGD, Adam, torch.optim.NAdam])
def test_creating_an_optimizer_runs_no_hooks(native: Native) -> None:
    calls = []
    hooks = [
        register(lambda *_: calls.append(1))
        for register in (register_optimizer_step_pre_hook, register_optimizer_step_post_hook)
    ]
    try:
        made(native, {"lr": 0.01})
    finally:
        for hook in hooks:
            hook.remove()
    assert not calls


def test_settings_that_torch_rejects_are_also_rejected_with_fused() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be `True` together"):
        made(Adam, {"fused": True, "foreach": True})


# -- one route after the other ------------------------------------------------------


@pytest.mark.parametrize("native", [SGD, Adagrad, Adam, AdamW, RMSprop])
@pytest.mark.parametrize(("first", "then"), [("auto", "shadow"), ("shadow", "auto")])
def test_training_continues_from_a_snapshot_by_the_other_route(
    native: Native, first: str, then: str, tmp_path: Path
) -> None:
    hyper = {"lr": 0.01, **({"momentum": 0.9} if native is SGD else {})}
    embedding, optimizer = made(native, hyper, update=first)
    for step in range(3):
        backward(embedding, step)
        optimizer.step()
        optimizer.zero_grad()
    place = str(tmp_path / "snapshot")
    optimizer.container.save(place)
    saved = optimizer.state_dict()
    resumed_embedding, resumed = made(native, hyper, update=then)
    resumed.container.load(place)
    resumed.load_state_dict(saved)
    assert np.array_equal(rows_of(resumed), rows_of(optimizer))
    for step in range(3, 6):
        for module, each in ((embedding, optimizer), (resumed_embedding, resumed)):
            backward(module, step)
            each.step()
            each.zero_grad()
    assert resumed.routes != optimizer.routes
    np.testing.assert_allclose(rows_of(resumed), rows_of(optimizer), rtol=2e-6, atol=1e-7)
    one, other = (each.state_dict() for each in (optimizer, resumed))
    assert one == other


# -- policies -----------------------------------------------------------------------


def both(
    train: Callable[[Embedding, Optimizer], Any], **options: Any
) -> tuple[list[Any], list[npt.NDArray[Any]]]:
    results, rows = [], []
    for route in ("auto", "shadow"):
        embedding, optimizer = made(Adam, {"lr": 0.01}, update=route, **options)
        backward(embedding, 0)
        optimizer.step()
        optimizer.zero_grad()
        results.append(train(embedding, optimizer))
        rows.append(rows_of(optimizer))
    return results, rows


def test_gradients_add_up_until_the_step_on_both_routes() -> None:
    def train(embedding: Embedding, optimizer: Optimizer) -> None:
        for step in range(1, 5):
            backward(embedding, step, 50)
            backward(embedding, step + 100, 50)
            optimizer.step()
            optimizer.zero_grad()
        backward(embedding, 7)
        optimizer.zero_grad()

    _, (found, expected) = both(train)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_non_finite_gradients_follow_the_policy_on_both_routes(policy: str) -> None:
    def train(embedding: Embedding, optimizer: Optimizer) -> Any:
        factor = torch.ones(NUM_IDS, 7)
        factor[3] = torch.nan
        (embedding(IDS) * factor).sum().backward()
        if policy == "skip":
            optimizer.step()
            optimizer.zero_grad()
        else:
            with pytest.raises(NonFiniteGradientError):
                optimizer.step()
        counters = optimizer.container.counters
        return counters.rows_skipped_non_finite, optimizer.state_dict()["state"]

    results, (found, expected) = both(train, non_finite_gradients=policy)
    assert results[0] == results[1]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("update", ["auto", "shadow"])
@pytest.mark.parametrize("admission", [None, {"kind": "frequency", "k": 2}])
def test_a_table_counts_the_steps_that_change_it(update: str, admission: Any) -> None:
    options = {} if admission is None else {"admission": admission}
    tables = [
        Embedding(2, name="one", storage="memory"),
        Embedding(2, name="other", storage="memory", **options),
    ]
    optimizer = Optimizer(tables, Adam, update=update)
    counted = []
    for table in (tables[0], tables[1], tables[1]):
        table(IDS).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state_dict()["state"]
        counted.append((int(state["one"]["step"]), int(state["other"]["step"])))
    assert counted == ([(1, 0), (1, 1), (1, 2)] if admission is None else [(1, 0), (1, 0), (1, 1)])
    is_fused = update == "auto" and admission is None
    assert (optimizer.routes["other"] == "adam") == is_fused


def test_admission_leaves_optimizers_that_count_no_steps_fused() -> None:
    admission = {"kind": "frequency", "k": 2}
    for native, route in ((SGD, "sgd"), (Adagrad, "shadow: it counts steps, and ids of t are")):
        optimizer = Optimizer(Embedding(2, name="t", admission=admission), native, lr=0.1)
        assert optimizer.routes["t"].startswith(route)


# -- ranks ----------------------------------------------------------------------------


@pytest.mark.parametrize("routes", [("auto", "auto"), ("auto", "shadow")])
def test_ranks_have_the_rows_of_the_shadow_for_any_route_on_each(
    routes: Iterable[str],
) -> None:
    """Each rank decides this: hooks, for example of a profiler, may exist on only one of them."""

    def trained(chosen: tuple[str, ...]) -> RowBytes:
        def body(container: StepContainer) -> RowBytes:
            rank = container.collective.rank
            table = EmbeddingBagConfig(name="t", embedding_dim=5, feature_names=["f"])
            bags = EmbeddingBagCollection([table], container=container)
            optimizer = Optimizer(bags, Adam, lr=0.05, update=chosen[rank])
            random = np.random.default_rng(rank)
            for step in range(20):
                # A rank may have an empty batch.
                ids = random.integers(0, 40, 0 if step % 7 == rank else 12)
                lengths = torch.tensor([len(ids)])
                batch = KeyedJaggedTensor(["f"], torch.from_numpy(ids), lengths=lengths)
                ((bags(batch).values() - 1) ** 2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return read_rows(container, "t")

        first, second = run_containers(2, body)
        return first | second

    found, expected = trained(tuple(routes)), trained(("shadow", "shadow"))
    assert found.keys() == expected.keys()
    for key, row in found.items():
        one, other = (np.frombuffer(each, "float32") for each in (row, expected[key]))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_state_by_row_that_begins_during_training_is_rejected_before_a_row_changes() -> None:
    embedding, optimizer = made(SGD, {"lr": 0.1})
    backward(embedding, 0)
    optimizer.step()
    optimizer.zero_grad()
    before = rows_of(optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9
    backward(embedding, 1)
    with pytest.raises(InvalidArgumentError, match="started to use row state 'momentum_buffer'"):
        optimizer.step()
    assert np.array_equal(rows_of(optimizer), before)
    optimizer.param_groups[0]["momentum"] = 0
    optimizer.zero_grad()
    backward(embedding, 1)
    optimizer.step()
    assert not np.array_equal(rows_of(optimizer), before)
