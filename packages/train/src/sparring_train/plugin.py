"""The commands and trainers of sparring-train. Importing this imports no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, hookimpl

if TYPE_CHECKING:
    import typer

    from sparring import PluginManager
    from sparring_serve import EvaluatorDescriptor
    from sparring_train.config.run import RunConfig
    from sparring_train.hookspecs import ProgramRequest, TrainerDescriptor
    from sparring_train.result import Progress, TrainResult


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="train",
            api_version=API_VERSION,
            summary="Train and evaluate what a configuration describes.",
            register=_add_train,
        ),
        CommandDescriptor(
            name="config",
            api_version=API_VERSION,
            summary="Show or check a configuration.",
            register=_add_config,
        ),
        CommandDescriptor(
            name="get",
            api_version=API_VERSION,
            summary="Show the row of one key.",
            register=_add_get,
        ),
        CommandDescriptor(
            name="erase",
            api_version=API_VERSION,
            summary="Remove ids from everything that a run has left.",
            register=_add_erase,
        ),
        CommandDescriptor(
            name="export-program",
            api_version=API_VERSION,
            summary="Write a trained model as a program that runs without Python.",
            register=_add_export_program,
        ),
    ]


@hookimpl(optionalhook=True)
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    from sparring_train.hookspecs import TrainerDescriptor

    return [
        TrainerDescriptor(
            name="torch",
            api_version=API_VERSION,
            summary="DLRM and matrix factorisation with torch's own optimizers.",
            train=_train_with_torch,
            evaluate=_evaluate_with_torch,
            export=_export_from_torch,
        ),
        TrainerDescriptor(
            name="tensorflow",
            api_version=API_VERSION,
            summary="DLRM and matrix factorisation with Keras 3's optimizers.",
            train=_train_with_keras,
            evaluate=_evaluate_with_keras,
            export=_export_from_keras,
        ),
    ]


@hookimpl(optionalhook=True)
def sparring_register_evaluators() -> Sequence[EvaluatorDescriptor]:
    from sparring_serve import EvaluatorDescriptor
    from sparring_train.served_quality import served_quality

    return [
        EvaluatorDescriptor(
            name="train",
            api_version=API_VERSION,
            summary="Models of the configurations of `sparring train`.",
            quality=served_quality,
        )
    ]


def _add_train(app: typer.Typer) -> None:
    from sparring_train.cli.train import add_train

    add_train(app)


def _add_config(app: typer.Typer) -> None:
    from sparring_train.cli.config import add_config

    add_config(app)


def _add_get(app: typer.Typer) -> None:
    from sparring_train.cli.get import add_get

    add_get(app)


def _add_erase(app: typer.Typer) -> None:
    from sparring_train.cli.erase import add_erase

    add_erase(app)


def _add_export_program(app: typer.Typer) -> None:
    from sparring_train.cli.export_program import add_export_program

    add_export_program(app)


def _train_with_torch(config: RunConfig, manager: PluginManager, progress: Progress) -> TrainResult:
    from sparring_train.pytorch.trainer import train

    return train(config, manager, progress)


def _train_with_keras(config: RunConfig, manager: PluginManager, progress: Progress) -> TrainResult:
    from sparring_train.keras.trainer import train

    return train(config, manager, progress)


def _evaluate_with_torch(
    config: RunConfig, manager: PluginManager, snapshot_url: str
) -> Mapping[str, float]:
    from sparring_train.pytorch.trainer import evaluate

    return evaluate(config, manager, snapshot_url)


def _export_from_torch(config: RunConfig, manager: PluginManager, request: ProgramRequest) -> None:
    from sparring_train.pytorch.trainer import export

    export(config, manager, request)


def _export_from_keras(config: RunConfig, manager: PluginManager, request: ProgramRequest) -> None:
    from sparring_train.keras.trainer import export

    export(config, manager, request)


def _evaluate_with_keras(
    config: RunConfig, manager: PluginManager, snapshot_url: str
) -> Mapping[str, float]:
    from sparring_train.keras.trainer import evaluate

    return evaluate(config, manager, snapshot_url)
