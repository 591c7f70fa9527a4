"""`recommend`: computes recommendations for many users with actors of Ray Data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparring import open_snapshot
from sparring.errors import InvalidArgumentError
from sparring_ray.ray_import import import_ray
from sparring_train import (
    PartsResult,
    RecommendationOptions,
    compute_parts,
    count_parts,
    open_recommendations,
)

__all__ = ["recommend"]


@dataclass(frozen=True, slots=True)
class _Request:
    """Arguments of `open_recommendations`, which are equal on all workers."""

    snapshot: str
    output: str
    options: RecommendationOptions
    overrides: tuple[str, ...]


def recommend(
    snapshot: str,
    output: str,
    options: RecommendationOptions,
    num_workers: int = 1,
    *,
    overrides: Sequence[str] = (),
) -> PartsResult:
    """Writes the best items for many users, as `sparring recommend --output` does.

    Each worker is an actor of Ray Data with one logical processor. It opens the model once, maps the
    vectors of the items that the first worker stores in `output`, and computes one part after another.
    The bytes of the parts do not depend on the number of workers. A further call computes the parts that
    are missing.

    Args:
        snapshot: URL of a snapshot of a run.
        output: folder or URL of the result, which all workers can write.
        options: users, items and search, see `sparring_train.RecommendationOptions`.
        num_workers: number of workers.
        overrides: ``dotted.key=value`` for the configuration of the run, such as ``data.path=moved``.

    Returns:
        The numbers of parts that were computed and that existed.

    Raises:
        InvalidArgumentError: `num_workers` is less than 1.
        PluginError: Ray is not installed.
    """
    if num_workers < 1:
        raise InvalidArgumentError(
            f"num_workers: found {num_workers}, expected a number of at least 1"
        )
    ray, data = import_ray("ray"), import_ray("ray.data")
    # Workers have other current folders.
    snapshot, output = (
        each if "://" in each else str(Path(each).absolute()) for each in (snapshot, output)
    )
    request = _Request(snapshot, output, options.with_absolute_paths(), tuple(overrides))
    # Also stores the vectors of the items, which all workers need.
    num_parts = ray.get(ray.remote(num_cpus=1)(_count).remote(request))
    # `data.range` would need a processor for its own tasks, but the actors may occupy all.
    numbers = [{"id": part} for part in range(num_parts)]
    done = (
        data.from_items(numbers, override_num_blocks=num_parts)
        .map_batches(
            _Worker,
            fn_constructor_args=(request,),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=num_workers),
            num_cpus=1,
        )
        .take_all()
    )
    computed = sum(int(each["computed"]) for each in done)
    is_complete = any(bool(each["is_complete"]) for each in done)
    return PartsResult(computed, num_parts - computed, is_complete)


def _count(request: _Request) -> int:
    with ExitStack() as stack:
        return count_parts(_open(request, stack))


class _Worker:
    """An actor that computes parts."""

    def __init__(self, request: _Request) -> None:
        # Kept, so that the model stays open until Ray ends the process.
        self._stack = ExitStack()
        self._job = _open(request, self._stack)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        result = compute_parts(self._job, self._job.output, batch["id"].tolist())
        return {
            "computed": np.array([result.num_computed]),
            "is_complete": np.array([result.is_complete]),
        }


def _open(request: _Request, stack: ExitStack) -> Any:
    return stack.enter_context(
        open_recommendations(
            open_snapshot(request.snapshot),
            request.output,
            request.options,
            overrides=request.overrides,
        )
    )
