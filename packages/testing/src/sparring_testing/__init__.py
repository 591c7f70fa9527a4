"""Conformance kits for storage backends, collectives, framework adapters and sharding kinds, and for the
kinds of data, streams and models of `sparring train`.

    class TestMyStorage(StorageTests):
        @pytest.fixture
        def make_storage(self):
            return lambda table, **options: MyStorage(table, **options)

    class TestMyCollective(CollectiveTests):
        @pytest.fixture
        def run_ranks(self):
            return my_way_to_run_a_function_on_each_of_some_ranks

    class TestMyFramework(FrameworkTests):
        @pytest.fixture
        def make_model(self):
            return MyModel

    class TestMyData(DatasetTests):
        @pytest.fixture
        def open_dataset(self):
            return lambda request: MyDataset(section, request)

    class TestMySource(StreamSourceTests):
        @pytest.fixture
        def stream(self):
            return MyWritableStream()

    class TestMyModel(ModelKindTests):
        @pytest.fixture
        def model(self):
            return {"kind": "my_kind", "dim": 8}

    class TestMyKind(ShardingKindTests):
        @pytest.fixture
        def kind(self):
            return "my_kind"

See ``docs/how-to/write-a-backend.md`` and ``write-a-framework-adapter.md``. The pages ``storage.md``,
``collectives.md`` and ``hooks.md`` in ``docs/reference`` list every promise that the kits test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_testing.collectives.collective_tests import CollectiveTests
    from sparring_testing.collectives.sharding_kind_tests import ShardingKindTests
    from sparring_testing.frameworks.dataset_tests import DatasetRequest, DatasetTests
    from sparring_testing.frameworks.framework_tests import FrameworkTests
    from sparring_testing.frameworks.model_kind_tests import ModelKindTests
    from sparring_testing.frameworks.stream_source_tests import StreamSourceTests, WritableStream
    from sparring_testing.guard import overrides_kit
    from sparring_testing.processes.rank_processes import RankProcesses
    from sparring_testing.storages.storage_tests import StorageTests

__all__ = [
    "CollectiveTests",
    "DatasetRequest",
    "DatasetTests",
    "FrameworkTests",
    "ModelKindTests",
    "RankProcesses",
    "ShardingKindTests",
    "StorageTests",
    "StreamSourceTests",
    "WritableStream",
    "overrides_kit",
]


def __getattr__(name: str) -> object:
    # Imported on demand: pytest imports this package in every environment where it is installed,
    # and that must be cheap and must not require hypothesis.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sparring_testing import guard
        from sparring_testing.collectives import collective_tests, sharding_kind_tests
        from sparring_testing.frameworks import (
            dataset_tests,
            framework_tests,
            model_kind_tests,
            stream_source_tests,
        )
        from sparring_testing.processes import rank_processes
        from sparring_testing.storages import storage_tests
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "hypothesis"):
            raise
        raise ModuleNotFoundError(
            f'the test kit needs {error.name}: pip install "sparring[testing]"', name=error.name
        ) from error
    globals()["CollectiveTests"] = collective_tests.CollectiveTests
    globals()["DatasetRequest"] = dataset_tests.DatasetRequest
    globals()["DatasetTests"] = dataset_tests.DatasetTests
    globals()["FrameworkTests"] = framework_tests.FrameworkTests
    globals()["ModelKindTests"] = model_kind_tests.ModelKindTests
    globals()["RankProcesses"] = rank_processes.RankProcesses
    globals()["ShardingKindTests"] = sharding_kind_tests.ShardingKindTests
    globals()["StorageTests"] = storage_tests.StorageTests
    globals()["StreamSourceTests"] = stream_source_tests.StreamSourceTests
    globals()["WritableStream"] = stream_source_tests.WritableStream
    globals()["overrides_kit"] = guard.overrides_kit
    return globals()[name]
