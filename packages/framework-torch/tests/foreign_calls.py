"""Building blocks of the checks in `foreign_parameters`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import sparring_torch as st
from sparring.errors import SparringError
from sparring_torch import torchrec as tr
from sparring_torch.torchrec import planner as planners

Check = Callable[[], None]
META, CPU = torch.device("meta"), torch.device("cpu")


def shown(value: Any) -> Any:
    """Converts a result to a comparable form."""
    if isinstance(value, Tensor):
        return (
            str(value.device),
            str(value.dtype),
            value.tolist() if value.device == CPU else value.shape,
        )
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    return value


def differs(call: Callable[[Any], Any], *values: Any) -> Check:
    """All values give different results."""

    def check() -> None:
        found: list[Any] = []
        for value in values:
            torch.manual_seed(0)
            result = shown(call(value))
            assert result not in found, (value, result)
            found.append(result)

    return check


def rejects(call: Callable[[Any], Any], value: Any, *, default: Any = None) -> Check:
    """The value raises, and the default does not."""

    def check() -> None:
        call(default)
        with pytest.raises(SparringError, match=r"."):
            call(value)

    return check


def same(call: Callable[[Any], Any], *values: Any, reason: str) -> Check:
    """All values give the same result, for the given reason."""

    def check() -> None:
        assert reason
        first = shown(call(values[0]))
        assert all(shown(call(each)) == first for each in values[1:])

    return check


# -- parts of checks


def config(kind: Any = tr.EmbeddingBagConfig, **settings: Any) -> Any:
    return kind(**{"name": "user", "embedding_dim": 4} | settings)


def bags(*configs: Any, **settings: Any) -> Any:
    settings = settings if "device" in settings else {"storage": "memory"} | settings
    return tr.EmbeddingBagCollection(list(configs) or [config()], **settings)


def sequence(*configs: Any, **settings: Any) -> Any:
    settings = settings if "device" in settings else {"storage": "memory"} | settings
    return tr.EmbeddingCollection(list(configs) or [config(tr.EmbeddingConfig)], **settings)


def one(name: str = "user", **settings: Any) -> tr.KeyedJaggedTensor:
    return tr.KeyedJaggedTensor(
        [name], torch.tensor([3, 4]), lengths=torch.tensor([2, 0]), **settings
    )


def place(module: nn.Module) -> str:
    return next(module.parameters()).device.type


def where(module: Any) -> str:
    return str(module.agent.declarations[0].device)


def declared(value: Any, name: str, kind: Any = tr.EmbeddingBagConfig) -> Any:
    """Returns the output of a module whose configuration has the value, or the table's declaration."""
    made = config(kind, **{name: value})
    module = bags(made) if kind is tr.EmbeddingBagConfig else sequence(made)
    table = module.agent.declarations[0]
    output = module(one("ads" if name == "feature_names" and value else "user"))
    found = output.to_dict() if isinstance(output, tr.KeyedTensor) else output
    return [table.table.dtype, str(table.storage), shown_output(found)]


def shown_output(found: dict[str, Any]) -> Any:
    return {
        key: (each.values() if isinstance(each, tr.JaggedTensor) else each).detach()
        for key, each in found.items()
    }


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.dense = bags(), nn.Linear(4, 1)

    def forward(self, features: Any) -> tuple[Tensor, Tensor]:
        output = self.dense(self.bags(features).values())
        return output.sum(), output


def distributed(look: Callable[[Any], Any], **settings: Any) -> Any:
    model = tr.DistributedModelParallel(Model(), **settings)
    try:
        return look(model)
    finally:
        model.close()


def asked(model: nn.Module | None = None, **settings: Any) -> Any:
    """Returns the request that the planner receives, as text."""
    requests: list[Any] = []

    def made(request: Any, _: Any) -> Any:
        requests.append(request)
        return planners.PlanResult(tr.ShardingPlan({}))

    settings.setdefault("topology", tr.Topology(2, ddr_cap=1 << 30))
    with mock.patch.object(planners, "request_plan", made):
        tr.EmbeddingShardingPlanner(**settings).plan(model or Model())
    return str(requests)


def topology(**settings: Any) -> str:
    return asked(topology=tr.Topology(**({"world_size": 4, "ddr_cap": 1 << 30} | settings)))


def constraints(**settings: Any) -> str:
    return asked(constraints={"user": tr.ParameterConstraints(**settings)})


def dense_optimizer(kind: str) -> tuple[Any, nn.Parameter]:
    weight = nn.Parameter(torch.ones(2, 2))
    inner = torch.optim.SGD([weight], lr=0.1)
    made: Any = {
        "combined": lambda: tr.CombinedOptimizer([inner]),
        "keyed": lambda: tr.KeyedOptimizerWrapper(
            {"w": weight}, lambda p: torch.optim.SGD(p, lr=0.1)
        ),
        "clipping": lambda: tr.GradientClippingOptimizer(inner),
        "rowwise": lambda: tr.RowWiseAdagrad([weight], lr=0.1),
    }[kind]()
    weight.grad = torch.ones(2, 2)
    return made, weight


def single(kind: Any, value: Any, name: str) -> Any:
    module = kind(2, name="single", **{name: value})
    ids = torch.tensor([[1, 2], [2, 3]])
    table = module.agent.declarations[0]
    return [where(module), str(table.storage), table.table.dtype, module(ids).detach()]


def bag(**settings: Any) -> Tensor:
    module = st.EmbeddingBag(2, name="bag", mode="sum")
    given = {"offsets": torch.tensor([0, 1])} | settings
    found: Tensor = module(torch.tensor([1, 2]), **given).detach()
    return found


def jagged(kind: str, **settings: Any) -> Any:
    jt, values = tr.JaggedTensor, torch.tensor([1.0, 2.0, 3.0])
    if kind == "empty":
        made = jt.empty(**settings)
        weights = made.weights_or_none()
        return [str(made.values().dtype), made.device().type, made.lengths(), weights]
    if kind == "from_dense":
        return jt.from_dense([values], **settings).weights_or_none()
    if kind == "from_dense_lengths":
        return jt.from_dense_lengths(values[None], torch.tensor([2]), **settings).weights_or_none()
    given = jt(values, torch.tensor([4.0, 5.0, 6.0]), lengths=torch.tensor([2, 1]))
    return getattr(given, kind)(**settings)


def keyed(kind: str, **settings: Any) -> Any:
    kjt, ids = tr.KeyedJaggedTensor, torch.tensor([1, 2, 3, 4])
    if kind == "empty":
        made = kjt.empty(**settings)
        weights = made.weights_or_none()
        return [str(made.values().dtype), made.device().type, made.lengths(), weights]
    counts = {"from_offsets_sync": {"offsets": [0, 1, 2, 3, 4]}}.get(
        kind, {"lengths": [1, 1, 1, 1]}
    )
    make: Any = kjt if kind == "KeyedJaggedTensor" else getattr(kjt, kind)
    made = make(keys=["a", "b"], values=ids, **(counts | settings))
    inverse = made.inverse_indices_or_none()
    return [made.weights_or_none(), made.stride(), made.stride_per_key(), inverse and inverse[1]]
