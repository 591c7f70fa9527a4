"""`train`: runs `sparring train` on the workers of Ray Train."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring import make_plugin_manager
from sparring.errors import ConfigError, InvalidArgumentError
from sparring_ray.ray_import import import_ray
from sparring_ray.section import RayData
from sparring_ray.snapshot_reports import SnapshotReports
from sparring_train import (
    RunConfig,
    TrainResult,
    config_as_yaml,
    find_trainer,
    keep_freed_memory,
    load_config,
    parse_config,
)

__all__ = ["train"]

_MAX_FAILURES = 10


def train(
    config: str | os.PathLike[str],
    num_workers: int | tuple[int, int] = 1,
    *,
    datasets: Mapping[str, Any] | None = None,
    scaling: Mapping[str, Any] | None = None,
    run_config: Any = None,
    **overrides: Any,
) -> Any:
    """Trains the model of a configuration on Ray Train.

    Ray starts the workers, connects them, and starts them again when one fails or when their number
    changes. The run then continues from its newest snapshot, as `sparring train --resume` does, also
    from a snapshot of an earlier call. Each snapshot is reported to Ray by its URL.

    Args:
        config: a configuration of `sparring train` with ``snapshots.url``. All workers must be able to
            read its data and to write its snapshots.
        num_workers: number of workers; or the minimum and the maximum, between which Ray chooses by
            the resources of the cluster.
        datasets: name → `ray.data.Dataset`, for ``data.kind: ray``.
        scaling: further arguments of `ray.train.ScalingConfig`, such as ``resources_per_worker``.
        run_config: a `ray.train.RunConfig`. By default, Ray keeps its records in the folder ``ray`` of
            ``snapshots.url``, and the run survives 10 failures.
        overrides: values that replace values of the configuration: ``seed=2``, or
            ``**{"training.epochs": 3}``.

    Returns:
        The `ray.train.Result`. Its ``metrics`` contain ``step``, ``snapshot`` (a URL), ``world_size``
        and the metrics on the test rows; its ``return_value`` is a `sparring_train.TrainResult`.

    Raises:
        ConfigError: the configuration is invalid, has no ``snapshots.url``, or uses another framework
            than PyTorch.
        InvalidArgumentError: `num_workers` is invalid, or the configuration needs other `datasets`.
        PluginError: Ray is not installed.
    """
    _check_num_workers(num_workers)
    given = _read_config(config, overrides)
    _check_datasets(given, datasets or {})
    ray_train = import_ray("ray.train")
    # Workers read the same test rows in the same order, and training rows in a reproducible one.
    options = import_ray("ray.data").ExecutionOptions(preserve_order=True)
    split = [given.data.train] if isinstance(given.data, RayData) else []
    trainer = import_ray("ray.train.torch").TorchTrainer(
        _run_worker,
        train_loop_config={"config": config_as_yaml(given)},
        scaling_config=ray_train.ScalingConfig(num_workers=num_workers, **(scaling or {})),
        run_config=run_config
        or ray_train.RunConfig(
            name="ray",
            storage_path=given.snapshots.url,
            failure_config=ray_train.FailureConfig(max_failures=_MAX_FAILURES),
        ),
        datasets=dict(datasets or {}),
        dataset_config=ray_train.DataConfig(split, execution_options=options),
    )
    return trainer.fit()


def _check_num_workers(num_workers: int | tuple[int, int]) -> None:
    least, most = num_workers if isinstance(num_workers, tuple) else (num_workers, num_workers)
    if not 1 <= least <= most:
        raise InvalidArgumentError(
            f"num_workers: found {num_workers!r}, expected a number of at least 1, or a pair of the "
            "minimum and the maximum"
        )


def _check_datasets(config: RunConfig, datasets: Mapping[str, Any]) -> None:
    """Workers that do not find a Dataset would be started again and again."""
    data = config.data
    expected = (data.train, data.test) if isinstance(data, RayData) else ()
    wanted = {name for name in expected if name is not None}
    if wanted != set(datasets):
        raise InvalidArgumentError(
            f"datasets: found {', '.join(datasets) or 'none'}, expected "
            f"{', '.join(sorted(wanted)) or 'none'} for data.kind: {data.kind}; pass the Datasets that "
            "the keys train and test name, or change these keys"
        )


def _read_config(config: str | os.PathLike[str], overrides: Mapping[str, Any]) -> RunConfig:
    """Returns the configuration with absolute paths, so that each worker reads the same files."""
    given = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    # Also rejects a configuration without snapshots, from which workers load their rows again.
    resuming = [*given, "snapshots.resume=true"]
    manager = make_plugin_manager()
    read = load_config(config, resuming, plugin_manager=manager)
    # Paths in overrides start at the current folder, which differs on workers.
    read = parse_config(config_as_yaml(read), folder=str(Path.cwd()), plugin_manager=manager)
    if read.framework != "torch":
        raise ConfigError(
            f"{config}: found framework: {read.framework}, expected torch, because Ray connects the "
            "workers with PyTorch; start other frameworks with mpiexec",
            setting="framework",
        )
    return read


def _run_worker(settings: Mapping[str, Any]) -> TrainResult | None:
    """Trains on one worker. Returns the result on the first one."""
    keep_freed_memory()
    manager = make_plugin_manager()
    config = parse_config(settings["config"], source="sparring_ray.train", plugin_manager=manager)
    reports = SnapshotReports()
    result = find_trainer(config.framework, manager).train(config, manager, reports)
    reports.finish()
    return result if result.rank == 0 else None
