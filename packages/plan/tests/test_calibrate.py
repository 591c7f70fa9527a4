"""Calibrations are complete, name their measurements, and are the input of plans."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_cli import read_document
from sparring_cli.application import main
from sparring_plan.planning.calibration import calibrate, step_timings, storage_timings
from sparring_plan.planning.calibration.calibrate import write_calibration
from sparring_plan.planning.calibration.storage_timings import (
    MeasuredStorage,
    measure_storage_costs,
)
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, RowCosts, StepCosts, read_inputs
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.simulation import calibration
from sparring_plan.simulation.plan_step import simulate_plan

INPUTS = """
topology: {nodes: 2, ranks_per_node: 2, memory: {host: 2 GiB}}
samples: 512
calibration: calibration.yaml
tables:
  users: {dim: 32, method: adam, features: {user: {ids: 1}}, rows: 100000}
"""


WHOLE_CASE = step_timings._Case


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Less work, with the same code paths."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        reduce_work(monkeypatch)
        yield


def reduce_work(monkeypatch: pytest.MonkeyPatch) -> None:
    real = calibrate.MeasuredStorage

    def fewer(*parts: Any) -> MeasuredStorage:
        name, memory, options, kept, *_ = parts
        return real(name, memory, options, kept, 500, 200, ("sgd", "adam"))

    monkeypatch.setattr(calibrate, "MeasuredStorage", fewer)
    monkeypatch.setattr(calibrate, "_TRIAD_ELEMENTS", 1 << 12)
    monkeypatch.setattr(calibrate, "_SIZES", (4 << 10, 64 << 10, 1 << 20))
    monkeypatch.setattr(calibrate, "_ROUNDS", 2)
    monkeypatch.setattr(step_timings, "_ROUNDS", 2)
    monkeypatch.setattr(step_timings, "_SAMPLES", 64)
    monkeypatch.setattr(step_timings, "_MANY_TABLES", 4)
    monkeypatch.setattr(step_timings, "_Case", partial(WHOLE_CASE, rows=1_000, samples=64))
    monkeypatch.setattr(calibration, "_NUM_ROWS", 20_000)
    monkeypatch.setattr(calibration, "_NUM_MESSAGES", 50)
    monkeypatch.setattr(calibration, "_ROUNDS", 2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A calibration of this machine without disk, server and model, and what the command printed."""
    folder, told = tmp_path_factory.mktemp("calibration"), io.StringIO()
    with redirect_stderr(told):
        calibrated(folder)
    return folder / "calibration.yaml", told.getvalue()


def calibrated(tmp_path: Path, *more: str) -> Calibration:
    output = tmp_path / "calibration.yaml"
    assert main(["plan", "calibrate", "--output", str(output), *more]) == 0
    return read_document(output).as_model(Calibration)


@pytest.mark.slow
def test_measurements_are_written_and_missing_ones_are_reported(
    measured: tuple[Path, str],
) -> None:
    path, told = measured
    found = read_document(path).as_model(Calibration)
    assert "rocksdb: not measured; specify its disk with --path" in told
    assert "redis: not measured; specify its server with --url" in told
    assert "the dense model: not measured" in told
    assert "over loopback" in told
    assert found.storages.keys() == {"hkv"}
    assert found.storages["hkv"].methods.keys() == {"sgd", "adam"}
    assert len(found.date) == len("2026-11-23")
    assert found.name
    assert found.machine is not None
    assert found.machine.measured_over == "loopback"
    assert found.machine.link_gbit > 0
    assert found.machine.memory_gigabytes_per_second > 0
    assert found.exchange.add_ns > 0
    assert found.exchange.pool_ns_per_byte > 0
    assert found.exchange.steps.step_us > 0
    assert found.exchange.steps.error > 0
    assert found.machine.cores == len(os.sched_getaffinity(0))


def test_disk_and_server_are_measured_if_given_and_left_unchanged(tmp_path: Path) -> None:
    pytest.importorskip("sparring_rocksdb")
    server_of = pytest.importorskip("sparring_redis.testing.server")
    if server_of.redis_server_missing():
        pytest.skip(server_of.redis_server_missing())
    disk = tmp_path / "disk"
    disk.mkdir()
    with server_of.RedisServer() as server:
        found = calibrated(tmp_path, "--path", str(disk), "--url", server.url)
    assert found.storages.keys() == {"hkv", "redis", "rocksdb"}
    assert found.storages["redis"].memory == "remote"
    assert found.storages["redis"].latency_us > found.storages["hkv"].latency_us
    # The folder of the measurement is not part of the calibration.
    assert found.storages["rocksdb"].options == {"path": "rows"}
    assert list(disk.iterdir()) == []


def test_a_missing_folder_is_rejected_and_the_file_is_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "calibration.yaml"
    output.write_text("mine")
    arguments = ["plan", "calibrate", "--output", str(output), "--path", str(tmp_path / "none")]
    assert main(arguments) != 0
    assert "is not a folder; use a folder on the disk" in capsys.readouterr().err
    assert output.read_text() == "mine"


def test_a_file_is_replaced_completely_or_not_at_all(
    tmp_path: Path, measured: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(shutil.copy(measured[0], tmp_path))
    found = read_document(output).as_model(Calibration)
    before = output.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibrate.os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot write the calibration: No space left"):
        write_calibration(found, output)
    assert output.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


@pytest.mark.slow
def test_the_dense_model_is_measured_and_added_to_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_model.py").write_text(
        "class Output:\n"
        "    requires_grad = True\n"
        "    calls = 0\n"
        "    def sum(self): return self\n"
        "    def backward(self): Output.calls += 1\n"
        "def module(number): assert number == 3; return Output()\n"
        "def make(): return module, 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(calibrate, "_median_seconds", lambda call: call() and 0.004)
    found = calibrated(tmp_path, "--model", "own_model:make")
    assert found.machine is not None
    assert found.machine.dense_ms == 4
    assert found.machine.dense_model == "own_model:make"
    assert sys.modules["own_model"].Output.calls == 1
    path = tmp_path / "inputs.yaml"
    path.write_text(INPUTS)
    inputs, read = read_inputs(path)
    assert read == found
    with_model = make_plan(inputs, read)
    without = make_plan(inputs, found.model_copy(update={"machine": None}))
    assert with_model.step_ms - without.step_ms == pytest.approx(found.machine.dense_ms, abs=1e-3)


@pytest.mark.parametrize(
    ("model", "told"),
    [("no_such_module:f", "No module named"), ("os:no_such", "no_such"), ("os", "use package.module"),
     ("os:getpid", "returned int; return a callable")],
)  # fmt: skip
def test_a_model_that_cannot_be_called_is_rejected(
    tmp_path: Path, model: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "calibration.yaml"
    assert main(["plan", "calibrate", "--output", str(output), "--model", model]) == 2
    assert told in capsys.readouterr().err
    assert not output.exists()


def test_missing_values_of_the_topology_are_measured_ones(
    tmp_path: Path, measured: tuple[Path, str]
) -> None:
    found = read_document(shutil.copy(measured[0], tmp_path)).as_model(Calibration)
    path = tmp_path / "inputs.yaml"
    path.write_text(INPUTS)
    topology = read_inputs(path)[0].topology
    assert found.machine is not None
    assert topology.message_us == found.machine.message_us
    assert topology.near.gbit == found.machine.link_gbit
    # A core that also computes transfers at its own speed.
    busy = {"cores": 3, "transfer_ns_per_byte": 2, "message_us": 5}
    machine = found.machine.model_copy(update=busy)
    write_calibration(found.model_copy(update={"machine": machine}), tmp_path / "calibration.yaml")
    topology = read_inputs(path)[0].topology
    assert (topology.cores, topology.near.gbit, topology.message_us) == (3, 4, 5)
    assert topology.has_one_core
    path.write_text(INPUTS.replace("nodes: 2", "nodes: 2, cores: 4"))
    topology = read_inputs(path)[0].topology
    assert (topology.cores, topology.near.gbit) == (4, found.machine.link_gbit)
    assert not topology.has_one_core
    path.write_text(INPUTS.replace("nodes: 2", "nodes: 2, message_us: 7, near: {gbit: 3}"))
    topology = read_inputs(path)[0].topology
    assert (topology.message_us, topology.near.gbit) == (7, 3)


def test_fitted_lines_match_the_measurements() -> None:
    points = [(x, (5 + 2 * x) * 1e-9) for x in (8.0, 32.0, 128.0)]
    assert storage_timings._line(points) == pytest.approx((5, 2))
    # Times that decrease with the width, or would be negative at width 0, are not costs.
    falling = storage_timings._line([(1.0, 3e-9), (2.0, 1e-9)])
    assert falling == pytest.approx((2, 0))
    steep = storage_timings._line([(10.0, 1e-9), (20.0, 9e-9)])
    assert steep[0] == 0
    assert steep[1] > 0


def test_a_slower_storage_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = make_plugin_manager()
    asked = MeasuredStorage("memory", "host", {}, {}, 1_000, 500, ("sgd",))
    usual = measure_storage_costs(asked, manager)
    # The clock of a machine that is 100 times slower.
    real = storage_timings.measure_best_seconds
    monkeypatch.setattr(storage_timings, "measure_best_seconds", lambda call: 100 * real(call))
    slow = measure_storage_costs(asked, manager)

    def cost(costs: Any) -> float:
        return float(costs.find_ns + costs.find_ns_per_byte * 128)

    assert cost(slow) > 10 * cost(usual)
    assert slow.update_ns + 32 * slow.update_ns_per_element > 10 * (
        usual.update_ns + 32 * usual.update_ns_per_element
    )


def test_messages_between_ranks_are_timed_around_the_ring() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from sparring import LocalGroup

    group = LocalGroup(3)
    with ThreadPoolExecutor(3) as pool:
        times = list(pool.map(lambda rank: calibrate._between_ranks(group.join(rank)), range(3)))
    for each in times:
        assert each.over.startswith("3 ranks")
        assert each.processor_seconds.keys() == each.seconds.keys()
        assert each.transfer_seconds_per_byte >= 0
        assert each.gbit > 0
        assert np.isfinite(each.latency_seconds)


def test_measured_costs_of_steps_are_used_by_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_timings, "_SAMPLES", 8_192)
    monkeypatch.setattr(step_timings, "_Case", WHOLE_CASE)
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as default:
        before = read_document(default).as_model(Calibration)
    asked: list[Any] = []

    def simulated(found: StepCosts) -> list[float]:
        exchange = before.exchange.model_copy(update={"steps": found})
        costs = before.model_copy(update={"exchange": exchange})
        return [
            simulate_plan(
                make_placement(plan, compute_option_costs(inputs, costs)),
                inputs,
                costs,
                has_one_core=True,
            ).seconds
            for inputs, plan in asked
        ]

    # A machine with these costs, whose clock is independent of the model.
    slow = StepCosts(
        step_us=500, table_us=70, way_us=300,
        ids=RowCosts(ns=9, ns_per_byte=0.1), rows=RowCosts(ns=40, ns_per_byte=0.9),
        replicas=RowCosts(ns=20, ns_per_byte=0.3), bags=RowCosts(ns=150, ns_per_byte=1),
        bag_ids=RowCosts(ns=90, ns_per_byte=0.4), blocks=RowCosts(ns=30, ns_per_byte=0.4),
        separate_us=25, pooled_us=35,
    )  # fmt: skip

    def measured(cases: Any, _manager: Any) -> list[float]:
        asked.extend(cases)
        return simulated(slow)

    monkeypatch.setattr(step_timings, "_measured", measured)
    found = step_timings.measure_step_costs(before, 3e-6, make_plugin_manager())
    assert simulated(found) == pytest.approx(simulated(slow), rel=0.05)
    assert found.table_us == pytest.approx(slow.table_us, rel=0.1)
    assert found.pooled_us == pytest.approx(slow.pooled_us, rel=0.1)
    # No prediction of this machine is wrong.
    assert found.error < 0.05
    for part in ("rows", "replicas", "bags", "bag_ids", "blocks"):
        mine, theirs = getattr(found, part), getattr(slow, part)
        assert mine.seconds(256) == pytest.approx(theirs.seconds(256), rel=0.1), part
