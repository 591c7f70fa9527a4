"""A lookup service behind the storage contract."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, TableConfig, open_storage
from sparring.adapter import initial_rows
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    StorageIOError,
    UnknownTableError,
    UnsupportedError,
)
from sparring_serve import LookupServer
from sparring_serve.testing.memory_servers import ITEM, open_memory_server


@pytest.fixture
def server(closing: ExitStack) -> LookupServer:
    return closing.enter_context(open_memory_server())


def test_rows_are_found_by_key_and_columns(server: LookupServer) -> None:
    with open_storage("remote", ITEM, target=server.address, deadline_seconds=9) as storage:
        result = storage.find([7, -1, 3])
        assert result.found.tolist() == [True, False, True]
        assert result.rows.tolist() == [[1, 7, -7, 0.5], [0, 0, 0, 0], [1, 3, -3, 0.5]]
        assert storage.find([7], columns=(1, 3)).rows.tolist() == [[7, -7]]
        assert storage.size == 100
        assert storage.memory_bytes == 0
        assert storage.capabilities.shared
    with pytest.raises(ClosedError):
        storage.find([7])


def test_a_service_is_named_by_its_file(server: LookupServer, tmp_path: Path) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(f"shards: [['{server.address}']]\nclient: {{deadline_seconds: 9}}\n")
    with open_storage("remote", ITEM, config=config) as storage:
        assert storage.find([7]).found.tolist() == [True]


def test_a_model_reads_a_service_like_any_storage(server: LookupServer) -> None:
    with StepContainer() as container:
        options = {"target": server.address, "deadline_seconds": 9}
        container.declare(ITEM, StorageChoice("remote", options))
        found = container.lookup("item", np.array([7, -1, 7]), is_registered=False)
    rows = np.asarray(found.rows)[np.asarray(found.inverse)]
    assert rows[[0, 2]].tolist() == [[1, 7, -7, 0.5]] * 2
    with StepContainer() as container:
        container.declare(ITEM, StorageChoice("memory"))
        initial = container.lookup("item", np.array([-1]), is_registered=False)
    assert np.array_equal(rows[1], np.asarray(initial.rows)[0])


@pytest.mark.parametrize("on_failure", ["raise", "flag", "stale", "initial"])
def test_a_model_reads_fallback_values_when_no_server_answers(
    server: LookupServer, tmp_path: Path, on_failure: str
) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text(f"shards: [['{server.address}']]\nclient: {{on_failure: {on_failure}}}\n")
    options = {"config": config, "deadline_seconds": 2}
    ids = np.array([7, 8])
    with StepContainer() as container:
        container.declare(ITEM, StorageChoice("remote", options))
        container.lookup("item", ids[:1], is_registered=False)
        server.close()
        if on_failure == "raise":
            with pytest.raises(StorageIOError):
                container.lookup("item", ids, is_registered=False)
            return
        found = container.lookup("item", ids, is_registered=False)
    rows = np.asarray(found.rows)[np.asarray(found.inverse)]
    if on_failure == "initial":
        assert np.array_equal(rows, initial_rows(ids, ITEM))
    else:
        # NaN is detected; an initial value could be mistaken for a row.
        assert np.isnan(rows[1]).all()
        assert np.isnan(rows[0]).all() == (on_failure == "flag")


def test_all_rows_are_scanned(server: LookupServer) -> None:
    with open_storage("remote", ITEM, target=server.address, deadline_seconds=9) as storage:
        chunks = list(storage.scan(chunk_rows=30, columns=(1, 3)))
        assert [len(each) for each in chunks] == [30, 30, 30, 10]
        keys = np.concatenate([each.keys for each in chunks])
        rows = np.concatenate([each.rows for each in chunks])
    assert keys.tolist() == list(range(100))
    assert np.array_equal(rows, np.stack([keys, -keys], axis=1))


def test_writes_are_rejected_with_the_fix(server: LookupServer) -> None:
    with open_storage("remote", ITEM, target=server.address, deadline_seconds=9) as storage:
        for write in (
            lambda: storage.upsert([1], np.zeros((1, 4), np.float32)),
            lambda: storage.erase([1]),
            storage.clear,
        ):
            with pytest.raises(UnsupportedError, match="option role='parameters', or use another"):
                write()
        for refused in (lambda: storage.touch([1]), lambda: storage.evict(1)):
            with pytest.raises(UnsupportedError):
                refused()


def test_tables_that_do_not_match_are_rejected(server: LookupServer) -> None:
    def open_with(table: TableConfig) -> None:
        open_storage("remote", table, target=server.address, deadline_seconds=9)

    with pytest.raises(UnknownTableError, match=r"'itm' is not served .served: item."):
        open_with(TableConfig("itm", 4))
    with pytest.raises(InvalidArgumentError, match="declared with dim 8, but served with dim 4"):
        open_with(TableConfig("item", 8))
    with pytest.raises(InvalidArgumentError, match=r"found .float32 x 4 . 4 adagrad."):
        open_with(ITEM.with_state(4, "adagrad"))
    with pytest.raises(InvalidArgumentError, match="float32"):
        open_with(TableConfig("item", 4, "float16"))
    for options in ({}, {"target": "a:1", "config": Path("a.yaml")}):
        with pytest.raises(InvalidArgumentError, match="specify either config"):
            open_storage("remote", ITEM, **options)
    with pytest.raises(StorageIOError, match="no replica replied"):
        open_storage("remote", ITEM, target="127.0.0.1:9", deadline_seconds=0.5)


@pytest.mark.parametrize(
    ("name", "is_looked_up_before"), [("Adagrad", False), ("Adagrad", True), ("SGD", False)]
)
def test_an_optimizer_is_rejected_with_the_fix(
    server: LookupServer, name: str, is_looked_up_before: bool
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sparring_torch = pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    storage = {"backend": "remote", "target": server.address, "deadline_seconds": 9}
    module = sparring_torch.Embedding(4, name="item", seed=3, storage=storage)
    if is_looked_up_before:
        with torch.no_grad():
            module(torch.tensor([1]))
    native = getattr(torch.optim, name)
    with pytest.raises(InvalidArgumentError, match=r"Freeze the module .*option role='parameters'"):
        sparring_torch.Optimizer(module, native, lr=0.1)
    with torch.no_grad():
        assert module(torch.tensor([7])).tolist() == [[1, 7, -7, 0.5]]


def test_rows_of_a_service_are_read_by_a_model_that_trains_others(server: LookupServer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sparring_torch = pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    storage = {"backend": "remote", "target": server.address, "deadline_seconds": 9}
    served = sparring_torch.Embedding(4, name="item", seed=3, storage=storage)
    served.requires_grad_(False)
    own = sparring_torch.Embedding(4, name="user", initializer="zeros")
    optimizer = sparring_torch.Optimizer(own, "sgd", lr=1.0)
    for _ in range(2):
        (own(torch.tensor([1])) * served(torch.tensor([7]))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert own.read_embeddings([1]).tolist() == [[-2, -14, 14, -1]]


def test_an_inference_module_reads_from_the_service(server: LookupServer) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    sparring_torch = pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    module = sparring_torch.EmbeddingBag(4, name="item", seed=3, mode="sum")
    storage = {"backend": "remote", "target": server.address, "deadline_seconds": 9}
    served = sparring_torch.inference_module(module, storage)
    ids = torch.tensor([[7, 3], [5, 5]])
    assert served(ids).tolist() == [[2, 10, -10, 1], [2, 10, -10, 1]]
    unseen = torch.tensor([[-1]])
    assert torch.equal(served(unseen), module.eval()(unseen))


def test_a_keras_model_reads_from_the_service(server: LookupServer) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    sparring_tf = pytest.importorskip("sparring_tf", reason="sparring-tf is not installed")
    storage = {"backend": "remote", "target": server.address, "deadline_seconds": 9}

    def model(storage: object) -> object:
        bag = sparring_tf.EmbeddingBag(4, name="item", seed=3, combiner="sum", storage=storage)
        return keras.Sequential([keras.Input((2,), dtype="int64"), bag])

    served = model(storage)
    ids = np.array([[7, 3], [5, 5]])
    assert served.predict(ids, verbose=0).tolist() == [[2, 10, -10, 1], [2, 10, -10, 1]]
    unseen = np.array([[-1, -2]])
    assert np.array_equal(served(unseen), model("memory")(unseen))
