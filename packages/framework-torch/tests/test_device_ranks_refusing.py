"""If one rank with tables on a device rejects a step, all ranks do: none hangs, and no row changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import StepContainer
from sparring.contracts import Collective
from sparring.errors import (
    CapacityError,
    DeviceError,
    DeviceMemoryError,
    InvalidArgumentError,
    NonFiniteGradientError,
    PartialStepError,
    PeerFailure,
    SparringError,
)
from sparring.runtime.events import BackgroundError
from sparring_testing.devices import why_unavailable
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch.device.kernels import get_kernel_set
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .emulated_ranks import DirectCollective, run_ranks

pytestmark = pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)

OPTIMIZERS = pytest.mark.parametrize(
    "optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"]
)


class Rank:
    """A rank with one table on a device and one on the CPU."""

    def __init__(self, collective: Collective, optimizer: Any, **given: Any) -> None:
        rendezvous = ThreadRendezvous(collective.world_size)
        self.rank = collective.rank
        self.container = StepContainer(collective=collective, rendezvous=rendezvous)
        given = {"device": "emulated", **given}
        self.items = EmbeddingBag(4, name="items", container=self.container, **given)
        self.others = EmbeddingBag(4, name="others", container=self.container)
        self.optimizer = Optimizer([self.items, self.others], optimizer, lr=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([self.items(ids), self.others(ids)])

    def step(self, ids: Tensor, scale: float = 1.0) -> None:
        (self.forward(ids) * scale).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rows(self) -> dict[str, dict[int, bytes]]:
        """Rows of this rank."""
        return {
            name: {
                int(key): row.tobytes()
                for chunk in self.container.storage(name).scan()
                for key, row in zip(chunk.keys, chunk.rows, strict=True)
            }
            for name in self.container.tables
        }


def refused(call: Any) -> SparringError:
    with pytest.raises(SparringError) as caught:
        call()
    return caught.value


@OPTIMIZERS
def test_non_finite_gradients_on_one_rank_stop_the_step_on_all(optimizer: Any) -> None:
    def body(collective: Collective) -> str:
        rank = Rank(collective, optimizer)
        ids = torch.arange(20).reshape(5, 4)
        rank.step(ids)
        before = rank.rows()
        scale = float("nan") if rank.rank == 1 else 1.0
        error = refused(lambda: rank.step(ids, scale))
        assert isinstance(error, NonFiniteGradientError)
        assert rank.rows() == before
        rank.step(ids)
        assert rank.rows() != before
        return str(error)

    messages = run_ranks("direct", 3, body)
    assert "'items' contain NaN" in messages[1]
    for place in (0, 2):
        assert "rank 1 cannot apply it, so no rank does" in messages[place]


@OPTIMIZERS
def test_rows_with_non_finite_gradients_are_skipped_on_their_rank(
    optimizer: Any,
) -> None:
    def body(collective: Collective, where: str) -> Any:
        rank = Rank(collective, optimizer, device=where)
        container = rank.container
        container.non_finite_gradients = type(container.non_finite_gradients)("skip")
        ids = torch.arange(12)[:, None] + rank.rank
        scale = torch.ones(24, 1)
        scale[5] = float("inf") if rank.rank == 0 else 1.0
        (rank.forward(ids) * scale).sum().backward()
        rank.optimizer.step()
        rank.optimizer.zero_grad()
        return rank.rows(), rank.container.counters.rows_skipped_non_finite

    ours = run_ranks("direct", 2, lambda each: body(each, "emulated"))
    assert ours == run_ranks("direct", 2, lambda each: body(each, "cpu"))
    assert [skipped for _, skipped in ours] == [1, 0]


@OPTIMIZERS
def test_a_full_table_on_the_device_of_one_rank_stops_the_step_on_all(optimizer: Any) -> None:
    def body(collective: Collective) -> str:
        rank = Rank(collective, optimizer, num_embeddings=15 if collective.rank == 1 else 10_000)
        ids = torch.arange(20)[None]
        rank.step(ids)
        before = rank.rows()
        error = refused(lambda: rank.step(torch.arange(200)[None]))
        assert isinstance(error, CapacityError)
        assert rank.rows() == before
        rank.step(ids)
        assert rank.rows() != before
        return str(error)

    messages = run_ranks("direct", 2, body)
    assert "rank 1 cannot apply it, so no rank does" in messages[0]
    assert "a capacity of 15" in messages[1]


def test_a_single_full_table_is_checked_before_other_ranks_write() -> None:
    """On one rank the update itself is rejected, and nothing has changed."""

    def body(collective: Collective) -> None:
        container = StepContainer(collective=collective, rendezvous=ThreadRendezvous(2))
        capacity = 15 if collective.rank == 1 else 10_000
        module = EmbeddingBag(
            4, name="items", device="emulated", num_embeddings=capacity, container=container
        )
        optimizer = Optimizer(module, "adagrad", lr=0.1)
        module(torch.arange(200)[None]).sum().backward()
        assert isinstance(refused(optimizer.step), CapacityError)
        assert container.num_rows("items") == 0

    run_ranks("direct", 2, body)


def test_ranks_with_tables_on_different_devices_are_rejected_at_start() -> None:
    def body(collective: Collective) -> str:
        rank = Rank(collective, "sgd", device="cpu" if collective.rank == 1 else "emulated")
        error = refused(lambda: rank.items(torch.arange(8)[None]))
        assert isinstance(error, InvalidArgumentError)
        return str(error)

    for message in run_ranks("direct", 2, body):
        assert 'tables.items.rows travel is "between devices (emulated), as they are"' in message
        assert 'on rank 0 and "between hosts" on rank 1' in message


def test_ranks_with_different_transports_are_rejected_at_start() -> None:
    class Mixed(DirectCollective):
        def __init__(self, group: Any, rank: int) -> None:
            super().__init__(group, rank)
            if rank == 1:
                self.devices = ("cpu",)

    def body(collective: Collective) -> str:
        assert isinstance(collective, DirectCollective)
        mixed = Mixed(collective.group, collective.rank)
        rank = Rank(mixed, "sgd")
        return str(refused(lambda: rank.items(torch.arange(8)[None])))

    for message in run_ranks("direct", 2, body):
        assert "via pinned memory" in message


# -- a rank whose device fails anywhere ------------------------------------------------


@dataclass(slots=True)
class Breaking:
    """Makes one rank's n-th use of the device fail."""

    thread: int
    left: int
    failed: str | None = None

    def use(self, name: str) -> None:
        if threading.get_ident() != self.thread:
            return
        self.left -= 1
        if self.left < 0 and self.failed is None:
            self.failed = name
            raise DeviceMemoryError(f"no memory left for {name}")


_TOLD = ("dedup", "route", "is_finite", "find_storage")
"""What fails before messages move: all raise it, and go on."""
_USES = ("dedup", "route", "gather", "initialize", "is_finite", "find_storage", "decode")


@contextmanager
def breaking(monkeypatch: pytest.MonkeyPatch, held: list[Breaking]) -> Iterator[None]:
    kernels: Any = get_kernel_set("emulated")

    def watched(name: str, real: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            for each in held:
                each.use(name)
            return real(*given, **named)

        return call

    with monkeypatch.context() as patched:
        for name in _USES:
            patched.setattr(kernels, name, watched(name, getattr(kernels, name)))
        arrays = kernels.arrays
        patched.setattr(kernels, "arrays", replace(arrays, empty=watched("empty", arrays.empty)))
        yield


@pytest.mark.slow  # the tests below break single uses of the device
@OPTIMIZERS
def test_a_rank_whose_device_fails_anywhere_before_rows_are_written_stops_all(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_failed, places = 0, set()
    # Both kinds of optimizers use the device equally up to here, so for one every third use suffices.
    is_fused = optimizer == "adagrad"
    for number in range(0, 100, 1 if is_fused else 3):
        held: list[Breaking] = []
        # The end of the failing rank would also notify the other, so it waits for the other's error.
        raised = threading.Barrier(2)

        def body(
            collective: Collective,
            held: list[Breaking] = held,
            number: int = number,
            raised: threading.Barrier = raised,
        ) -> Any:
            rank = Rank(collective, optimizer)
            ids = torch.arange(3 * rank.rank, 30 + 3 * rank.rank).reshape(-1, 3)
            rank.step(ids)
            before = rank.rows()
            if rank.rank == 1:
                held.append(Breaking(threading.get_ident(), number))
            begin = time.monotonic()
            try:
                rank.step(ids)
            except (DeviceMemoryError, PeerFailure) as error:
                assert time.monotonic() - begin < 15, "the deadline of 20 s was waited for"
                assert rank.rows() == before
                raised.wait(10)
                if held[0].failed in _TOLD:
                    rank.step(ids)
                    assert rank.rows() != before
                return error
            return None

        with breaking(monkeypatch, held):
            errors = run_ranks("staged", 2, body)
        if errors == [None, None]:
            break
        num_failed += 1
        mine = errors[1]
        assert isinstance(mine, DeviceMemoryError)
        assert mine.details.get("rank") is None
        places.add(str(mine).rsplit(" ", 1)[-1])
        assert errors[0] is not None, f"rank 0 went on when rank 1 had failed: {mine}"
        assert errors[0].details["rank"] == 1
        assert isinstance(errors[0], DeviceMemoryError) or held[0].failed not in _TOLD
    assert num_failed > (10 if is_fused else 5)
    assert places >= ({"dedup", "route", "gather", "is_finite", "empty"} if is_fused else {"empty"})


@OPTIMIZERS
@pytest.mark.parametrize("slow", [False, True], ids=["at once", "after the last message"])
def test_a_rank_that_cannot_add_gradients_stops_the_step_on_all(
    optimizer: Any, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: Any = get_kernel_set("emulated")
    real, failures = kernels.segment_sum, list[DeviceMemoryError]()

    def segment_sum(*given: Any, **named: Any) -> Any:
        if threading.current_thread().name.startswith("sparring-device") and failures:
            with suppress(IndexError):  # where the other rank was before
                error = failures.pop()
                time.sleep(0.05 if slow else 0)
                raise error
        return real(*given, **named)

    monkeypatch.setattr(kernels, "segment_sum", segment_sum)
    failure = DeviceMemoryError("no memory left to add up")
    begun = threading.Barrier(2, lambda: failures.append(failure))
    ended = threading.Barrier(2)

    def body(collective: Collective) -> DeviceMemoryError:
        rank = Rank(collective, optimizer)
        ids = torch.arange(20).reshape(5, 4)
        rank.step(ids)
        before = rank.rows()
        begun.wait(10)
        begin = time.monotonic()
        error = refused(lambda: rank.step(ids))
        assert time.monotonic() - begin < 15, "the deadline of 20 s was waited for"
        assert rank.rows() == before
        ended.wait(10)
        rank.step(ids)
        assert rank.rows() != before
        assert isinstance(error, DeviceMemoryError)
        return error

    errors = run_ranks("direct", 2, body)
    (failed,) = [rank for rank, each in enumerate(errors) if "rank" not in each.details]
    assert errors[1 - failed].details["rank"] == failed
    assert f"rank {failed} cannot apply it, so no rank does" in str(errors[1 - failed])


@pytest.mark.parametrize("where", ["lookup", "step"])
def test_an_error_of_torch_during_routing_stops_all_and_training_continues(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: Any = get_kernel_set("emulated")
    real, failing = kernels.route, set[int]()

    def route(*given: Any, **named: Any) -> Any:
        if threading.get_ident() in failing:
            failing.clear()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return real(*given, **named)

    monkeypatch.setattr(kernels, "route", route)

    def body(collective: Collective) -> SparringError:
        rank = Rank(collective, "adagrad")
        ids = torch.arange(20).reshape(5, 4)
        output = None if where == "lookup" else rank.forward(ids)
        if rank.rank == 1:
            failing.add(threading.get_ident())
        if output is None:
            error = refused(lambda: rank.forward(ids))
        else:
            output.sum().backward()
            error = refused(rank.optimizer.step)
        rank.step(ids)
        assert rank.container.counters.steps == 1
        return error

    first, second = run_ranks("direct", 2, body)
    assert type(first) is type(second) is DeviceError
    assert first.details["rank"] == 1
    assert isinstance(second.__cause__, torch.OutOfMemoryError)
    assert "OutOfMemoryError: CUDA out of memory" in str(first)


def test_an_optimizer_of_torch_without_memory_after_the_vote_reports_that_others_stepped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, ended = set[int](), threading.Barrier(2)

    class Adagrad(torch.optim.Adagrad):
        def step(self, closure: Any = None) -> Any:
            if threading.get_ident() in failing:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
            return super().step(closure)

    def body(collective: Collective) -> SparringError | None:
        rank = Rank(collective, Adagrad)
        ids = torch.arange(20).reshape(5, 4)
        rank.step(ids)
        if rank.rank == 0:
            rank.step(ids)
            error = refused(lambda: rank.items(ids))
            ended.wait(10)
            assert isinstance(error, PeerFailure)
            assert error.details["rank"] == 1
            return None
        before = rank.rows()
        failing.add(threading.get_ident())
        error = refused(lambda: rank.step(ids))
        ended.wait(10)  # by a message, not because this rank ends
        assert rank.rows() == before
        return error

    error = run_ranks("direct", 2, body)[1]
    assert isinstance(error, PartialStepError)
    assert "step 2 reached other ranks only" in str(error)
    assert isinstance(error.__cause__, DeviceMemoryError)
    assert error.__cause__.details["asked_bytes"] == 20 << 20


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("fault", ["place", "fraction", "weights"])
def test_ids_that_one_rank_rejects_are_looked_up_by_none_and_training_continues(
    fault: str, is_training: bool
) -> None:
    raised = threading.Barrier(2)

    def body(collective: Collective) -> InvalidArgumentError:
        rank = Rank(collective, "adagrad", mode="sum")
        rank.items.train(is_training)
        ids = torch.arange(20).reshape(5, 4)
        weights = torch.ones(5, 4)
        rank.items(ids, per_sample_weights=weights)
        given = ids
        if rank.rank == 1 and fault == "place":
            given = torch.empty((5, 4), dtype=torch.int64, device="meta")
        elif rank.rank == 1 and fault == "fraction":
            given = ids + 0.5
        elif rank.rank == 1:
            weights = torch.ones((5, 4), device="meta")
        error = refused(lambda: rank.items(given, per_sample_weights=weights))
        raised.wait(10)  # because the end of this rank would also notify the other
        rank.items(ids)
        assert isinstance(error, InvalidArgumentError)
        return error

    first, second = run_ranks("direct", 2, body)
    assert first.details["rank"] == 1
    assert str(second) in str(first)


def test_a_failed_background_load_is_raised_by_the_next_lookup(tmp_path: Path) -> None:
    url = str(tmp_path / "snapshot")
    ids = torch.arange(20).reshape(5, 4)

    def save(collective: Collective) -> None:
        rank = Rank(collective, "adagrad")
        rank.step(ids)
        rank.container.save(url)

    def load(collective: Collective) -> SparringError:
        rank = Rank(collective, "adagrad")
        storage = rank.container.storage("items")
        if rank.rank == 1:

            def fail(*_: Any, **__: Any) -> None:
                raise OSError("a cable was pulled")

            storage._restore_impl = fail  # type: ignore[attr-defined]
        rank.container.load(url, blocking=False)
        return refused(lambda: rank.items(ids))

    run_ranks("direct", 2, save)
    for error in run_ranks("direct", 2, load):
        assert isinstance(error, BackgroundError)
        assert "a cable was pulled" in str(error)
