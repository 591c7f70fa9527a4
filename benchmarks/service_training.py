"""A DLRM that trains through a parameter service, compared with two ranks on the same batches.

    two ranks      each half of a batch, over gloo: the ring exchange, and DistributedDataParallel
    one trainer    the whole batch: lookups pull from the service, steps push to it
    two trainers   each half of a batch, without ranks

Server, ranks and trainers are separate processes with one torch thread each. Contenders alternate; the
others wait meanwhile. The losses of one trainer are compared with those of the ranks before anything is
timed.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.serving import process, server_process

__all__ = ["measure"]

NUM_ROWS, NUM_SAMPLES, ROUNDS, CHECKED_STEPS, TOLERANCE = 100_000, 4_096, 25, 4, 1e-4
WAITS = ("applied", "queued")
Turn = tuple[str, Sequence[Connection]]


def measure(scale: Scale) -> list[Figure]:
    """Measures the ratio of a step through the service to one of two ranks, and its components."""
    given = f"{scale.rows(NUM_ROWS)},{scale.rows(NUM_SAMPLES)}"
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        address = closing.enter_context(server_process(_serve, folder))
        config = Path(folder) / "serving.yaml"
        config.write_text(_yaml(f"['{address}']", folder))
        trainers = [
            closing.enter_context(process(_train, f"{config},{each},{given}")) for each in range(2)
        ]
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        ranks = [
            closing.enter_context(process(_rank, f"{port},{each},{given}")) for each in range(2)
        ]
        turns: dict[str, Turn] = {"two ranks": ("step", ranks)}
        for wait in WAITS:
            turns[f"one trainer, wait={wait}"] = (f"{wait} whole", trainers[:1])
            turns[f"two trainers, wait={wait}"] = (f"{wait} half", trainers)
        _check(turns)
        taken = {name: list[dict[str, float]]() for name in turns}
        for _ in range(3 + scale.rounds(ROUNDS)):
            for name, turn in turns.items():
                taken[name].append(_step(turn))
    return [_figure(name, each[3:], taken["two ranks"][3:]) for name, each in taken.items()]


def _check(turns: dict[str, Turn]) -> None:
    for _ in range(CHECKED_STEPS):
        losses = [_step(turns[each])["loss"] for each in ("two ranks", "one trainer, wait=applied")]
        if abs(losses[0] - losses[1]) > TOLERANCE:
            raise AssertionError(f"two ranks and one trainer have losses {losses}")


def _step(turn: Turn) -> dict[str, float]:
    """Takes one step; returns the time of the slowest process, and the mean of the losses."""
    command, processes = turn
    begin = time.perf_counter()
    for each in processes:
        each.send(command)
    answers: list[dict[str, float]] = [each.recv() for each in processes]
    seconds = time.perf_counter() - begin
    return {
        **max(answers, key=lambda answer: answer["seconds"]),
        "loss": sum(answer["loss"] for answer in answers) / len(answers),
        "step": seconds,
    }


def _figure(name: str, taken: list[dict[str, float]], ranks: list[dict[str, float]]) -> Figure:
    ratio = median(one["step"] / other["step"] for one, other in zip(taken, ranks, strict=True))
    shown = [f"{median(each['step'] for each in taken) * 1e3:.1f} ms"]
    for part in ("pull", "push"):
        if part in taken[0]:
            shown.append(f"{part} {median(each[part] for each in taken) * 1e3:.1f}")
    return Figure(
        f"step of a DLRM, 26 tables of 16, {name}",
        f"{ratio:.2f} x two ranks",
        detail=f"{', '.join(shown)}; {os.cpu_count()} cores",
        ratio=None if name == "two ranks" else ratio,
    )


# -- processes


def _yaml(shards: str, folder: str) -> str:
    from benchmarks.dlrm import DIM, EPS, LR, NUM_TABLES

    table = (
        f"{{dim: {DIM}, initializer: zeros, update_method: rowwise_adagrad, "
        f"hyper: {{lr: {LR}, eps: {EPS}}}}}"
    )
    tables = ", ".join(f"t{number}: {table}" for number in range(NUM_TABLES))
    return (
        f"shards: [{shards}]\nclient: {{deadline_seconds: 60, push_deadline_seconds: 60}}\n"
        f"parameters: {{folders: ['{folder}/saved'], start: null, tables: {{{tables}}}}}\n"
    )


def _serve(folder: str, connection: Connection) -> None:
    import yaml

    from sparring_serve import ServingConfig, open_parameter_server
    from sparring_serve.server.heap import keep_freed_memory

    keep_freed_memory()
    given = yaml.safe_load(_yaml("", folder))
    config = ServingConfig.model_validate({"parameters": given["parameters"]})
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        connection.send(server.address)
        connection.recv()


def _train(argument: str, connection: Connection) -> None:
    config, number, num_rows, num_samples = argument.split(",")
    place, counts = int(number), (int(num_rows), int(num_samples))
    spent = _timed_client()
    steps = {}
    for wait in WAITS:
        storage = {"backend": "remote", "config": config, "role": "parameters", "wait": wait}
        model, optimizers = _model(storage)
        for part, samples in (("whole", slice(None)), ("half", _half(place, counts[1]))):
            steps[f"{wait} {part}"] = _stepping(model, optimizers, _batches(counts, samples))
    _answer(connection, steps, spent)


def _rank(argument: str, connection: Connection) -> None:
    port, rank, num_rows, num_samples = argument.split(",")
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "RANK": rank,
        "WORLD_SIZE": "2",
        "LOCAL_RANK": rank,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    import torch.distributed as dist

    dist.init_process_group("gloo")
    counts = int(num_rows), int(num_samples)
    model, optimizers = _model("hkv", is_rank=True)
    batches = _batches(counts, _half(int(rank), counts[1]))
    _answer(connection, {"step": _stepping(model, optimizers, batches)}, {})
    model.close()
    dist.destroy_process_group()


def _answer(
    connection: Connection, steps: dict[str, Callable[[], float]], spent: dict[str, float]
) -> None:
    """Takes steps on request until it is told to end."""
    while (command := connection.recv()) in steps:
        for part in spent:
            spent[part] = 0.0
        begin = time.perf_counter()
        loss = steps[command]()
        connection.send({"seconds": time.perf_counter() - begin, "loss": loss, **spent})


def _timed_client() -> dict[str, float]:
    """Sums the time of pulls and pushes of this process."""
    from sparring_serve import ParameterClient

    spent = {"pull": 0.0, "push": 0.0}

    def timed(name: str) -> None:
        call = getattr(ParameterClient, name)

        def run(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*given, **named)
            finally:
                spent[name] += time.perf_counter() - begin

        setattr(ParameterClient, name, run)

    for name in spent:
        timed(name)
    return spent


def _half(place: int, num_samples: int) -> slice:
    half = num_samples // 2
    return slice(place * half, (place + 1) * half)


def _batches(counts: tuple[int, int], samples: slice) -> list[Any]:
    from benchmarks.dlrm import NUM_TABLES, batch_of

    random = np.random.default_rng(1)
    batches = []
    for _ in range(4):
        ids, integers, labels = batch_of(random, *counts)
        columns = ids.view(NUM_TABLES, -1, 1)[:, samples]
        batches.append((columns, integers[samples], labels[samples]))
    return batches


def _model(storage: Any, *, is_rank: bool = False) -> Any:
    import torch
    from torch import nn

    from benchmarks.dlrm import DIM, EPS, LR, NUM_TABLES, Dense
    from sparring_torch import DistributedModelParallel, EmbeddingBag, Optimizer

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(
                EmbeddingBag(
                    DIM, mode="sum", name=f"t{number}", initializer="zeros", storage=storage
                )
                for number in range(NUM_TABLES)
            )
            self.dense = Dense()

        def forward(self, columns: Any, integers: Any) -> Any:
            found = [bag(ids) for bag, ids in zip(self.bags, columns, strict=True)]
            return self.dense(integers, torch.cat(found, dim=1))

    model: Any = Model()
    dense = model.dense.parameters()
    if is_rank:
        model = DistributedModelParallel(model)
    rows = Optimizer(model, "rowwise_adagrad", lr=LR, eps=EPS)
    return model, [rows, torch.optim.Adam(dense, lr=1e-3)]


def _stepping(model: Any, optimizers: list[Any], batches: list[Any]) -> Callable[[], float]:
    from torch.nn import functional

    turns = cycle(batches)

    def step() -> float:
        columns, integers, labels = next(turns)
        loss = functional.binary_cross_entropy_with_logits(model(columns, integers), labels)
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        return float(loss.detach())

    return step
