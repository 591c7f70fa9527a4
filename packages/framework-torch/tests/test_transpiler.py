"""`distribute`: which modules are replaced, kept and rejected; and `restore`.

The file is long because each kind of module is replaced and restored in models of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import Embedding, distribute, distribution_report, restore
from sparring_torch.modules.table_module import TableModule
from sparring_torch.transpiler.joint_optimizer import JointOptimizer


class Small(nn.Module):
    """One embedding and a layer."""

    def __init__(self, words: nn.Module | None = None) -> None:
        super().__init__()
        self.words = words or nn.Embedding(10, 4)
        self.score = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.score(self.words(ids)).sum()


class Tied(Small):
    """The output layer shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(4, 10, bias=False)
        self.classes.weight = self.words.weight


class Functional(Small):
    """The weight is an argument, in a method that `forward` calls."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.words(ids)).sum()

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.words.weight)


class InList(Small):
    """A list that is not a `ModuleList`."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [self.words]


class Local(Small):
    """A local variable references the weight."""

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words
        return functional.linear(words(ids), words.weight).sum()


class Chosen(Small):
    """Embeddings and layers in one list; the weight of a layer is read."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([self.words, self.score])

    def forward(self, ids: Tensor) -> Tensor:
        found = ids
        for part in self.parts:
            is_linear = isinstance(part, nn.Linear)
            found = functional.linear(found, part.weight) if is_linear else part(found)
        return found.sum()


class WeightInList(Small):
    """A list contains the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [self.words.weight]


class PastTorch(Small):
    """An attribute that torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self.score, "words", self.words)


class Doubled(nn.Embedding):
    """Another `forward`."""

    def forward(self, ids: Tensor) -> Tensor:
        return 2 * super().forward(ids)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def padded() -> nn.Module:
    words = nn.Embedding(10, 4, padding_idx=2)
    words.weight.data[2] = 1.0
    return words


def hooked() -> nn.Module:
    words = nn.Embedding(10, 4)
    words.register_forward_hook(lambda *_: None)
    return words


UNSUPPORTED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tied": (Tied, "classes.weight is the same parameter"),
    "list of weights": (WeightInList, "WeightInList.weights uses its weight as a matrix"),
    "attribute of its own": (
        PastTorch,
        "Linear.words contains it in a plain list or dict, or outside of torch",
    ),
    "list": (InList, "InList.parts contains it in a plain list"),
    "max_norm": (lambda: Small(nn.Embedding(10, 4, max_norm=1.0)), "max_norm=1.0"),
    "frequency": (
        lambda: Small(nn.Embedding(10, 4, scale_grad_by_freq=True)),
        "scale_grad_by_freq",
    ),
    "max": (lambda: Small(nn.EmbeddingBag(10, 4, mode="max")), "mode='max'"),
    "forward": (lambda: Small(Doubled(10, 4)), "Doubled defines forward"),
    "padding": (lambda: Small(padded()), "padding_idx=2 is not zero"),
    "meta": (lambda: Small(nn.Embedding(10, 4, device="meta")), "no elements yet"),
    "parametrized": (lambda: Small(weight_norm(nn.Embedding(10, 4))), "defines"),
    "hooks": (lambda: Small(hooked()), "it has hooks"),
    "nothing": (lambda: nn.Linear(4, 1), "it has no embeddings"),
    "the model": (lambda: nn.Embedding(10, 4), "it is the complete model"),
}


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_a_module_is_rejected_with_its_path_and_reason(name: str) -> None:
    make, reason = UNSUPPORTED[name]
    model = make()
    modules, optimizer = list(model.modules()), sgd(model)
    report = distribution_report(model, optimizer)
    with pytest.raises(UnsupportedError, match="nothing was changed") as caught:
        distribute(model, optimizer)
    assert caught.value.report == report
    assert [each for each in report.unsupported if reason in each.reason], str(report)
    assert reason in str(caught.value)
    assert list(model.modules()) == modules
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


Made = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Made, str]] = {
    "Adam": (lambda model: torch.optim.Adam(model.parameters()), "Adam changes rows"),
    "AdamW": (lambda model: torch.optim.AdamW(model.parameters()), "AdamW changes rows"),
    "momentum": (lambda model: sgd(model, momentum=0.9), "SGD with momentum=0.9 changes rows"),
    "decay": (lambda model: sgd(model, weight_decay=0.1), "SGD with weight_decay=0.1 changes rows"),
    "RMSprop": (lambda model: torch.optim.RMSprop(model.parameters()), "RMSprop changes rows"),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_that_changes_all_rows_is_rejected_unless_lazy(name: str) -> None:
    make, reason = OPTIMIZERS[name]
    model = Small()
    with pytest.raises(UnsupportedError, match=reason):
        distribute(model, make(model))

    still = model.words.weight.detach().clone()
    model, optimizer = distribute(model, make(model), semantics="lazy")
    for ids in ([1, 2], [2, 3]):
        optimizer.zero_grad()
        model(torch.tensor(ids)).backward()
        optimizer.step()
    after = restore(model).words.weight
    assert torch.equal(after[4:], still[4:])
    assert not torch.isclose(after[1:4], still[1:4]).any()


def test_lbfgs_is_rejected_even_if_lazy() -> None:
    model = Small()
    with pytest.raises(UnsupportedError, match="LBFGS"):
        distribute(model, torch.optim.LBFGS(model.parameters()), semantics="lazy")


def test_all_errors_are_reported_at_once() -> None:
    model = nn.ModuleDict(
        {"a": Small(nn.Embedding(10, 4, max_norm=1.0)), "b": Doubled(10, 4), "c": Small()}
    )
    with pytest.raises(UnsupportedError, match="3 of 6 parts") as caught:
        distribute(model, torch.optim.Adam(model.parameters()))
    for text in ("a.words", "keep=['a.words']", "\nb ", "\noptimizer "):
        assert text in str(caught.value)
    assert "c.words" not in str(caught.value)


def test_a_kept_layer_remains_a_module_of_torch() -> None:
    model = Tied()
    model.tags = nn.Embedding(5, 4)
    model, optimizer = distribute(model, sgd(model), keep=["words"])
    assert isinstance(model.words, nn.Embedding)
    assert isinstance(model.tags, TableModule)
    assert "named in keep" in str(optimizer.report)
    kept = model.words.weight.detach().clone()
    (model(torch.tensor([1])) + model.tags(torch.tensor([1])).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert not torch.equal(model.words.weight, kept)


def test_keep_accepts_a_path_of_the_model() -> None:
    model = Small()
    with pytest.raises(UnsupportedError, match=r"word +unsupported +it is in keep"):
        distribute(model, sgd(model), keep=["word"])
    with pytest.raises(InvalidArgumentError, match=r"\['words'\]"):
        distribute(model, sgd(model), keep="words")


def test_the_report_is_a_table_of_all_modules() -> None:
    model = Small(nn.Embedding(10, 4, dtype=torch.bfloat16))
    model.tables = Embedding(4, name="ours")
    model.frozen = nn.Embedding(10, 4).requires_grad_(False)
    model.other = nn.Embedding(10, 4)
    trained = [*model.words.parameters(), *model.score.parameters(), *model.frozen.parameters()]
    model, optimizer = distribute(model, torch.optim.SGD([*trained, model.tables.anchor], lr=1.0))
    lines = str(optimizer.report).splitlines()
    assert lines[0].split() == ["module", "class", "outcome", "reason"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["words", "Embedding", "replaced"],
        ["score", "Linear", "kept"],
        ["tables", "Embedding", "kept"],
        ["frozen", "Embedding", "replaced"],
        ["other", "Embedding", "replaced"],
    ]
    assert "rounded stochastically" in lines[1]
    assert "already has tables" in lines[3]
    assert "frozen: rows are read only" in lines[4]
    assert "no optimizer has its weight" in lines[5]


def test_a_scheduler_is_created_afterwards() -> None:
    model = Small()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UnsupportedError, match="a scheduler was created for it"):
        distribute(model, optimizer)


def test_an_optimizer_that_has_taken_steps_is_rejected() -> None:
    model = Small()
    optimizer = torch.optim.Adagrad(model.parameters())
    model(torch.tensor([1])).backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(UnsupportedError, match="Adagrad has taken steps with it"):
        distribute(model, optimizer)


def test_an_id_out_of_range_is_rejected_as_before() -> None:
    model = Small()
    model, _ = distribute(model, sgd(model))
    for wrong in (10, -1):
        with pytest.raises(InvalidArgumentError, match=f"found id {wrong}.*0 to 9"):
            model(torch.tensor([3, wrong]))
    assert model.words.num_rows() == {"words": 10}


def projected(words: nn.Module, hidden: Tensor) -> Tensor:
    return functional.linear(hidden, words.weight)


class Helped(Small):
    """A function uses the weight."""

    def forward(self, ids: Tensor) -> Tensor:
        return projected(self.words, self.words(ids)).sum()


class Output(nn.Module):
    """Receives an embedding."""

    def forward(self, hidden: Tensor, words: nn.Module) -> Tensor:
        return functional.linear(hidden, words.weight)


class Passed(Small):
    """Another module uses the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.output = Output()

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.words(ids), self.words).sum()


class InLambda(Small):
    """A function from before uses the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.project = lambda hidden: functional.linear(hidden, self.words.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.words(ids)).sum()


class HoldsModule(Small):
    """A function references the module, but not the model."""

    def __init__(self) -> None:
        super().__init__()
        words = self.words
        self.project = lambda hidden: functional.linear(hidden, words.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.words(ids)).sum()


class Named(Small):
    """The name of the module is computed."""

    def forward(self, ids: Tensor) -> Tensor:
        name = "words"
        return getattr(self, name).weight[ids].sum()


class Penalized(Small):
    """For a loss that uses the weight."""


UNSEEN: list[type[Small]] = [
    Functional,
    Local,
    Helped,
    Passed,
    InLambda,
    HoldsModule,
    Named,
    Penalized,
]


@pytest.mark.parametrize("kind", UNSEEN)
def test_a_use_of_the_weight_raises_when_it_runs(kind: type[Small]) -> None:
    outer = nn.ModuleDict({"tower": kind()})
    assert not distribution_report(outer, sgd(outer)).unsupported
    outer, _ = distribute(outer, sgd(outer))
    model: Any = outer["tower"]
    advice = r"tower\.words: .*table tower\.words, .*no weight matrix.* keep=\['tower\.words'\]"
    with pytest.raises((AttributeError, UnsupportedError), match=advice):
        (model(torch.tensor([1])) + model.words.weight.norm()).backward()


def test_a_weight_taken_earlier_raises_when_used_until_it_is_restored() -> None:
    model = Small()
    weight, trained = model.words.weight, list(model.parameters())
    model, _ = distribute(model, sgd(model))
    uses: list[Callable[[], Any]] = [
        weight.square,
        lambda: functional.linear(torch.ones(4), weight),
        lambda: nn.utils.clip_grad_norm_(trained, 1.0),
        lambda: torch.optim.SGD(trained),
    ]
    for use in uses:
        with pytest.raises(UnsupportedError, match=r"before distribute. words: .*keep=\['words'\]"):
            use()
    copied = restore(copy.deepcopy(model)).words.weight
    assert restore(model).words.weight is weight
    assert torch.equal(copied, weight)
    assert type(weight) is nn.Parameter
    assert weight.square().shape == (10, 4)


def test_a_layer_in_a_list_with_embeddings_may_be_used_as_a_matrix() -> None:
    model = Chosen()
    expected = model(torch.tensor([1, 2]))
    model, optimizer = distribute(model, sgd(model))
    assert [each.path for each in optimizer.report.replaced] == ["words, parts.0"]
    torch.testing.assert_close(model(torch.tensor([1, 2])), expected)
    assert model.words.num_embeddings == 10


def test_a_penalty_over_parameters_is_rejected_because_it_would_omit_rows() -> None:
    model = Small(nn.EmbeddingBag(10, 4, mode="sum"))
    model, optimizer = distribute(model, sgd(model))
    loss = model(torch.tensor([[1, 2]]))
    others = [each for each in model.parameters() if each.numel()]
    (loss + sum(each.square().sum() for each in others)).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = model(torch.tensor([[1, 2]]))
    with pytest.raises(UnsupportedError, match=r"table 'words'.* would not include the rows"):
        (loss + sum(each.square().sum() for each in model.parameters())).backward()


def test_a_shared_module_is_replaced_by_one() -> None:
    model = Small()
    model.again = model.words
    model, optimizer = distribute(model, sgd(model))
    assert model.again is model.words
    assert isinstance(model.words, TableModule)
    assert optimizer.report.replaced[0].path == "words, again"
    plain = restore(model)
    assert plain.again is plain.words
    assert isinstance(plain.words, nn.Embedding)


def test_rows_of_bfloat16_follow_the_weight() -> None:
    torch.manual_seed(1)
    original = Small().to(torch.bfloat16)
    model = copy.deepcopy(original)
    model, optimizer = distribute(model, sgd(model))
    theirs = sgd(original)
    for step in range(5):
        for each, its in ((model, optimizer), (original, theirs)):
            its.zero_grad()
            output = each(torch.tensor([step, 3]))
            assert output.dtype is torch.bfloat16
            output.backward()
            its.step()
    words = restore(model).words
    assert words.weight.dtype is torch.bfloat16
    torch.testing.assert_close(words.weight, original.words.weight, rtol=0.05, atol=0.01)


def test_frozen_rows_can_be_trained_later() -> None:
    model = Small()
    model.words.requires_grad_(False)
    before = model.words.weight.detach().clone()
    model, optimizer = distribute(model, sgd(model))

    def step() -> Tensor:
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).backward()
        optimizer.step()
        return model.words.read_embeddings(torch.arange(10))

    assert torch.equal(step(), before)
    model.words.requires_grad_(True)
    after = step()
    assert torch.equal(after[3:], before[3:])
    assert not torch.equal(after[1:3], before[1:3])


def test_restore_returns_the_trained_weights_and_can_be_repeated() -> None:
    bag = nn.EmbeddingBag(10, 4, mode="sum", padding_idx=2)
    bag.weight.data[2] = 5.0  # never read
    model = Small(bag)
    optimizer = sgd(model)
    for _ in range(2):
        model, optimizer = distribute(model, optimizer)
        assert isinstance(optimizer, JointOptimizer)
        optimizer.zero_grad()
        model(torch.tensor([[1, 2]])).backward()
        optimizer.step()
        model = restore(model)
        optimizer = sgd(model)
    assert model.words is bag
    assert torch.equal(bag.weight[2], torch.full((4,), 5.0))
    assert bag.weight.requires_grad
    with pytest.raises(InvalidArgumentError, match="no module that distribute replaced"):
        restore(model)
    path: Any = "model.pt"
    with pytest.raises(InvalidArgumentError, match="found str, expected a module"):
        restore(path)


def test_state_of_the_optimizer_is_saved_and_loaded() -> None:
    def made() -> tuple[Any, Any]:
        torch.manual_seed(2)
        model = Small()
        return distribute(model, torch.optim.Adagrad(model.parameters(), lr=0.1, lr_decay=0.5))

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).backward()
        optimizer.step()

    model, optimizer = made()
    step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.3
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    step(model, optimizer)

    other, its_optimizer = made()
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    assert its_optimizer.param_groups[0]["lr"] == 0.3
    step(other, its_optimizer)
    assert torch.equal(restore(other).words.weight, restore(model).words.weight)
    assert torch.equal(other.score.weight, model.score.weight)
    with pytest.raises(InvalidArgumentError, match="expected rows and dense"):
        its_optimizer.load_state_dict(torch.optim.SGD([nn.Parameter()], lr=1.0).state_dict())


class Pair(nn.Module):
    """Two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(6, 4), nn.Embedding(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.user(ids) * self.item(ids)).square().sum()


def test_groups_of_embeddings_may_have_different_states() -> None:
    original = Pair()
    model = copy.deepcopy(original)

    def made(of: Pair) -> torch.optim.Optimizer:
        groups = [
            {"params": of.user.parameters(), "momentum": 0.9},
            {"params": of.item.parameters(), "lr": 0.02, "weight_decay": 0.1},
        ]
        return torch.optim.SGD(groups, lr=0.01)

    def step(model: Pair, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.arange(6)).backward()  # lazy is exact where each row has a gradient
        optimizer.step()

    theirs = made(original)
    model, ours = distribute(model, made(model), semantics="lazy")
    saved = None
    for number in range(6):
        theirs.param_groups[1]["lr"] = ours.param_groups[1]["lr"] = 0.02 / (number + 1)
        step(original, theirs)
        step(model, ours)
        if number == 2:
            saved = copy.deepcopy(model.state_dict()), ours.state_dict()
    assert [each["params"] for each in saved[1]["rows"]["param_groups"]] == [["user"], ["item"]]
    other = Pair()
    other, its_optimizer = distribute(other, made(other), semantics="lazy")
    other.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    for number in range(3, 6):
        its_optimizer.param_groups[1]["lr"] = 0.02 / (number + 1)
        step(other, its_optimizer)
    for found in (restore(model), restore(other)):
        for one, expected in zip(found.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-7)


def test_embeddings_of_two_optimizers_are_rejected() -> None:
    model = Pair()
    optimizers = [sgd(model.user), sgd(model.item)]
    with pytest.raises(UnsupportedError, match="optimizer 1, but others are in optimizer 0"):
        distribute(model, optimizers)
    assert isinstance(model.user, nn.Embedding)


def test_a_group_that_changes_all_rows_is_rejected_even_if_others_do_not() -> None:
    model = Pair()
    groups = [
        {"params": model.user.parameters()},
        {"params": model.item.parameters(), "momentum": 0.9},
    ]
    with pytest.raises(UnsupportedError, match=r"SGD with momentum=0\.9 changes rows"):
        distribute(model, torch.optim.SGD(groups, lr=0.1))


def test_a_group_of_parameters_can_be_added() -> None:
    model = Small()
    model, optimizer = distribute(model, sgd(model))
    added = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [added], "lr": 1.0})
    added.grad = torch.ones(2)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(added, torch.zeros(2))
    assert len(optimizer.state_dict()["dense"]["param_groups"]) == 2
