"""Versions published in quick succession: no reply contains parts of two of them.

All rows, the ordinary parameters and the vectors of items of version n contain the number n. Processes
call a server in Python and a native one while newer versions replace it: pulls of three tables, reads of
the parameters, recommendations for keys of another table, and all of these in the version of an earlier
reply. Another process runs an exported PyTorch program with `follow` in two threads, while a third one
refreshes it. Each result must contain one number, and it must be the step of the version in the reply.
The program is not run without sparring-torch or a C++ compiler.
"""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import SaveOptions, StepContainer, StorageChoice, TableConfig
from sparring_packed import ComputedTable, WriteOptions, encode_parameters
from sparring_serve import ClientConfig, LookupClient, ShardPosition, VersionGoneError
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.testing.front_ends import ONE_SHARD, Folder, open_front_end

__all__ = ["TRIALS", "run"]

TRIALS = 20_000
"""Number of calls, over all processes."""

_DIM = 4
_KEYS = np.arange(500, dtype=np.int64)
_TABLES = ("item", "user", "item.vectors")
_CLIENTS = 2
"""Number of processes per server."""
_PROGRAM_SHARE = 0.4
"""Share of the calls that run the program, which take less time."""


def run(trials: int) -> Report:
    """Makes this number of calls."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    context = multiprocessing.get_context("spawn")
    with scratch_folder(in_memory=True) as path, ExitStack() as stack:
        folder = Folder(path)
        publisher = stack.enter_context(_Publisher(folder))
        publisher.publish()
        has_program = find_spec("sparring_torch") is not None and shutil.which("c++") is not None
        kinds = ["python", *(["native"] if EXECUTABLE.exists() else [])]
        num_runs = int(trials * _PROGRAM_SHARE) if has_program else 0
        num_calls = -(-(trials - num_runs) // (_CLIENTS * len(kinds)))
        servers = [
            stack.enter_context(
                open_front_end(each, folder, ShardPosition(ONE_SHARD), poll_seconds=3600)
            )
            for each in kinds
        ]
        work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            (_call_server, (kind, server.address, num_calls, seed))
            for kind, server in zip(kinds, servers, strict=True)
            for seed in range(_CLIENTS)
        ]
        if has_program:
            work.append((_run_program, (folder.served, str(path / "program"), num_runs)))
        with context.Pool(len(work)) as pool:
            results = [pool.apply_async(function, arguments) for function, arguments in work]
            while not all(each.ready() for each in results):
                publisher.publish()
                for server in servers:
                    server.refresh()
                time.sleep(0.02)
            for each in results:
                found, wrong = each.get()
                counts.update(found)
                failures += wrong
        counts["versions"] = publisher.step
    return Report(trials, dict(sorted(counts.items())), failures)


class _Publisher:
    """Publishes versions whose parts contain the number of their step."""

    def __init__(self, folder: Folder) -> None:
        self._run, self._served = folder.path / "run", folder.served
        self._container = StepContainer()
        for name in ("item", "user"):
            self._container.declare(
                TableConfig(name, _DIM, initializer="zeros"), StorageChoice("memory")
            )
        self.step = 0

    def publish(self) -> None:
        last = self.step
        self.step = step = last + 1
        self._container.counters.steps = step
        for name in ("item", "user"):
            self._container.assign(name, _KEYS, np.full((len(_KEYS), _DIM), step))
        base = None if last % 16 == 0 else str(self._run / f"step-{last:09d}")
        url = str(self._run / f"step-{step:09d}")
        self._container.save(url, base=base, options=SaveOptions(is_base=True))
        vectors = np.full((len(_KEYS), _DIM), step, np.float32)
        # A file of the model has at least 241 bytes.
        files = {"parameters": encode_parameters({"weight": np.full(64, step, np.float32)})}
        options = WriteOptions(
            model=files, computed={"item.vectors": ComputedTable("item", _KEYS, vectors)}
        )
        chosen = PublisherOptions({}, full_every=4, max_delta_share=99.0, keep=6)
        publish_newest(url, self._served, chosen, None, lambda _: options)
        if base is None:
            for each in sorted(self._run.iterdir())[:-17]:
                shutil.rmtree(each)

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()


def _one_number(what: str, step: int, parts: Sequence[npt.NDArray[Any]]) -> Iterator[str]:
    """Yields a failure unless all elements are the step."""
    found = np.unique(np.concatenate([each.ravel() for each in parts]))
    if found.tolist() != [step]:
        yield f"{what}: a reply of step {step} contains {found.tolist()}"


def _call_server(
    kind: str, address: str, num_calls: int, seed: int
) -> tuple[Counter[str], list[str]]:
    """Makes calls of all kinds to one server."""
    random = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    done = 0
    with LookupClient(address, ClientConfig(deadline_seconds=60)) as client:
        while done < num_calls:
            ids = random.integers(0, len(_KEYS), 8)
            reply = client.pull(dict.fromkeys(_TABLES, ids), deadline_seconds=60)
            assert reply.version is not None
            failures += _one_number(f"{kind} pull", reply.version.step, list(reply.rows.values()))
            done += 1
            counts[f"{kind}: pulls"] += 1
            is_pinned = bool(random.integers(0, 2))
            version = reply.version.hash if is_pinned else ""
            try:
                if random.integers(0, 2):
                    model = client.model(version=version, deadline_seconds=60)
                    step, parts = model.version.step, [model.parameters["weight"]]
                    what = f"{kind}: reads of the model"
                else:
                    best = client.recommend(
                        "item.vectors", {"user": ids[:2]}, 3, version=version, deadline_seconds=60
                    )
                    step = best.version.step
                    # Of a user and an item of the same version.
                    parts = [np.round(best.scores / (_DIM * step))]
                    what = f"{kind}: recommendations"
            except VersionGoneError:
                counts[f"{kind}: pinned versions that were replaced"] += 1
                continue
            if is_pinned and step != reply.version.step:
                failures.append(f"{what}: step {step} in the version of step {reply.version.step}")
            failures += _one_number(what, step, parts)
            done += 1
            counts[what] += 1
            counts[f"{kind}: in the version of a pull"] += is_pinned
    return counts, failures


def _run_program(served: str, bundle: str, num_runs: int) -> tuple[Counter[str], list[str]]:
    """Exports a program that returns rows and a parameter, and runs it in two threads."""
    import torch

    from sparring_torch import Embedding, export_program, load_program

    class Stamp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = Embedding(_DIM, name="item", storage="memory")
            self.weight = torch.nn.Parameter(torch.zeros(64))

        def forward(self, ids: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
            rows = [self.items(each).reshape(-1) for each in (ids, more)]
            return torch.cat([rows[0], self.weight, rows[1]])

    inputs = (torch.arange(8), torch.arange(50, 58))
    export_program(Stamp().eval(), inputs, bundle, served=served, follow=True)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with load_program(bundle, served) as program:
        stop = threading.Event()

        def run_repeatedly() -> None:
            seen = 0.0
            for _ in range(num_runs // 2):
                found = np.unique(program(*inputs).numpy())
                if len(found) != 1 or found[0] < seen:
                    failures.append(f"program: {found.tolist()} in a run after step {seen:.0f}")
                seen = found[-1]

        def refresh_repeatedly() -> None:
            while not stop.is_set():
                counts["program: refreshes"] += program.refresh()
                time.sleep(0.005)

        runs = [threading.Thread(target=run_repeatedly) for _ in range(2)]
        refreshing = threading.Thread(target=refresh_repeatedly)
        for each in (*runs, refreshing):
            each.start()
        for each in runs:
            each.join()
        stop.set()
        refreshing.join()
    counts["program: runs"] = num_runs // 2 * 2
    return counts, failures
