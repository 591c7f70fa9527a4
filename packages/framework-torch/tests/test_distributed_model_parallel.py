"""One more line makes a script for one process train on several ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.contracts import TableWorkload
from sparring.errors import InvalidArgumentError, PluginError
from sparring_testing.processes.rank_threads import run_containers
from sparring_torch import EmbeddingBagCollection, EmbeddingBagConfig
from sparring_torch.distributed import distributed_model_parallel
from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
from sparring_torch.lookup.row_gradients import dense_parameters
from sparring_torch.modules.embedding import Embedding
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.state.rows_in_state import without_rows

from .forked_ranks import run_forked_ranks

PYTHON = Path(sys.executable)
MPIEXEC = str(PYTHON.parent / "mpiexec") if (PYTHON.parent / "mpiexec").exists() else ""
MPIEXEC = MPIEXEC or shutil.which("mpiexec") or ""

SCRIPT = """
import json
import sys

import torch
from torch import nn

import sparring_torch as st
from sparring.contracts import TableSharding


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        tables = [
            st.EmbeddingBagConfig(name="user", embedding_dim=4, feature_names=["a", "b"]),
            st.EmbeddingBagConfig(
                name="shop", embedding_dim=2, feature_names=["c"], placement="replicated"
            ),
        ]
        self.bags = st.EmbeddingBagCollection(tables)
        self.dense = nn.Linear(10, 1)

    def forward(self, batch):
        output = self.dense(self.bags(batch["features"]).values()).squeeze(1)
        return ((output - batch["target"]) ** 2).mean(), output.detach()


def batches(ranks, size=4):
    for step in range(12):
        parts = [torch.Generator().manual_seed(100 * step + rank) for rank in ranks]
        ids = torch.cat([torch.randint(-9, 9, (3, size), generator=each) for each in parts], 1)
        lengths = torch.ones(3 * size * len(ranks), dtype=torch.int64)
        features = st.KeyedJaggedTensor(["a", "b", "c"], ids.reshape(-1), lengths=lengths)
        yield {"features": features, "target": ids[0].float() / 9}


torch.manual_seed(0)
model = Model()
rank, world_size = 0, 1
if "--ranks" in sys.argv:
    plan = {"user": "table_wise"} if "--plan" in sys.argv else "auto"
    if "--pooled" in sys.argv:
        plan = {"user": TableSharding("table_row_wise", [0, 1], transfer="pooled")}
    model = st.DistributedModelParallel(model, plan=plan)  # the line
    collective = model.container.collective
    rank, world_size = collective.rank, collective.world_size
mine = [rank] if world_size > 1 else [0, 1]
optimizers = [
    st.Optimizer(model, torch.optim.Adagrad, lr=0.1),
    torch.optim.SGD(model.parameters(), lr=0.1),
]
if "--pipeline" in sys.argv:
    pipeline = st.TrainPipeline(model, optimizers)
    given = batches(mine)
    while True:
        try:
            pipeline.progress(given)
        except StopIteration:
            break
    assert pipeline.pipelined
else:
    for batch in batches(mine):
        for each in optimizers:
            each.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        for each in optimizers:
            each.step()

container = optimizers[0].container
rows = {
    name: {
        str(key): row[:4 if name == "user" else 2].tolist()
        for chunk in container.storage(name).scan()
        for key, row in zip(chunk.keys.tolist(), chunk.rows)
    }
    for name in container.tables
}
with st.without_rows():
    state = {name: value.tolist() for name, value in model.state_dict().items()}
with open(f"result-{rank}.json", "w") as file:
    json.dump({"rows": rows, "state": state}, file)
container.close()
"""


# The agent selects a free port, and keeps it.
TORCHRUN = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("sparring_mpi") is None or not MPIEXEC,
    reason='needs sparring-mpi and mpiexec: pip install "sparring[mpi]"',
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the results of one process without the line."""
    folder = tmp_path_factory.mktemp("alone")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script))
    found: dict[str, Any] = json.loads((folder / "result-0.json").read_text())
    return found


@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        pytest.param("fork", [], id="forked"),
        pytest.param("torchrun", [], id="torchrun", marks=pytest.mark.slow),
        pytest.param(
            "torchrun",
            ["--pipeline", "--plan"],
            id="torchrun, pipelined, by a plan",
            marks=pytest.mark.long,
        ),
        pytest.param("torchrun", ["--pooled"], id="torchrun, pooled", marks=pytest.mark.long),
        pytest.param(
            "mpiexec",
            ["--pipeline"],
            id="mpiexec, pipelined",
            marks=[needs_mpi, pytest.mark.long],
        ),
    ],
)
def test_two_processes_train_like_one_on_the_joined_batch(
    launcher: str, options: list[str], alone: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("sys.argv", str(["--ranks", *options])))
    if launcher == "fork":
        run_forked_ranks(script, 2)
    else:
        command = {
            "torchrun": [*TORCHRUN, "--nproc-per-node", "2"],
            "mpiexec": [MPIEXEC, "-n", "2", str(PYTHON)],
        }[launcher]
        done = subprocess.run(
            [*command, "script.py"],
            check=False,  # the assertion below shows its output
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
    both = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(2)]
    users = {**both[0]["rows"]["user"], **both[1]["rows"]["user"]}
    assert len(users) == len(both[0]["rows"]["user"]) + len(both[1]["rows"]["user"])
    assert both[0]["rows"]["shop"] == both[1]["rows"]["shop"]
    assert both[0]["state"] == both[1]["state"]
    assert both[0]["state"].keys() == {"dense.weight", "dense.bias"}
    for expected, found in (
        (alone["rows"]["user"], users),
        (alone["rows"]["shop"], both[0]["rows"]["shop"]),
        (alone["state"], both[0]["state"]),
    ):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            torch.testing.assert_close(
                torch.tensor(found[name]), torch.tensor(values), rtol=1e-6, atol=1e-6
            )


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Embedding(2, name="small")
        self.dense = nn.Linear(2, 1)
        self.unused = nn.Linear(2, 1)
        self.register_buffer("mark", torch.zeros(3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.table(ids)).sum()


def test_a_single_process_is_unchanged() -> None:
    model = Small()
    wrapped = DistributedModelParallel(model)
    assert wrapped.module is model
    assert wrapped.state_dict().keys() == model.state_dict().keys()
    assert [name for name, _ in wrapped.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert [name for name, _ in wrapped.named_buffers()] == ["mark"]
    wrapped.load_state_dict(Small().state_dict())
    assert wrapped.container.collective.world_size == 1
    updates = Optimizer(wrapped, "sgd", lr=1.0)
    assert updates.container is wrapped.container
    wrapped(torch.arange(3)).backward()
    updates.step()
    updates.zero_grad()
    assert model.table.num_rows() == {"small": 3}
    wrapped.close()


def test_ranks_start_with_the_parameters_of_rank_0_and_average_gradients() -> None:
    def body(container: StepContainer) -> tuple[dict[str, Tensor], list[Tensor | None]]:
        rank = container.collective.rank
        model = Small()
        nn.init.constant_(model.dense.weight, rank + 1.0)
        model.mark.fill_(rank + 7.0)
        wrapped = DistributedModelParallel(model, container=container)
        with without_rows():
            state = {name: value.clone() for name, value in wrapped.state_dict().items()}
        wrapped(torch.arange(3 * (rank + 1))).backward()
        return state, [each.grad for _, each in dense_parameters(model)]

    (first, ours), (second, theirs) = run_containers(2, body)
    assert first["dense.weight"].tolist() == [[1.0, 1.0]]
    assert first["mark"].tolist() == [7.0] * 3
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)
    weight, bias, *unused = ours
    assert weight is not None
    assert bias is not None
    assert bias.tolist() == [(3 + 6) / 2]
    torch.testing.assert_close(theirs[0], weight, rtol=0, atol=0)
    assert unused == [None, None]


def test_a_plan_determines_how_tables_are_sharded() -> None:
    wrapped = DistributedModelParallel(Small(), plan={"small": "table_wise"})
    assert wrapped.container.layout("small").kind == "table_wise"
    wrapped.close()
    with pytest.raises(InvalidArgumentError, match="did you mean 'small'"):
        DistributedModelParallel(Small(), plan={"smal": "table_wise"})
    with pytest.raises(PluginError, match="did you mean 'table_wise'"):
        DistributedModelParallel(Small(), plan={"small": "table-wise"})
    with (
        StepContainer() as container,
        pytest.raises(InvalidArgumentError, match="pass the plan to the container"),
    ):
        DistributedModelParallel(Small(), container=container, plan={"small": "row_wise"})


def test_auto_plans_the_tables_of_the_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[TableWorkload] = []

    def resolve_plan(plan: Any, tables: Any, job: Any, manager: Any) -> Any:
        asked.extend(tables())
        return {each.table.name: "table_wise" for each in asked}

    monkeypatch.setattr(distributed_model_parallel, "resolve_plan", resolve_plan)
    bags = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name="seen", embedding_dim=4, feature_names=["a", "b"]),
            EmbeddingBagConfig(name="shop", embedding_dim=2, num_embeddings=50),
        ]
    )
    wrapped = DistributedModelParallel(nn.ModuleList([bags, Small()]), plan="auto")
    assert {wrapped.container.layout(name).kind for name in ("seen", "shop", "small")} == {
        "table_wise"
    }
    wrapped.close()
    assert [(each.table.name, each.rows, each.method) for each in asked] == [
        ("seen", None, None),
        ("shop", 50, None),
        ("small", None, None),
    ]
    assert [each.supports_pooling for each in asked] == [True, True, False]
    poolings = [[feature.pooling for feature in each.features] for each in asked]
    assert poolings == [["sum", "sum"], ["sum"], [None]]


def test_auto_on_one_rank_changes_nothing() -> None:
    wrapped = DistributedModelParallel(Small(), plan="auto")
    assert wrapped.container.layout("small").kind == "row_wise"
    wrapped.close()
    with pytest.raises(InvalidArgumentError, match="found 'automatic'; pass 'auto'"):
        DistributedModelParallel(Small(), plan="automatic")


def test_tables_of_another_container_are_rejected() -> None:
    with StepContainer() as container, StepContainer() as other:
        model = nn.Sequential(Embedding(2, name="there", container=other))
        with pytest.raises(InvalidArgumentError, match="containers"):
            DistributedModelParallel(model, container=container)
