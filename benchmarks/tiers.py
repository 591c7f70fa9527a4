"""A stack of storages: cost of falling through, of unseen keys, and of a stack around a table if all keys
hit, and the gain of writing rows to lower tiers in the background."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from sparring import EventLoop, make_plugin_manager, open_storage, update_rows
from sparring.adapter import BUILTIN_METHODS, parse_hyper
from sparring.contracts import MethodChoice, Storage, TableConfig
from sparring_tiered import TieredStorage

__all__ = ["measure"]

NUM_KEYS, DIM, BATCH_IDS, EXPONENT = 10_000_000, 32, 65_536, 1.05
FIRST_SHARE, LOAD_KEYS = 0.1, 131_072
WARMING_BATCHES, WARM_UP, ROUNDS = 60, 4, 25
RATE = 0.01
RARE_UNSEEN, RARE_BATCHES = 600, 8  # one in this many batches
STEP_KEYS, ROUND_STEPS = 8_500, 10
BAR_COST, BAR_SPEED = 1.3, 0.9

Keys = npt.NDArray[np.int64]


def measure(scale: Scale) -> list[Figure]:
    """Measures medians of rounds in which contenders alternate; results are compared before timing."""
    num_keys = scale.rows(NUM_KEYS)
    table = TableConfig("tiers", DIM)
    first = {"backend": "hkv", "options": {"capacity": int(num_keys * FIRST_SHARE)}}
    figures = []
    for backend in _lower_backends():
        with TemporaryDirectory() as folder:
            options = {"path": folder} if backend == "rocksdb" else {}
            tiers = [first, {"backend": backend, "options": options}]
            stack: Any = open_storage("tiered", table, validate=False, tiers=tiers)
            figures += _over(stack, num_keys, scale, backend)
            stack.close()
    return [*figures, *_all_hit(scale), *_beside(scale)]


def _lower_backends() -> list[str]:
    """Returns the backends below the first tier: rocksdb if it is installed, and the fastest one."""
    manager = make_plugin_manager()
    offered = {each.descriptor.name for each in manager.descriptors()}
    return [name for name in ("rocksdb", "hkv") if name in offered]


def _over(stack: TieredStorage, num_keys: int, scale: Scale, backend: str) -> list[Figure]:
    draw = _zipf(num_keys)
    generator = np.random.default_rng(0)
    for begin in range(0, num_keys, LOAD_KEYS):
        keys = np.arange(begin, min(begin + LOAD_KEYS, num_keys))
        stack.upsert(_spread(keys), _rows_of(keys))
    for _ in range(scale.rounds(WARMING_BATCHES)):
        keys = draw(generator)
        stack.upsert(_spread(keys), stack.find(_spread(keys)).rows)
    stack.flush()
    batches = [draw(generator) for _ in range(2 * scale.rounds(ROUNDS) + WARM_UP)]
    figures = [
        _falling_through(stack, batches, num_keys, backend),
        _unseen(stack, num_keys, scale, backend),
    ]
    if backend != "rocksdb":
        # With a tier on disk, the filter is queried for each key.
        figures.append(_rarely_unseen(stack, draw, num_keys, scale))
        mixed = [_with_unseen(ids, num_keys, generator) for ids in batches]
        figures.append(_falling_through(stack, mixed, num_keys, backend))
    return figures


def _falling_through(
    stack: TieredStorage, batches: list[Keys], num_keys: int, backend: str
) -> Figure:
    """Times the stack and its tiers alternately, each with different batches, because a batch that was
    just found is in the processor's caches.

    Ids from `num_keys` on are unseen: the tiers are not queried for them, and the figure has no limit.
    """
    first, last = stack.tiers
    is_hit = [first.find(_spread(ids)).found for ids in batches]  # finds do not change it
    seconds: dict[str, list[float]] = {"stack": [], "predicted": []}
    for number, (ids, is_first) in enumerate(zip(batches, is_hit, strict=True)):
        keys = _spread(ids)
        is_seen = ids < num_keys
        hits, misses = keys[is_first], keys[~is_first & is_seen]
        out = np.ones((len(keys), DIM), np.float32)  # page faults happen before the measurement
        found = []
        stack._stack.promotion.clear()  # as in the first lookup after a step
        name = "predicted" if (number + number // 2) % 2 else "stack"
        start = perf_counter()
        if name == "stack":
            found.append(stack.find(keys, out=out).found)
        else:
            found.append(first.find(hits, out=out[: len(hits)]).found)
            found.append(last.find(misses, out=out[len(hits) : len(hits) + len(misses)]).found)
        taken = perf_counter() - start
        order = ids[is_seen]
        if name == "stack":
            is_right = np.array_equal(found[0], is_seen)
            out = out[is_seen]
        else:
            is_right = bool(np.concatenate(found).all())
            order = np.concatenate([ids[is_first], ids[~is_first & is_seen]])
        if not (is_right and np.array_equal(out[: len(order)], _rows_of(order))):
            raise AssertionError("the stack or its tiers did not find what was written")
        if number >= WARM_UP:
            seconds[name].append(taken)
    share = median(np.count_nonzero(each) / len(each) for each in is_hit)
    ratio = median(
        ours / theirs for ours, theirs in zip(seconds["stack"], seconds["predicted"], strict=True)
    )
    num_unseen = sum(np.count_nonzero(ids >= num_keys) for ids in batches)
    return Figure(
        f"find in {stack.size:,} rows, hkv over {backend}, a tenth of them in the first tier, "
        f"Zipf {EXPONENT}{', one unseen key in each batch' if num_unseen else ''}",
        f"{ratio:.2f} x the prediction",
        None if num_unseen else f"<= {BAR_COST} x",
        None if num_unseen else ratio <= BAR_COST,
        f"{median(seconds['stack']) * 1e3:.2f} ms against {median(seconds['predicted']) * 1e3:.2f} "
        f"ms: hits and misses, each found in its tier directly; {share:.0%} of "
        f"{len(batches[0]):,} keys hit",
    )


def _unseen(stack: TieredStorage, num_keys: int, scale: Scale, backend: str) -> Figure:
    batches = [
        np.arange(BATCH_IDS) + num_keys + number * BATCH_IDS for number in range(scale.rounds(8))
    ]
    count, trips = _trips(stack, batches, num_keys)
    filter_bytes = stack._stack.last.keys_filter.memory_bytes  # type: ignore[union-attr]
    return Figure(
        f"unseen keys for which {backend} was queried",
        f"{trips / count:.3%}",
        f"<= {RATE:.0%}",
        trips / count <= RATE,
        f"{count:,} keys; the filter takes {8 * filter_bytes / stack.size:.1f} bits per row",
    )


def _rarely_unseen(
    stack: TieredStorage,
    draw: Callable[[np.random.Generator], Keys],
    num_keys: int,
    scale: Scale,
) -> Figure:
    """Measures few unseen keys among many existing ones, where the filter may be skipped."""
    generator = np.random.default_rng(4)
    num_batches = RARE_BATCHES * scale.rounds(RARE_UNSEEN)

    def draw_all() -> Iterator[Keys]:
        for number in range(num_batches):
            ids = draw(generator)
            yield ids if number % RARE_BATCHES else _with_unseen(ids, num_keys, generator)

    count, trips = _trips(stack, draw_all(), num_keys)
    return Figure(
        f"the same, with one unseen key in every {RARE_BATCHES} batches of Zipf {EXPONENT}",
        f"{trips / count:.3%}",
        f"<= {RATE:.0%}",
        trips / count <= RATE,
        f"{trips} of {count:,} keys; about {len(draw(generator)):,} keys of each batch exist",
    )


def _with_unseen(ids: Keys, num_keys: int, generator: np.random.Generator) -> Keys:
    """Inserts one more id at a random position."""
    unseen = num_keys + generator.integers(0, 2**40, 1)
    return generator.permutation(np.concatenate([ids, unseen]))


def _trips(stack: TieredStorage, batches: Iterable[Keys], num_keys: int) -> tuple[int, int]:
    """Finds ids, of which those from `num_keys` on are unseen; returns the number of unseen ids, and of
    those for which the lower tier was queried."""
    before = stack.tier_counters()[1]
    skips, trips = before.bloom_skips, before.bloom_false_positives
    count = 0
    for ids in batches:
        if not np.array_equal(stack.find(_spread(ids)).found, ids < num_keys):
            raise AssertionError("find must return exactly the keys that were written")
        count += int(np.count_nonzero(ids >= num_keys))
    after = stack.tier_counters()[1]
    skips, trips = after.bloom_skips - skips, after.bloom_false_positives - trips
    if skips + trips != count:
        raise AssertionError(f"{count} unseen keys, but {skips} skips and {trips} trips")
    return count, trips


def _all_hit(scale: Scale) -> list[Figure]:
    num_keys = scale.rows(1_000_000)
    table = TableConfig("tiers", DIM).with_state(1, "rowwise_adagrad")
    bare = open_storage("hkv", table, validate=False)
    stack = open_storage("tiered", table, validate=False, tiers=["hkv", "hkv"])
    rows = np.random.default_rng(1).random((num_keys, table.width), np.float32)
    keys = _spread(np.arange(num_keys))
    for storage in (bare, stack):
        storage.upsert(keys, rows)
    generator = np.random.default_rng(2)
    batches = [_spread(np.unique(generator.integers(0, num_keys, BATCH_IDS))) for _ in range(16)]
    if not np.array_equal(stack.find(batches[0]).rows, bare.find(batches[0]).rows):
        raise AssertionError("the stack and the bare table differ")
    out = np.zeros((BATCH_IDS, table.width), np.float32)
    gradients = np.full((BATCH_IDS, DIM), 1e-3, np.float32)
    method = BUILTIN_METHODS["rowwise_adagrad"]()
    choice = MethodChoice(method, parse_hyper(method, {"lr": 0.1}), 1)

    def finding(storage: Storage) -> Callable[[], object]:
        return lambda: [storage.find(each, out=out[: len(each)]) for each in batches]

    def updating(storage: Storage) -> Callable[[], object]:
        return lambda: [
            update_rows(storage, each, gradients[: len(each)], choice) for each in batches
        ]

    figures = []
    for what, run in (("find", finding), ("update by row-wise Adagrad", updating)):
        timings = alternate({"bare": run(bare), "stack": run(stack)}, rounds=scale.rounds(15))
        ratio = median(ratios(timings["bare"], timings["stack"]))
        bar = BAR_SPEED if what == "find" else None
        milliseconds = [timings[name].median / len(batches) * 1e3 for name in ("stack", "bare")]
        figures.append(
            Figure(
                f"{what} of {BATCH_IDS:,} keys that all hit, in {num_keys:,} rows",
                f"{ratio:.2f} x the bare table's speed",
                None if bar is None else f">= {bar} x",
                None if bar is None else ratio >= bar,
                f"{milliseconds[0]:.2f} ms against {milliseconds[1]:.2f} ms",
                ratio,
            )
        )
    if not np.array_equal(stack.find(keys).rows, bare.find(keys).rows):
        raise AssertionError("the stack and the bare table differ after updates")
    stack.close()
    bare.close()
    return figures


def _beside(scale: Scale) -> list[Figure]:
    """Runs steps that look up, compute and write rows, with a stack that writes evicted rows within the
    step, and with one that writes them during later steps."""
    if _lower_backends()[0] != "rocksdb":
        return []
    figures = []
    for is_synced in (False, True):
        with ExitStack() as opened:
            events = opened.enter_context(EventLoop())
            stacks = {}
            for where in ("inline", "background"):
                folder = opened.enter_context(TemporaryDirectory())
                options = {"path": folder, "sync_writes": is_synced}
                stack = opened.enter_context(_stack_of_alike(options, where, scale))
                stack.use_background(events)
                stacks[where] = stack
            last = "rocksdb that waits for the disk" if is_synced else "rocksdb"
            for pause in (0.0, 0.02):
                figures.append(_gain(stacks, events, scale, pause, last))
    return figures


def _stack_of_alike(options: dict[str, Any], where: str, scale: Scale) -> Any:
    num_keys = scale.rows(1_000_000)
    tiers = [
        {"backend": "hkv", "options": {"capacity": num_keys // 10}},
        {"backend": "rocksdb", "options": options},
    ]
    table = TableConfig("tiers", DIM)
    stack = open_storage("tiered", table, validate=False, tiers=tiers, write_back=where)
    for begin in range(0, num_keys, LOAD_KEYS):
        ids = np.arange(begin, min(begin + LOAD_KEYS, num_keys))
        stack.upsert(_spread(ids), _rows_of(ids))
    stack.flush()
    return stack


def _gain(
    stacks: dict[str, Any], events: EventLoop, scale: Scale, pause: float, last: str
) -> Figure:
    num_keys = stacks["background"].size
    generator = np.random.default_rng(3)
    num_rounds = scale.rounds(12)
    rounds = [[_alike(generator, num_keys) for _ in range(ROUND_STEPS)] for _ in range(num_rounds)]
    drawn = {where: iter([rounds[0], rounds[0], *rounds]) for where in stacks}
    work = bytes(int(_hashed_bytes_a_second() * pause))
    waited = [stacks["background"].tier_counters()[1].wait_seconds]

    own: dict[str, list[float]] = {where: [] for where in stacks}

    def steps(where: str) -> None:
        stack = stacks[where]
        start = thread_time()
        for keys in next(drawn[where]):
            rows = stack.find(keys).rows
            hashlib.sha256(work)  # stands in for the model: uses one core without the interpreter
            rows += 1
            stack.upsert(keys, rows)
        own[where].append((thread_time() - start) / ROUND_STEPS * 1e3)
        events.drain()  # deferred work counts too

    timings = alternate(
        {where: lambda where=where: steps(where) for where in stacks},
        rounds=num_rounds,
        warm_up=2,
    )
    waited.append(stacks["background"].tier_counters()[1].wait_seconds)
    everything = _spread(np.arange(num_keys))
    if not np.array_equal(*(stack.find(everything).rows for stack in stacks.values())):
        raise AssertionError("the two stacks differ")
    ratio = median(ratios(timings["inline"], timings["background"]))
    milliseconds = [timings[where].median / ROUND_STEPS * 1e3 for where in ("background", "inline")]
    return Figure(
        f"steps over hkv over {last}, {pause * 1e3:.0f} ms of computing, background write-back",
        f"{ratio:.2f} x the speed",
        None,
        None,
        f"{milliseconds[0]:.1f} ms against {milliseconds[1]:.1f} ms per step if evicted rows are "
        f"written within it, {median(own['background']):.1f} against {median(own['inline']):.1f} ms of "
        f"processor time of the thread that steps; {STEP_KEYS:,} keys; waited "
        f"{waited[1] - waited[0]:.2f} s for free memory",
        ratio,
    )


def _alike(generator: np.random.Generator, num_keys: int) -> Keys:
    """Returns distinct keys whose logarithms are distributed uniformly."""
    ids = np.unique((num_keys ** generator.random(2 * STEP_KEYS)).astype(np.int64) - 1)
    return _spread(generator.permutation(ids)[:STEP_KEYS])


def _hashed_bytes_a_second() -> float:
    work = bytes(1 << 23)
    start = perf_counter()
    hashlib.sha256(work)
    return len(work) / (perf_counter() - start)


def _zipf(num_keys: int) -> Callable[[np.random.Generator], Keys]:
    """Draws batches of ids with a Zipf distribution; returns the distinct ids."""
    weights = np.arange(1, num_keys + 1, dtype=np.float64) ** -EXPONENT
    bounds = np.cumsum(weights)
    bounds /= bounds[-1]
    return lambda generator: np.unique(np.searchsorted(bounds, generator.random(BATCH_IDS)))


def _spread(ids: npt.NDArray[Any]) -> Keys:
    """Maps ids to keys in the whole range of int64."""
    return ids.astype(np.int64) * np.int64(0x1E3779B97F4A7C15)


def _rows_of(ids: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Returns a different row for each id."""
    return (ids[:, None] % 65_536 + np.arange(DIM)).astype(np.float32)
