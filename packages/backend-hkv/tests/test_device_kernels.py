"""The key operations of a GPU against core's own: on the emulator, where the kernels that nvcc
compiles run on the host, in several orders of lanes, warps and blocks; and on a GPU if one is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from sparring import Normal, TruncatedNormal, Uniform, make_plugin_manager
from sparring.adapter import BUILTIN_METHODS, keras_method
from sparring.contracts import ArraySource, KernelSet, MethodChoice, TableConfig
from sparring.errors import DeviceError, DeviceMemoryError, InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring.kernels.cpu import CpuKernels

_INT64 = np.iinfo(np.int64)

ARRAYS = ArraySource(empty=np.empty, stream=lambda: 0)


@pytest.fixture
def cpu() -> KernelSet:
    return CpuKernels()


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def _equal(left: Any, right: Any) -> bool:
    """Bit for bit."""
    left, right = np.ascontiguousarray(left), np.ascontiguousarray(right)
    return left.shape == right.shape and left.tobytes() == right.tobytes()


def _ids(generator: np.random.Generator, count: int, distinct: int) -> Any:
    ids = generator.zipf(1.2, count) % distinct
    ids = ids * np.int64(0x9E3779B97F4A7C15 - 2**64)
    ids[: min(count, 4)] = [-1, _INT64.min, _INT64.max, -1][: min(count, 4)]
    return ids.astype(np.int64)


@pytest.mark.parametrize("count", [0, 1, 3, 100, 5000])
def test_dedup_numbers_keys_as_they_first_occur(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, count: int
) -> None:
    for distinct in (1, 50, 10**9):
        ids = _ids(generator, count, distinct)
        expected, found = cpu.dedup(ids), device.dedup(ids)
        assert _equal(found.keys, expected.keys)
        assert _equal(found.inverse, expected.inverse)


@pytest.mark.parametrize("world_size", [1, 2, 5, 4096])
def test_route_groups_keys_by_owner_in_their_order(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, world_size: int
) -> None:
    owners = generator.integers(0, world_size, 4096).astype(np.int32)
    for count in (0, 1, 3000):
        keys = np.unique(_ids(generator, count, 10**9))
        expected, found = (
            cpu.route(keys, owners, world_size),
            device.route(keys, owners, world_size),
        )
        assert _equal(found.order, expected.order)
        assert _equal(found.offsets, expected.offsets)
        assert _equal(device.partition(keys), cpu.partition(keys))


@pytest.mark.parametrize("dim", [1, 3, 4, 20, 64, 130])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_go_to_ids_and_bags_with_equal_bits(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, dim: int, dtype: str
) -> None:
    rows = generator.normal(size=(40, dim)).astype(dtype)
    inverse = generator.integers(0, 40, 300)
    offsets = np.concatenate([[0, 0], np.sort(generator.integers(0, 301, 60)), [300, 300]])
    weights = generator.normal(size=300).astype(dtype)
    assert _equal(device.gather(rows, inverse), cpu.gather(rows, inverse))
    gradient = generator.normal(size=(len(offsets) - 1, dim)).astype(dtype)
    for mode in ("sum", "mean"):
        for scales in (None, weights):
            ours = device.pool(rows, inverse, offsets, mode=mode, weights=scales)
            assert _equal(ours, cpu.pool(rows, inverse, offsets, mode=mode, weights=scales))
            back = device.pool_backward(gradient, inverse, offsets, 45, mode=mode, weights=scales)
            expected = cpu.pool_backward(gradient, inverse, offsets, 45, mode=mode, weights=scales)
            assert _equal(back, expected)
        assert _equal(
            device.pool_weight_gradient(gradient, rows, inverse, offsets, mode=mode),
            cpu.pool_weight_gradient(gradient, rows, inverse, offsets, mode=mode),
        )


def test_segments_are_summed_in_a_fixed_order(
    device: KernelSet,
    cpu: KernelSet,
    generator: np.random.Generator,
    shuffle: Callable[..., None],
) -> None:
    values = generator.normal(size=(5000, 35)).astype(np.float32)
    segments = generator.integers(0, 900, 5000)
    assert _equal(
        device.segment_sum(values, segments, 1000), cpu.segment_sum(values, segments, 1000)
    )
    # One segment with far more than 1,024 rows is divided.
    segments[generator.random(5000) < 0.6] = 3
    first = device.segment_sum(values, segments, 1000)
    shuffle(99, 3)
    assert _equal(device.segment_sum(values, segments, 1000), first)
    expected = np.zeros((1000, 35))
    np.add.at(expected, segments, values.astype(np.float64))
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-4)
    others = np.arange(1000) != 3
    assert _equal(first[others], cpu.segment_sum(values, segments, 1000)[others])


@pytest.mark.parametrize(
    "initializer",
    ["zeros", Uniform(-0.3, 0.7), Normal(0.5, 2.0), TruncatedNormal(0.0, 0.1)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_initial_rows_have_the_bits_of_the_format(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, initializer: Any, dtype: str
) -> None:
    table = TableConfig("t", 11, dtype=dtype, initializer=initializer, state_width=5, seed=3)
    keys = np.unique(_ids(generator, 200, 10**9))
    found = generator.random(len(keys)) < 0.3
    state = generator.normal(size=5).astype(table.computing_dtype)
    width = table.row_bytes // table.numpy_dtype.itemsize
    for initial_state in (state, None):
        ours, expected = (np.full((len(keys), width), 7, table.numpy_dtype) for _ in range(2))
        cpu.initialize(expected, keys, found, table, initial_state)
        device.initialize(_shared(ours), keys, found, table, initial_state)
        assert _equal(ours, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_16_bits_are_rounded_with_equal_bits(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, dtype: str
) -> None:
    half = TableConfig("t", 1, dtype=dtype).numpy_dtype
    bits = generator.integers(0, 2**32, (300, 13), dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values[:100] = generator.normal(size=(100, 13)) * 10.0 ** generator.integers(-9, 6, (100, 13))
    values[0, :5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    rounding = kernels.Rounding(
        generator.integers(_INT64.min, _INT64.max, 300), 2**63 + 5, 2**33 + 1
    )
    for each in (None, rounding):
        ours, expected = (np.zeros((300, 13), half) for _ in range(2))
        cpu.encode(values, expected, each)
        device.encode(values, _shared(ours), each)
        assert _equal(ours, expected)
        # Decoders agree on which elements are NaN, but not on their bits.
        back = device.decode(_shared(ours))
        assert np.array_equal(back, cpu.decode(expected), equal_nan=True)


KERAS = ["keras_sgd", "keras_momentum", "keras_adagrad", "keras_rmsprop", "keras_adam"]


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        # Two of the three dtypes per method; long tests cover all.
        pytest.param(method, dtype, marks=pytest.mark.long if (i + j) % 3 == 0 else [])
        for i, method in enumerate([*BUILTIN_METHODS, *KERAS])
        for j, dtype in enumerate(["float32", "float64", "bfloat16"])
    ],
)
def test_update_methods_change_rows_with_equal_bits(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator, method: str, dtype: str
) -> None:
    update = keras_method(method) if method in KERAS else BUILTIN_METHODS[method]()
    clipped = {"clip_norm": 1.5, "clip_value": 0.8, "weight_decay": 0.01, "nesterov": True}
    for dim, given in ((5, {}), (40, clipped), (12, {"beta1": 0.4, "nesterov": True})):
        names = update.hyperparameters.model_fields
        hyper = update.hyperparameters(**{k: v for k, v in given.items() if k in names})
        table = TableConfig("t", dim, dtype=dtype, state_width=update.state_width(dim), seed=3)
        count = 37
        keys = np.arange(count, dtype=np.int64) - 5
        rows = np.zeros((count, table.row_bytes // table.numpy_dtype.itemsize), table.numpy_dtype)
        state = update.initial_state(dim, hyper, table.computing_dtype)
        cpu.initialize(rows, keys, np.zeros(count, np.bool_), table, state)
        expected = rows.copy()
        for step in (1, 2):
            gradients = generator.normal(size=(count, dim)).astype(table.computing_dtype)
            choice = MethodChoice(update, hyper, step)
            cpu.update(table, choice, keys, expected, gradients.copy())
            device.update(table, choice, keys, _shared(rows), gradients.copy())
            assert _equal(rows, expected), step


def test_rows_that_are_not_finite_are_found(
    device: KernelSet, cpu: KernelSet, generator: np.random.Generator
) -> None:
    values = generator.normal(size=(70, 33)).astype(np.float32)
    assert device.is_finite(values)
    assert device.is_finite(values[:0])
    values[3, 32], values[69, 0], values[10, 10] = np.nan, np.inf, -np.inf
    assert not device.is_finite(values)
    assert _equal(device.finite_rows(values), cpu.finite_rows(values))


def test_dedup_waits_once_and_pooling_never(emulated: Any) -> None:
    device = make_plugin_manager().kernels("emulated").factory(ARRAYS)
    handle: Any = device._handle  # type: ignore[attr-defined]
    before = handle.num_waits
    found = device.dedup(np.array([5, 6, 5]))
    assert handle.num_waits == before + 1
    rows = np.ones((2, 4), np.float32)
    offsets = np.array([0, 1, 3])
    bags = device.pool(rows, found.inverse, offsets)
    device.pool_backward(bags, found.inverse, offsets, 2)
    device.route(found.keys, np.zeros(4096, np.int32), 2)
    assert handle.num_waits == before + 1


@pytest.mark.usefixtures("emulated")
def test_wrong_arrays_are_rejected_by_name() -> None:
    device = make_plugin_manager().kernels("emulated").factory(ARRAYS)
    rows = np.ones((4, 6), np.float32)
    inverse = np.zeros(3, np.int64)
    with pytest.raises(
        InvalidArgumentError, match=r"inverse must be int64, found DLPack type 0 of 32"
    ):
        device.gather(rows, inverse.astype(np.int32))
    with pytest.raises(InvalidArgumentError, match="rows must be C-contiguous"):
        device.gather(rows[:, ::2], inverse)
    with pytest.raises(InvalidArgumentError, match="ids must be an array with"):
        device.dedup([1, 2])
    with pytest.raises(InvalidArgumentError, match=r"out must have shape \(3, 6\), found \(2, 6\)"):
        device.gather(rows, inverse, out=np.ones((2, 6), np.float32))
    with pytest.raises(InvalidArgumentError, match="mode must be"):
        device.pool(rows, inverse, np.array([0, 3]), mode="max")  # type: ignore[arg-type]


def test_out_of_device_memory_reports_requested_and_free_bytes(emulated: Any) -> None:
    native = emulated.Device(0, 4096)
    ids = np.arange(1000)
    with pytest.raises(DeviceMemoryError, match="bytes of device memory were asked for") as caught:
        emulated.dedup(native, 0, ids, np.empty_like(ids), np.empty_like(ids))
    assert caught.value.asked_bytes == 8192
    assert caught.value.free_bytes == 4096 - 8
    assert native.free_bytes == 4096


def test_a_lost_device_is_reported_by_every_call(emulated: Any) -> None:
    native = emulated.Device()
    native.break_down("cuda:0: an illegal memory access was encountered")
    ids = np.arange(10)
    for _ in range(2):
        with pytest.raises(DeviceError, match="illegal memory access"):
            emulated.dedup(native, 0, ids, np.empty_like(ids), np.empty_like(ids))


def _shared(array: Any) -> Any:
    """NumPy's DLPack knows no bfloat16; PyTorch's does."""
    if array.dtype.name != "bfloat16":
        return array
    torch = pytest.importorskip("torch", reason="PyTorch shares bfloat16 by DLPack, NumPy does not")
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


class _OfCurrentDevice(np.ndarray):
    """An array that is shared only while its device is the framework's current one, as PyTorch's."""

    is_current = False

    def __dlpack__(self, **given: Any) -> Any:
        if not _OfCurrentDevice.is_current:
            raise BufferError("this device is not the current one")
        return np.asarray(self).__dlpack__()


def test_native_calls_are_made_if_the_framework_shares_its_arrays() -> None:
    pytest.importorskip("sparring_hkv._emulated", reason="built without the emulator")

    @contextmanager
    def here() -> Iterator[None]:
        _OfCurrentDevice.is_current = True
        try:
            yield
        finally:
            _OfCurrentDevice.is_current = False

    def empty(shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, dtype).view(_OfCurrentDevice)

    arrays = ArraySource(empty=empty, stream=lambda: 0, here=here)
    kernels = make_plugin_manager().kernels("emulated").factory(arrays)
    ids = np.array([7, -1, 7]).view(_OfCurrentDevice)
    found = kernels.dedup(ids)
    assert np.asarray(found.keys).tolist() == [7, -1]
    assert np.asarray(found.inverse).tolist() == [0, 1, 0]
    assert not _OfCurrentDevice.is_current
