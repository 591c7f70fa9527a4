"""The commands and trainers of sparring-train. Importing this imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, hookimpl

if TYPE_CHECKING:
    import typer

    from sparring import PluginManager
    from sparring_serve import EvaluatorDescriptor
    from sparring_train.config.run import RunConfig
    from sparring_train.hookspecs import (
        DataDescriptor,
        ModelDescriptor,
        OpenedModel,
        ProgramRequest,
        SavedModel,
        TrainerDescriptor,
    )
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
            name="init",
            api_version=API_VERSION,
            summary="Write a configuration for files of examples.",
            register=_add_init,
        ),
        CommandDescriptor(
            name="config",
            api_version=API_VERSION,
            summary="Show or check a configuration.",
            register=_add_config,
        ),
        CommandDescriptor(
            name="report",
            api_version=API_VERSION,
            summary="Compare two runs.",
            register=_add_report,
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
            name="evaluate",
            api_version=API_VERSION,
            summary="Print the metrics of a saved model on the test examples of its run.",
            register=_add_evaluate,
        ),
        CommandDescriptor(
            name="predict",
            api_version=API_VERSION,
            summary="Print or write a prediction for each example of a file.",
            register=_add_predict,
        ),
        CommandDescriptor(
            name="recommend",
            api_version=API_VERSION,
            summary="Print the best items for a user.",
            register=_add_recommend,
        ),
        CommandDescriptor(
            name="neighbours",
            api_version=API_VERSION,
            summary="Print the keys whose embeddings are nearest to that of one key.",
            register=_add_neighbours,
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
            open=_open_in_torch,
            export=_export_from_torch,
        ),
        TrainerDescriptor(
            name="tensorflow",
            api_version=API_VERSION,
            summary="DLRM and matrix factorisation with Keras 3's optimizers.",
            train=_train_with_keras,
            open=_open_in_keras,
            export=_export_from_keras,
        ),
    ]


@hookimpl(optionalhook=True)
def sparring_register_data() -> Sequence[DataDescriptor]:
    from sparring_train.built_in_kinds import data_kinds

    return data_kinds()


@hookimpl(optionalhook=True)
def sparring_register_models() -> Sequence[ModelDescriptor]:
    from sparring_train.built_in_kinds import model_kinds

    return model_kinds()


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


def _add_init(app: typer.Typer) -> None:
    from sparring_train.cli.init import add_init

    add_init(app)


def _add_config(app: typer.Typer) -> None:
    from sparring_train.cli.config import add_config

    add_config(app)


def _add_report(app: typer.Typer) -> None:
    from sparring_train.cli.report import add_report

    add_report(app)


def _add_get(app: typer.Typer) -> None:
    from sparring_train.cli.get import add_get

    add_get(app)


def _add_erase(app: typer.Typer) -> None:
    from sparring_train.cli.erase import add_erase

    add_erase(app)


def _add_evaluate(app: typer.Typer) -> None:
    from sparring_train.cli.evaluate import add_evaluate

    add_evaluate(app)


def _add_predict(app: typer.Typer) -> None:
    from sparring_train.cli.evaluate import add_predict

    add_predict(app)


def _add_recommend(app: typer.Typer) -> None:
    from sparring_train.cli.recommend import add_recommend

    add_recommend(app)


def _add_neighbours(app: typer.Typer) -> None:
    from sparring_train.cli.neighbours import add_neighbours

    add_neighbours(app)


def _add_export_program(app: typer.Typer) -> None:
    from sparring_train.cli.export_program import add_export_program

    add_export_program(app)


def _train_with_torch(config: RunConfig, manager: PluginManager, progress: Progress) -> TrainResult:
    from sparring_train.pytorch.trainer import train

    return train(config, manager, progress)


def _train_with_keras(config: RunConfig, manager: PluginManager, progress: Progress) -> TrainResult:
    from sparring_train.keras.trainer import train

    return train(config, manager, progress)


def _open_in_torch(
    config: RunConfig, manager: PluginManager, saved: SavedModel
) -> AbstractContextManager[OpenedModel]:
    from sparring_train.pytorch.trainer import open_model

    return open_model(config, manager, saved)


def _export_from_torch(config: RunConfig, manager: PluginManager, request: ProgramRequest) -> None:
    from sparring_train.pytorch.trainer import export

    export(config, manager, request)


def _export_from_keras(config: RunConfig, manager: PluginManager, request: ProgramRequest) -> None:
    from sparring_train.keras.trainer import export

    export(config, manager, request)


def _open_in_keras(
    config: RunConfig, manager: PluginManager, saved: SavedModel
) -> AbstractContextManager[OpenedModel]:
    from sparring_train.keras.trainer import open_model

    return open_model(config, manager, saved)
