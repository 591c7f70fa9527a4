"""Programs for one machine with a service that trains: lookups pull, and steps push."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")


from sparring.errors import InvalidArgumentError, SparringError, UnsupportedError
from sparring_serve import LookupServer, ServingConfig, open_parameter_server
from sparring_torch import distribute, distribution_report, restore

from .transpiled_programs import PROGRAMS, optimizers_of, train

METHODS = {"SGD": "sgd", "Adagrad": "adagrad", "SparseAdam": "sparse_adam"}
NAMES = [
    "adagrad, sparse",
    "padding",
    "bags with offsets",
    "bags with weights",
    "shared embedding",
    "frozen and trained",
    "groups of embeddings",
    "accumulated gradients",
    "clipped gradients",
    "closure",
]
OTHER_NAMES = [
    "sgd",
    "adagrad",
    "two towers",
    "DLRM",
    "LSTM",
    "factorization machine",
    "two groups",
    "scheduler",
    "autocast bfloat16",
    "scaled loss",
]


class Service:
    """A service with one shard for the tables of a model, and its configuration file."""

    def __init__(self, folder: Path, tables: dict[str, Any]) -> None:
        parameters = {"tables": tables, "folders": [str(folder / "saved")], "start": None}
        config = ServingConfig.model_validate({"parameters": parameters})
        self.server: LookupServer = open_parameter_server(config, address="127.0.0.1:0")
        self.file = folder / "serving.yaml"
        shards = [[self.server.address]]
        client = {"deadline_seconds": 60.0, "push_deadline_seconds": 60.0}
        text = json.dumps({"shards": shards, "parameters": parameters, "client": client})
        self.file.write_text(text)


def service_for(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Service:
    """A service with the tables that the report names."""
    names = {"lr", "lr_decay", "initial_accumulator_value"}
    groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    tables = {}
    for each in distribution_report(model, optimizer).replaced:
        table = each.reason.split()[1].rstrip(";")
        weight = model.get_submodule(each.path.split(", ")[0]).weight
        group = groups.get(id(weight), optimizer.param_groups[-1])
        hyper = {name: value for name, value in group.items() if name in names}
        dim = weight.shape[1]
        method = METHODS[type(optimizer).__name__]
        dtype = str(weight.dtype).removeprefix("torch.")
        tables[table] = {"dim": dim, "update_method": method, "hyper": hyper, "dtype": dtype}
    return Service(folder, tables)


@pytest.mark.parametrize(
    "name",
    [
        "bags with weights",
        "shared embedding",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in NAMES
            if each not in ("bags with weights", "shared embedding")
        ),
        *(pytest.param(each, marks=pytest.mark.long) for each in OTHER_NAMES),
    ],
)
def test_the_program_gives_the_same_results_as_before_and_as_a_rank(
    name: str, tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(5)
    original = program.model()
    model, on_rank = copy.deepcopy(original), copy.deepcopy(original)
    train(program, original, optimizers_of(program.optimizer(original)))
    on_rank, its_optimizer = distribute(on_rank, program.optimizer(on_rank))
    train(program, on_rank, optimizers_of(its_optimizer))
    on_rank = restore(on_rank)

    optimizer = program.optimizer(model)
    service = service_for(tmp_path, model, optimizer)
    with service.server:
        model, optimizer = distribute(model, optimizer, service=service.file)
        train(program, model, optimizers_of(optimizer))
        steps = service.server.service.tables.steps
        model = restore(model)
    assert steps >= 10
    for other in (original, on_rank):
        for (key, found), expected in zip(
            model.named_parameters(), other.parameters(), strict=True
        ):
            difference = (found - expected).abs().max() / expected.abs().max()
            assert difference.item() <= 1e-6, f"{key}: {difference.item():.1e}"


class Small(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4, **options)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids).square().sum()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


class Halves(nn.Module):
    """Two 16-bit embeddings and a 32-bit or 16-bit layer."""

    def __init__(self, dtype: torch.dtype, *, is_whole: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.words = nn.Embedding(20, 4, dtype=dtype, padding_idx=0)
        self.tags = nn.EmbeddingBag(20, 4, dtype=dtype, mode="mean")
        self.score = nn.Linear(4, 1, dtype=dtype if is_whole else torch.float32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.words(ids).sum(1) + self.tags(ids)
        assert found.dtype is self.dtype
        return self.score(found.to(self.score.weight.dtype)).float().squeeze(1)


def trained_halves(model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for _ in range(20):
        ids = torch.randint(0, 20, (8, 3), generator=generator)
        optimizer.zero_grad()
        (model(ids) - ids.sum(1) / 30).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("dtype", "is_whole", "native"),
    [
        pytest.param(
            dtype,
            is_whole,
            native,
            # All pairs of two of the three.
            marks=[] if (at_dtype + is_whole + at_native) % 2 else pytest.mark.long,
        )
        for at_dtype, dtype in enumerate((torch.bfloat16, torch.float16))
        for is_whole in (False, True)
        for at_native, native in enumerate((torch.optim.SGD, torch.optim.Adagrad))
    ],
)
def test_weights_of_16_bits_have_the_bits_of_a_rank(
    tmp_path: Path, dtype: torch.dtype, is_whole: bool, native: type[torch.optim.Optimizer]
) -> None:
    torch.manual_seed(5)
    original = Halves(dtype, is_whole=is_whole)
    before = copy.deepcopy(original)
    on_rank, model = copy.deepcopy(original), copy.deepcopy(original)
    on_rank, optimizer = distribute(on_rank, native(on_rank.parameters(), lr=0.1))
    on_rank = restore(trained_halves(on_rank, optimizer))

    optimizer = native(model.parameters(), lr=0.1)
    service = service_for(tmp_path, model, optimizer)
    with service.server:
        model, optimizer = distribute(model, optimizer, service=service.file)
        assert "rounded stochastically" in str(optimizer.report)
        model = restore(trained_halves(model, optimizer))
    trained_halves(original, native(original.parameters(), lr=0.1))
    for name, found in model.named_parameters():
        assert torch.equal(found, on_rank.get_parameter(name)), name
        assert not torch.equal(found, before.get_parameter(name)), name
        # Adagrad of torch divides by zero in float16.
        if dtype is torch.bfloat16 or native is torch.optim.SGD:
            torch.testing.assert_close(found, original.get_parameter(name), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("here", "there"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "float16")]
)
def test_weights_and_rows_of_another_dtype_are_rejected_and_nothing_changes(
    tmp_path: Path, here: str, there: str
) -> None:
    model = Halves(getattr(torch, here))
    declared = Halves(getattr(torch, there))
    service = service_for(tmp_path, declared, sgd(declared))
    before = copy.deepcopy(model.state_dict())
    with (
        service.server,
        pytest.raises(
            InvalidArgumentError,
            match=rf"words.* {here}, .*service.* {there}.* in parameters\.tables",
        ),
    ):
        distribute(model, sgd(model), service=service.file)
    assert isinstance(model.words, nn.Embedding)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_later_trainer_finds_the_rows_of_the_first(tmp_path: Path) -> None:
    first, second = Small(), Small()
    optimizer = sgd(first)
    service = service_for(tmp_path, first, optimizer)
    with service.server:
        first, optimizer = distribute(first, optimizer, service=service.file)
        second, its_optimizer = distribute(second, sgd(second), service=str(service.file))
        for model, each in ((first, optimizer), (second, its_optimizer)):
            each.zero_grad()
            model(torch.arange(3)).backward()
            each.step()
        one, other = restore(first).words.weight, restore(second).words.weight
    assert torch.equal(one, other)


def test_models_that_a_service_does_not_support_are_rejected_and_unchanged(tmp_path: Path) -> None:
    model = Small()
    service = service_for(tmp_path, model, sgd(model))
    words = model.words
    with service.server:
        cases: list[tuple[nn.Module, Any, dict[str, Any], type[Exception], str]] = [
            (
                model,
                torch.optim.SparseAdam(model.parameters(), maximize=True),
                {},
                UnsupportedError,
                "a service needs an update method",
            ),
            (model, sgd(model), {"plan": "auto"}, InvalidArgumentError, "leave out plan"),
            (
                model,
                torch.optim.Adagrad(model.parameters()),
                {},
                SparringError,
                "sgd",
            ),
        ]
        for given, optimizer, options, error, words_of_it in cases:
            with pytest.raises(error, match=words_of_it):
                distribute(given, optimizer, service=service.file, **options)
        double = Small(dtype=torch.float64)
        with pytest.raises(UnsupportedError, match="its weight is torch"):
            distribute(double, sgd(double), service=service.file)
        other = nn.ModuleDict({"missing": Small()})
        with pytest.raises(SparringError, match=r"missing\.words"):
            distribute(other, sgd(other), service=service.file)
    assert model.words is words
    assert words.weight.shape == (10, 4)
    assert isinstance(other["missing"].words, nn.Embedding)


def test_trainers_of_a_service_have_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    model = Small()
    with pytest.raises(UnsupportedError, match="without torchrun"):
        distribute(model, sgd(model), service="serving.yaml")
