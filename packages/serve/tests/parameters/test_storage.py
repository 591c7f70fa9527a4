"""A service that learns behind the storage contract: training programs as with any storage."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, TableConfig, Uniform, open_storage
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import MethodChoice
from sparring.errors import InvalidArgumentError, StorageIOError, UnsupportedError
from sparring_serve import (
    LookupServer,
    PushFailedError,
    ServingConfig,
    Token,
    open_parameter_server,
)
from sparring_serve.testing.memory_servers import open_learning_server
from sparring_testing.processes.table_steps import choose_method, open_tables

KEYS = np.arange(20)


@pytest.fixture
def server(tmp_path: Path, closing: ExitStack) -> LookupServer:
    tables = {"item": {"dim": 4, "update_method": "adagrad", "hyper": {"lr": 0.1}, "seed": 3}}
    return closing.enter_context(open_learning_server(tmp_path, tables))


def choice(server: LookupServer) -> StorageChoice:
    options = {"target": server.address, "role": "parameters", "wait": "applied"}
    return StorageChoice("remote", {**options, "deadline_seconds": 9})


def trained(choice: StorageChoice, seed: int, steps: int = 10, lr: float = 0.1) -> np.ndarray:
    """Returns the loss of an `EmbeddingBag` at each step, with sparring's optimizer."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    st = pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    losses, ids = [], torch.arange(20)[:, None]
    with StepContainer() as container:
        module = st.EmbeddingBag(4, name="item", seed=3, container=container, storage=choice)
        optimizer = st.Optimizer(module, "adagrad", lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (module(ids) - seed).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return np.array(losses)


def test_a_program_of_torch_trains_a_service_with_the_bits_of_a_local_table(
    server: LookupServer,
) -> None:
    assert np.array_equal(trained(choice(server), 1), trained(StorageChoice("hkv"), 1))


def test_trainers_without_ranks_train_one_table(server: LookupServer) -> None:
    threads = [threading.Thread(target=trained, args=(choice(server), 1, 60)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert server.service.tables.steps == 180
    losses = trained(choice(server), 1, 1)
    assert losses[0] < 0.3 * trained(StorageChoice("hkv"), 1, 1)[0]


def test_lookups_before_an_optimizer_read_the_rows_of_the_service(server: LookupServer) -> None:
    trained(choice(server), 1)
    with StepContainer() as container:
        container.declare(TableConfig("item", 4, seed=99), choice(server))
        rows = container.lookup("item", KEYS, is_registered=False).rows
    with open_storage("remote", TableConfig("item", 4), target=server.address) as storage:
        assert np.array_equal(storage.find(KEYS).rows, rows)


def test_a_service_trains_int8_rows_as_a_program_does() -> None:
    gradients = np.random.default_rng(1).normal(size=(3, 20, 4)).astype(np.float32)
    settings = {"dim": 4, "dtype": "int8", "update_method": "adam", "hyper": {"lr": 0.1}, "seed": 3}
    config = ServingConfig.model_validate(
        {"parameters": {"tables": {"item": settings}, "start": None}}
    )
    method = resolve_method("adam")
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        with pytest.raises(InvalidArgumentError, match=r"no rows of int8.*declare it as float32"):
            open_storage("remote", TableConfig("item", 4, "int8"), **choice(server).options)
        found = {}
        for name, dtype, storage in (
            ("service", "float32", choice(server)),
            ("program", "int8", StorageChoice("memory")),
        ):
            with StepContainer() as container:
                container.declare(TableConfig("item", 4, dtype, seed=3), storage)
                container.set_state("item", np.zeros(8, np.float32), "adam")
                before = container.lookup("item", KEYS, is_registered=False).rows
                for step, each in enumerate(gradients, start=1):
                    container.resources.accumulate_by_key("item", KEYS, each)
                    chosen = MethodChoice(method, parse_hyper(method, {"lr": 0.1}), step)
                    container.apply_methods({"item": chosen})
                after = container.lookup("item", np.arange(30), is_registered=False).rows
                found[name] = np.concatenate([before, after])
    np.testing.assert_array_equal(found["service"], found["program"])
    assert (np.abs(found["program"][20:40] - found["program"][:20]) > 0.1).any()


def test_a_flush_of_a_program_reports_failed_queued_pushes(
    server: LookupServer,
) -> None:
    apply = server.service.tables.apply

    def failing(token: Token, pushed: object) -> bool:
        if token.number == 2:
            raise StorageIOError("the disk is full")
        return apply(token, pushed)

    server.service.tables.apply = failing
    options = {**choice(server).options, "wait": "queued"}
    with StepContainer() as container:
        container.declare(TableConfig("item", 4), StorageChoice("remote", options))
        container.set_state("item", np.zeros(4, np.float32), "adagrad")
        container.storage("item")
        method = resolve_method("adagrad")
        for step in range(1, 4):
            container.resources.accumulate_by_key("item", KEYS, np.ones((20, 4), np.float32))
            chosen = MethodChoice(method, parse_hyper(method, {"lr": 0.1}), step)
            container.apply_methods({"item": chosen})
        with pytest.raises(PushFailedError, match=r"push 2 was queued, .*disk is full"):
            container.flush()
        container.flush()
    assert server.service.tables.steps == 2


def test_another_method_and_plain_writes_are_rejected(server: LookupServer) -> None:
    table = TableConfig("item", 4).with_state(4, "adagrad")
    options = dict(choice(server).options)
    with open_storage("remote", table, **options) as storage:
        with pytest.raises(UnsupportedError, match=r"change only by pushes"):
            storage.upsert([1], np.zeros((1, 8), np.float32))
        with pytest.raises(UnsupportedError, match=r"keeps the optimizer"):
            storage.find([1])
    with pytest.raises(InvalidArgumentError, match=r"stores rows of 'float32 x 4 \+ 4 adagrad'"):
        open_storage("remote", TableConfig("item", 4).with_state(8, "adam"), **options)
    with open_tables(TableConfig("item", 4), storage=choice(server)) as container:
        container.set_state("item", np.zeros(4, np.float32), "adagrad")
        container.storage("item")
        container.resources.accumulate_by_key("item", KEYS, np.ones((20, 4), np.float32))
        method = choose_method(container, "adagrad", lr=0.1, eps=0.5)
        with pytest.raises(InvalidArgumentError, match=r"eps=0.5, but the table"):
            container.apply_methods(method)


def test_an_initializer_that_the_service_would_ignore_is_rejected(server: LookupServer) -> None:
    def read(**settings: object) -> np.ndarray:
        with StepContainer() as container:
            container.declare(TableConfig("item", 4, **settings), choice(server))
            return container.lookup("item", KEYS, is_registered=False).rows

    expected = read()  # the initial values of the service
    # `sparring train` gives the seed of the run to each table.
    assert np.array_equal(read(seed=4), expected)
    assert np.array_equal(read(initializer=Uniform(-0.05, 0.05), seed=4), expected)
    for wrong in ("zeros", Uniform(-1, 1)):
        with pytest.raises(InvalidArgumentError, match=r"the service determines.*leave it out"):
            read(initializer=wrong)
