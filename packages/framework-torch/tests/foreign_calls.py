"""Building blocks of the checks in `foreign_parameters`."""

from __future__ import annotations

import logging
import os
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


def dlrm(kind: Any, **settings: Any) -> nn.Module:
    more: dict[str, Any] = {}
    if kind is tr.DLRM_DCN:
        more = {"dcn_num_layers": 1, "dcn_low_rank_dim": 2}
    if kind is tr.DLRM_Projection:
        more = {"interaction_branch1_layer_sizes": [4], "interaction_branch2_layer_sizes": [4]}
    made: nn.Module = kind(
        embedding_bag_collection=bags(),
        dense_in_features=2,
        dense_arch_layer_sizes=[4],
        over_arch_layer_sizes=[1],
        **more,
        **settings,
    )
    return made


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


def modules_moved(device: Any) -> int:
    with mock.patch.object(nn.Module, "to") as to:
        distributed(lambda _: None, device=device)
    return int(to.call_count)


def local_size(world_size: int | None) -> int:
    started = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    with mock.patch.dict(os.environ, started):
        return tr.get_local_size(world_size)


def fused(model: Any) -> Any:
    try:
        return [group["lr"] for group in model.fused_optimizer.param_groups]
    except SparringError:
        return None


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


def logged(debug: bool) -> int:
    records: list[Any] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger(planners.__name__)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        made = planners.PlanResult(tr.ShardingPlan({}), "summary")
        with mock.patch.object(planners, "request_plan", return_value=made):
            tr.EmbeddingShardingPlanner(tr.Topology(2), debug=debug).plan(Model())
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return len(records)


def sent_to(pg: Any) -> Any:
    """Returns the group over which a plan is sent."""
    groups: list[Any] = []
    dist: Any = mock.Mock()
    dist.is_initialized.return_value, dist.get_rank.return_value = True, 0
    dist.get_world_size.return_value = 1
    dist.group.WORLD = "world"
    dist.broadcast_object_list.side_effect = lambda *_, **named: groups.append(named["group"])
    with mock.patch.object(planners, "dist", dist):
        tr.EmbeddingShardingPlanner(tr.Topology(1)).collective_plan(Model(), pg=pg)
    return groups


def random_batch(**settings: Any) -> Any:
    data = tr.RandomRecDataset(
        **({"keys": ["a", "b"], "batch_size": 40, "manual_seed": 1} | settings)
    )
    batch = next(iter(data))
    return [
        batch.dense_features.shape,
        batch.sparse_features.values(),
        batch.sparse_features.lengths(),
    ]


def moved(tensor: Any, **settings: Any) -> list[Any]:
    """Returns the arguments with which `Tensor.to` is called."""
    calls: list[Any] = []
    with mock.patch.object(Tensor, "to", lambda self, *_, **named: calls.append(named) or self):
        tensor.to(CPU, **settings)
    return [named for named in calls if "non_blocking" in named]


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


def closed(kind: str) -> Check:
    """`step` calls the closure and returns its loss."""

    def call(closure: Any) -> Any:
        if kind == "rows":
            optimizer: Any = st.Optimizer(bags(), torch.optim.SGD, lr=0.1)
        elif kind == "abstract":
            with pytest.raises(NotImplementedError):
                tr.KeyedOptimizer({}, {}, []).step(closure)
            return closure and 3.0
        else:
            optimizer, _ = dense_optimizer(kind)
        return optimizer.step(closure)

    return differs(call, None, lambda: 3.0)


def zeroed(kind: str) -> Check:
    def call(set_to_none: bool) -> Any:
        optimizer, weight = dense_optimizer(kind)
        optimizer.zero_grad(set_to_none)
        return weight.grad

    return differs(call, True, False)


def rows_after(set_to_none: bool) -> Tensor:
    module = st.Embedding(2, name="cleared")
    optimizer = st.Optimizer(module, torch.optim.SGD, lr=0.1)
    module(torch.tensor([1])).sum().backward()
    optimizer.zero_grad(set_to_none)
    optimizer.step()
    return module.read_embeddings([1])


def clipped(**settings: Any) -> Tensor:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    settings = {"clipping": tr.GradientClipping.NORM} | settings
    tr.GradientClippingOptimizer(torch.optim.SGD([weight], lr=0.1), **settings).step()
    return weight.detach()


def rowwise(**settings: Any) -> Tensor:
    weight = nn.Parameter(torch.tensor([[1.0, 2.0]]))
    optimizer = tr.RowWiseAdagrad([weight], **settings)
    for _ in range(2):
        weight.grad = torch.tensor([[0.5, 0.1]])
        optimizer.step()
    return weight.detach()


def single(kind: Any, value: Any, name: str) -> Any:
    module = kind(2, name="single", **{name: value})
    ids = torch.tensor([[1, 2], [2, 3]])
    table = module.agent.declarations[0]
    return [where(module), str(table.storage), table.table.dtype, module(ids).detach()]


def last_offset(value: bool) -> Tensor:
    bag = st.EmbeddingBag(2, name="offsets", include_last_offset=value)
    found: Tensor = bag(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).detach()
    return found


def bag(**settings: Any) -> Tensor:
    module = st.EmbeddingBag(2, name="bag", mode="sum")
    given = {"offsets": torch.tensor([0, 1])} | settings
    found: Tensor = module(torch.tensor([1, 2]), **given).detach()
    return found


def frozen(kind: Any, freeze: bool) -> bool:
    return bool(kind.from_pretrained(torch.ones(2, 2), freeze=freeze).anchor.requires_grad)


def executed(execute_all_batches: bool) -> int:
    model = Model()
    tr.apply_optimizer_in_backward(tr.SGD, model.bags, {"lr": 0.1})
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    pipeline: Any = tr.TrainPipelineSparseDist(model, dense, "cpu", execute_all_batches)
    iterator, count = iter([one()] * 3), 0
    while True:
        try:
            pipeline.progress(iterator)
            count += 1
        except StopIteration:
            return count


def quantized(**settings: Any) -> Any:
    module = bags()
    optimizer = st.Optimizer(module, torch.optim.SGD, lr=0.1)
    module(one()).values().sum().backward()
    optimizer.step()
    made = tr.quantize_embeddings(module, **({"dtype": torch.qint8} | settings))
    return [made is module, made(one()).values()]


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
