"""Tables whose owners pool train like tables that transfer rows, and like one process.

The file is long because both transfers are tested on the same ranks and bags, with steps and failures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gradients import sum_gradients
from sparring.engine.container import StepContainer
from sparring.engine.lookup.pooled import BagLookup, bag_weight_gradients, look_up_bags
from sparring.engine.state import NonFinite
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, NonFiniteGradientError, PeerFailure
from sparring.kernels.functions import partition, pool, pool_backward
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import choose_method, join_rows, read_tables
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

Rows = dict[int, bytes]
Batch = tuple[Any, Any, Any]

DIMS = {"user": 4, "item": 3}
KINDS: Mapping[str, Callable[[int], tuple[str, tuple[int, ...]]]] = {
    "row_wise": lambda _: ("row_wise", ()),
    "table_wise": lambda size: ("table_wise", (size - 1,)),
    "table_row_wise": lambda size: ("table_row_wise", tuple({0, size - 1})),
}
STEPS = 5


def opened(
    collective: Collective | None,
    world_size: int,
    kind: str = "row_wise",
    transfer: Any = "pooled",
    **more: Any,
) -> StepContainer:
    name, ranks = KINDS[kind](world_size)
    table = {key: more.pop(key) for key in ("admission", "dtype") if key in more}
    container = StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(world_size) if collective else None,
        reduction=more.pop("reduction", Reduction.SUM),
        plan={each: TableSharding(name, ranks, transfer=transfer) for each in DIMS}
        if collective
        else None,
        **more,
    )
    for each, dim in DIMS.items():
        container.declare(
            TableConfig(each, dim, initializer=Uniform(-1, 1), seed=5, **table),
            StorageChoice("memory" if each == "user" else "hkv"),
        )
        container.set_state(each, np.zeros(dim, np.float32), "adagrad")
    return container


def bags_of(step: int, rank: int, name: str) -> Batch:
    """Returns ids and offsets of a rank, including empty bags and batches, and gradients whose sums are
    exact in any order."""
    random = np.random.default_rng((step, rank, len(name)))
    lengths = random.integers(0, 5, 0 if (step + rank) % 4 == 3 else 6 + rank)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    gradient = random.integers(-64, 65, (len(lengths), DIMS[name])) / 64
    return random.integers(-20, 20, offsets[-1]), offsets, gradient.astype(np.float32)


def look_up(
    container: StepContainer, batches: Mapping[str, Batch], mode: str = "sum", **more: Any
) -> list[Any]:
    wanted = [BagLookup(name, *batch[:2], mode, **more) for name, batch in batches.items()]
    return look_up_bags(container.state, wanted, is_training=True)


def pooled_step(container: StepContainer, micro: list[Mapping[str, Batch]]) -> list[Any]:
    """A step of several micro-batches whose owners pool."""
    pools = []
    for batches in micro:
        found = look_up(container, batches)
        pools += [each.pools for each in found]
        for each, (_, _, gradient) in zip(found, batches.values(), strict=True):
            container.resources.accumulate_bags(each.shadow_id, gradient)
    container.apply_methods(choose_method(container, "adagrad", lr=0.125))
    return pools


def rows_step(
    container: StepContainer, micro: list[Mapping[str, Batch]], mode: str = "sum"
) -> list[Any]:
    """A step of several micro-batches that transfers rows."""
    pools = []
    for batches in micro:
        found = container.lookup_all([(name, ids) for name, (ids, _, _) in batches.items()])
        for each, (_, offsets, gradient) in zip(found, batches.values(), strict=True):
            pools.append(pool(each.rows, each.inverse, offsets, mode=mode))
            assert each.shadow_id is not None
            by_key = pool_backward(gradient, each.inverse, offsets, len(each.keys), mode=mode)
            container.resources.accumulate(each.shadow_id, by_key)
    container.apply_methods(choose_method(container, "adagrad", lr=0.125))
    return pools


def work_of(step: int, ranks: list[int]) -> list[Mapping[str, Batch]]:
    """Returns two micro-batches, with the batches of several ranks joined."""
    made = []
    for number in (2 * step, 2 * step + 1):
        batches = {}
        for name in DIMS:
            given = [bags_of(number, rank, name) for rank in ranks]
            lengths = np.concatenate([np.diff(offsets) for _, offsets, _ in given])
            batches[name] = (
                np.concatenate([ids for ids, _, _ in given]),
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                np.concatenate([gradient for _, _, gradient in given]),
            )
        made.append(batches)
    return made


@pytest.mark.parametrize(
    "world_size", [1, 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 4))]
)
def test_pooled_tables_have_the_bits_of_one_process(world_size: int) -> None:
    everyone = list(range(world_size))
    with opened(None, 1) as alone:
        outputs = [rows_step(alone, work_of(step, everyone)) for step in range(STEPS)]
        expected = read_tables(alone)
    assert min(map(len, expected.values())) > 20
    for kind in KINDS:

        def body(collective: Collective, kind: str = kind) -> tuple[Any, Any]:
            with opened(collective, world_size, kind) as container:
                run = pooled_step if world_size > 1 else rows_step
                pools = [run(container, work_of(step, [collective.rank])) for step in range(STEPS)]
                assert container.exchange.pooling.num_kept == 0
                return pools, read_tables(container)

        results = run_ranks(world_size, body)
        assert join_rows([each for _, each in results]) == expected, kind
        for step in range(STEPS):
            for place, whole in enumerate(outputs[step]):
                mine = np.concatenate([pools[step][place] for pools, _ in results])
                np.testing.assert_allclose(mine, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", [pytest.param("sum", marks=pytest.mark.slow), "mean"])
def test_real_gradients_give_the_same_rows_as_transfer_by_rows(mode: str) -> None:
    def body(collective: Collective, transfer: str) -> dict[str, Rows]:
        random = np.random.default_rng(collective.rank)
        options = ExchangeOptions(chunk_rows=8, chunks_in_flight=2)
        with opened(collective, 3, "table_row_wise", transfer, exchange=options) as container:
            for step in range(STEPS):
                work = work_of(step, [collective.rank])
                for batches in work:
                    for name, (ids, offsets, gradient) in batches.items():
                        noise = random.standard_normal(gradient.shape).astype(np.float32)
                        batches[name] = ids, offsets, noise  # type: ignore[index]
                if transfer == "rows":
                    rows_step(container, work, mode)
                    continue
                for batches in work:
                    found = look_up(container, batches, mode)
                    for each, batch in zip(found, batches.values(), strict=True):
                        container.resources.accumulate_bags(each.shadow_id, batch[2])
                container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            return read_tables(container)

    by_rows = join_rows(run_ranks(3, lambda collective: body(collective, "rows")))
    pooled = join_rows(run_ranks(3, lambda collective: body(collective, "pooled")))
    assert pooled == by_rows


def one_bag(ids: list[int], dim: int = 4, fill: float = 1.0) -> Batch:
    lengths = [len(ids)] if ids else []
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return np.array(ids, np.int64), offsets, np.full((len(lengths), dim), fill, np.float32)


def test_weights_and_their_gradients_equal_transfer_by_rows() -> None:
    def body(collective: Collective) -> None:
        rank = collective.rank
        ids, offsets, gradient = bags_of(1 + rank, rank, "user")
        weights = np.linspace(0.5, 2, len(ids)).astype(np.float32)
        with opened(collective, 3, "table_row_wise") as container:
            for mode in ("sum", "mean"):
                (rows,) = container.lookup_all([("user", ids)], is_registered=False)
                wanted = BagLookup("user", ids, offsets, mode, weights, True)
                (found,) = look_up_bags(container.state, [wanted], is_training=True)
                of_ids = rows.rows[rows.inverse]
                expected = pool(rows.rows, rows.inverse, offsets, mode=mode, weights=weights)
                np.testing.assert_allclose(found.pools, expected, rtol=0, atol=1e-6)
                (got,) = bag_weight_gradients(container.state, [found], [gradient])
                lengths = np.diff(offsets)
                scaled = gradient / (np.maximum(lengths, 1)[:, None] if mode == "mean" else 1)
                expected = (np.repeat(scaled, lengths, axis=0) * of_ids).sum(axis=1)
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
                (got,) = bag_weight_gradients(container.state, [found], [None])
                assert not got.any()
                by_key = pool_backward(
                    gradient, rows.inverse, offsets, len(rows.keys), mode=mode, weights=weights
                )
                container.resources.accumulate_bags(found.shadow_id, gradient)
                container.apply_methods(choose_method(container, "adagrad", lr=0.125))
                (after,) = container.lookup_all([("user", ids)], is_registered=False)
                changed = (after.rows != rows.rows).any(axis=1)
                assert changed[(by_key != 0).any(axis=1)].all()

    run_ranks(3, body)


def test_bytes_match_the_formula_and_are_fewer_than_by_rows(capsys: Any) -> None:
    dim, num_bags, per_bag = 4, 512, 20
    random = np.random.default_rng(0)
    ids = random.integers(0, 1 << 62, num_bags * per_bag)
    offsets = np.arange(num_bags + 1, dtype=np.int64) * per_bag
    gradient = np.ones((num_bags, dim), np.float32)

    def body(collective: Collective, transfer: str) -> tuple[Any, Any]:
        with opened(collective, 2, "table_wise", transfer) as container:
            if collective.rank == 0:
                work = [{"user": (ids, offsets, gradient)}]
            else:
                work = [{"user": one_bag([])}]
            (pooled_step if transfer == "pooled" else rows_step)(container, work)
            counters = container.exchange.counters
            return counters.wire_bytes_sent, counters.wire_bytes_received

    # All rows are on rank 1.
    sent, received = run_ranks(2, lambda collective: body(collective, "pooled"))[0]
    assert sent.keys == 8 * len(ids) + 4 * num_bags
    assert received.rows == num_bags * dim * 4 + 8
    assert sent.gradients == 16 + num_bags * dim * 4
    by_rows = run_ranks(2, lambda collective: body(collective, "rows"))[0]
    total = {
        name: each[0].total + each[1].total - each[0].headers - each[1].headers
        for name, each in {"rows": by_rows, "pooled": (sent, received)}.items()
    }
    with capsys.disabled():
        print(f"\n20 ids a bag, dim {dim}, table_wise: {total}")
    assert 2 * total["pooled"] < total["rows"]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_bytes_of_two_tables_on_three_ranks_match_the_formula(is_weighted: bool) -> None:
    def padded(count: int) -> int:
        return -(-count // 8) * 8

    def body(collective: Collective) -> tuple[list[Any], Any]:
        """Returns the ids and bags of each table per owner, and the counted bytes."""
        with opened(collective, 3) as container:
            counts: list[Any] = []
            wanted, gradients = [], []
            for name, dim in DIMS.items():
                ids, offsets, gradient = bags_of(4, collective.rank, name)
                owners = container.layout(name).owners[partition(ids)]
                bag_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
                for rank in {0, 1, 2} - {collective.rank}:
                    bags = len(set(bag_of[owners == rank].tolist()))
                    counts.append((rank, int((owners == rank).sum()), bags, dim))
                weights = np.ones(len(ids), np.float32) if is_weighted else None
                wanted.append(BagLookup(name, ids, offsets, "sum", weights))
                gradients.append(gradient)
            found = look_up_bags(container.state, wanted, is_training=True)
            for each, gradient in zip(found, gradients, strict=True):
                container.resources.accumulate_bags(each.shadow_id, gradient)
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            counters = container.exchange.counters
            return counts, (counters.wire_bytes_sent, counters.wire_bytes_received)

    for counts, (sent, received) in run_ranks(3, body):
        assert all(num_ids for _, num_ids, _, _ in counts)
        weights = [padded(4 * n) if is_weighted else 0 for _, n, _, _ in counts]
        assert sent.keys == sum(8 * n + padded(4 * b) for _, n, b, _ in counts) + sum(weights)
        # Both tables of a rank share a message.
        assert received.rows == sum(padded(b * dim * 4) for _, _, b, dim in counts) + 2 * 8
        assert sent.gradients == sum(16 + padded(b * dim * 4) for _, _, b, dim in counts)


def test_a_discarded_step_leaves_nothing() -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            for number in range(4):
                (found,) = look_up(container, {"user": one_bag([1, 2, 3])})
                if number % 2:
                    container.resources.accumulate_bags(found.shadow_id, one_bag([1])[2])
                    assert container.resources.has_gradient("user")
                if collective.rank == 0:
                    container.discard()
                else:
                    container.resources.release(found.shadow_id)
                    container.resources.drop("user")
                # The other's last lookup is dropped at the next one.
                assert container.exchange.pooling.num_kept <= 2
            assert not container.resources.has_gradient("user")
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            assert container.num_rows("user") == 0
            with pytest.raises(InvalidArgumentError, match="run the forward pass again"):
                container.resources.accumulate_bags(found.shadow_id, one_bag([1])[2])

    run_ranks(2, body)


def test_a_gradient_of_one_of_two_lookups_on_one_rank_is_enough() -> None:
    def body(collective: Collective) -> dict[str, Rows]:
        with opened(collective, 2) as container:
            look_up(container, {"user": one_bag([1, 2])})
            (found,) = look_up(container, {"user": one_bag([3, 4, 5])})
            if collective.rank == 1:
                container.resources.accumulate_bags(found.shadow_id, one_bag([3])[2])
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            return read_tables(container)

    assert set(join_rows(run_ranks(2, body))["user"]) == {3, 4, 5}


def test_two_gradients_of_one_lookup_add_up() -> None:
    def body(collective: Collective) -> dict[str, Rows]:
        with opened(collective, 2) as container:
            (found,) = look_up(container, {"user": one_bag([3, 4, 5])})
            for fill in (1.0, 2.0) if collective.rank else (3.0,):
                gradient = one_bag([3], fill=fill)[2]
                container.resources.accumulate_bags(found.shadow_id, gradient)
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            return read_tables(container)

    results = run_ranks(2, body)
    with opened(None, 1) as alone:
        rows_step(alone, [{"user": one_bag([3, 4, 5], fill=6.0)}])
        assert join_rows(results)["user"] == read_tables(alone)["user"]


def test_evaluation_registers_nothing_and_creates_no_row() -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            wanted = [BagLookup("user", *one_bag([7, 8, 9])[:2])]
            (found,) = look_up_bags(container.state, wanted, is_training=False)
            assert found.shadow_id is None
            assert found.pools.any()
            assert container.resources.num_batch_inputs == 0
            assert container.exchange.pooling.num_kept == 0
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            assert container.num_rows("user") == 0

    run_ranks(2, body)


def test_admission_counts_the_ids_of_all_ranks() -> None:
    def body(collective: Collective) -> tuple[dict[str, Rows], int]:
        with opened(collective, 2, admission=Frequency(2)) as container:
            pooled_step(container, [{"user": one_bag([1, 2 + collective.rank])}])
            pooled_step(container, [{"user": one_bag([1, 9])}])
            return read_tables(container), container.num_not_admitted("user")

    results = run_ranks(2, body)
    # 1 and 9 came in two steps and in one.
    assert set(join_rows([each for each, _ in results])["user"]) == {1}
    assert sum(count for _, count in results) == 4


@pytest.mark.parametrize("policy", list(NonFinite))
def test_nan_is_rejected_or_skipped_on_the_rank_that_has_it(policy: NonFinite) -> None:
    def body(collective: Collective) -> tuple[dict[str, Rows], int]:
        with opened(collective, 2, non_finite_gradients=policy) as container:
            is_bad = collective.rank == 0
            batch = one_bag([1, 2 + collective.rank], fill=np.nan if is_bad else 1.0)
            if policy is NonFinite.SKIP:
                pooled_step(container, [{"user": batch}])
            else:
                with pytest.raises(NonFiniteGradientError, match="'user'"):
                    pooled_step(container, [{"user": batch}])
                pooled_step(container, [{"user": one_bag([5])}])
            return read_tables(container), container.counters.rows_skipped_non_finite

    results = run_ranks(2, body)
    rows = join_rows([each for each, _ in results])["user"]
    if policy is NonFinite.RAISE:
        assert set(rows) == {5}
    else:
        assert set(rows) == {1, 3}  # of rank 1
        assert sum(count for _, count in results) == 2


def test_nan_among_sums_before_a_step_is_found() -> None:
    def body(collective: Collective) -> tuple[bool, dict[str, Rows]]:
        with opened(collective, 2, non_finite_gradients=NonFinite.SKIP) as container:
            (found,) = look_up(container, {"user": one_bag([1, 2])})
            gradient = one_bag([1], fill=np.nan if collective.rank else 1.0)[2]
            container.resources.accumulate_bags(found.shadow_id, gradient)
            sums = sum_gradients(container.state)
            has_nan = any(np.isnan(each.gradients).any() for each in sums.values())
            (found,) = look_up(container, {"user": one_bag([3])})
            container.resources.accumulate_bags(found.shadow_id, one_bag([3])[2])
            container.apply_methods(choose_method(container, "adagrad", lr=0.125))
            return has_nan, read_tables(container)

    results = run_ranks(2, body)
    assert any(has_nan for has_nan, _ in results)
    assert set(join_rows([each for _, each in results])["user"]) == {3}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_narrow_rows_are_pooled_as_they_are_read(dtype: str) -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2, dtype=dtype) as container:
            ids, offsets, _ = bags_of(1, collective.rank, "item")
            (found,) = container.lookup_all([("item", ids)], is_registered=False)
            expected = pool(found.rows, found.inverse, offsets, mode="sum")
            (pooled,) = look_up(container, {"item": (ids, offsets, None)})
            np.testing.assert_allclose(pooled.pools, expected, rtol=0, atol=1e-6)

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("wire_dtype", "error"), [("bfloat16", 2e-2), ("float16", 2e-3), ("int8", 4e-2)]
)
def test_pools_and_gradients_are_sent_in_16_bits(wire_dtype: str, error: float) -> None:
    options = ExchangeOptions(row_wire_dtype=wire_dtype, gradient_wire_dtype=wire_dtype)

    def body(collective: Collective, options: ExchangeOptions | None) -> tuple[Any, Any]:
        with opened(collective, 2, exchange=options) as container:
            return pooled_step(container, work_of(0, [collective.rank])), read_tables(container)

    narrowed = run_ranks(2, lambda collective: body(collective, options))
    exact = run_ranks(2, lambda collective: body(collective, None))
    for (mine, _), (whole, _) in zip(narrowed, exact, strict=True):
        for each, other in zip(mine[:2], whole[:2], strict=True):
            np.testing.assert_allclose(each, other, rtol=0, atol=8 * error)
    assert {n: set(r) for n, r in join_rows([each for _, each in narrowed]).items()} == {
        n: set(r) for n, r in join_rows([each for _, each in exact]).items()
    }


def test_an_owner_with_a_failing_storage_notifies_the_requesting_rank(monkeypatch: Any) -> None:
    def body(collective: Collective) -> str:
        with opened(collective, 2, "table_wise") as container:
            pooled_step(container, [{"user": one_bag([1, 2])}])
            if collective.rank == 1:

                def fail(*_: Any) -> None:
                    raise OSError("the disk is gone")

                monkeypatch.setattr(container.storage("user"), "find_into", fail)
            try:
                look_up(container, {"user": one_bag([1, 2])})
            except (OSError, PeerFailure) as error:
                return str(error)
            return ""

    of_asker, of_owner = run_ranks(2, body)
    assert of_owner == "the disk is gone"
    assert "rank 1 could not read the requested rows" in of_asker


def test_an_owner_that_cannot_add_gradients_rejects_the_step_on_all_ranks(monkeypatch: Any) -> None:
    def body(collective: Collective) -> dict[str, Rows]:
        with opened(collective, 2, "table_wise") as container:
            pooled_step(container, [{"user": one_bag([1, 2])}])
            before = read_tables(container)
            if collective.rank == 1:

                def fail(*_: Any) -> None:
                    raise InvalidArgumentError("no memory")

                monkeypatch.setattr(container.resources, "add", fail)
            with pytest.raises(InvalidArgumentError, match="no memory"):
                pooled_step(container, [{"user": one_bag([1, 3])}])
            assert read_tables(container) == before
            if collective.rank == 1:
                monkeypatch.undo()
            pooled_step(container, [{"user": one_bag([4])}])
            return read_tables(container)

    assert set(join_rows(run_ranks(2, body))["user"]) == {1, 2, 4}


@pytest.mark.parametrize("elsewhere", ["step", "end", "rows"])
def test_a_rank_in_another_call_is_named(elsewhere: str) -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            batch = one_bag([1, 2])
            weights = np.ones(2, np.float32)
            wanted = BagLookup("user", *batch[:2], "sum", weights, True)
            (found,) = look_up_bags(container.state, [wanted], is_training=True)
            begin = partial(bag_weight_gradients, container.state, [found], [batch[2]])
            if collective.rank and elsewhere == "end":
                return
            if collective.rank and elsewhere == "rows":
                begin = partial(container.lookup, "user", batch[0])
            elif collective.rank:
                begin = partial(
                    container.apply_methods, choose_method(container, "adagrad", lr=0.125)
                )
            with pytest.raises(PeerFailure, match=r"while rank|aborted|ended training"):
                begin()

    run_ranks(2, body)


def test_prefetched_rows_of_a_pooled_table_are_logged(caplog: Any) -> None:
    caplog.set_level("INFO", logger="sparring")

    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            prefetch = container.prefetch([("user", np.array([1, 2], np.int64))])
            assert len(prefetch.finish()[0].keys) == 2

    run_ranks(2, body)
    told = [each for each in caplog.records if "transferred by rows" in each.getMessage()]
    assert len(told) == 2, "once a rank"


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            ids, offsets, _ = one_bag([1, 2])
            wanted = BagLookup("user", ids, offsets + (collective.rank == 1))
            with pytest.raises(InvalidArgumentError, match="offsets"):
                look_up_bags(container.state, [wanted], is_training=True)
            # Also for the transfer by rows, as when modules reject a batch.
            own_error = InvalidArgumentError("no such feature")
            begin = partial(look_up, container, {"user": one_bag([1])})
            if collective.rank:
                begin = partial(container.lookup_all, [("user", ids)], own_error=own_error)
            with pytest.raises(InvalidArgumentError, match="no such feature"):
                begin()
            pooled_step(container, [{"user": one_bag([5])}])

    run_ranks(2, body)


def test_ranks_with_different_transfers_reject_each_other() -> None:
    def body(collective: Collective) -> None:
        transfer = "pooled" if collective.rank else "rows"
        with (
            opened(collective, 2, "row_wise", transfer) as container,
            pytest.raises(InvalidArgumentError, match="pooled"),
        ):
            container.lookup("user", np.array([1], np.int64))

    run_ranks(2, body)


def test_a_table_reports_the_transfer_of_its_bags() -> None:
    def body(collective: Collective) -> None:
        with opened(collective, 2) as container:
            assert container.transfer("user")[0] == "pooled"
            assert str(container.layout("user")).endswith(", pooled")
        collective.close()

    run_ranks(2, body)
    with opened(None, 1) as alone:
        assert alone.transfer("user")[0] == "rows"
        with pytest.raises(InvalidArgumentError, match="with lookup_all"):
            look_up(alone, {"user": one_bag([1])})
    with pytest.raises(InvalidArgumentError, match="'rows' or 'pooled', found 'bags'"):
        TableSharding("row_wise", transfer="bags")  # type: ignore[arg-type]
    with (
        StepContainer(
            plan={"user": TableSharding("data_parallel", transfer="pooled")}
        ) as container,
        pytest.raises(InvalidArgumentError, match="data_parallel"),
    ):
        container.declare(TableConfig("user", 4))
