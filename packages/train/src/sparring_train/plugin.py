"""Registers the commands and trainers of sparring-train. Does not import a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, hookimpl
from sparring_train.lazy_import import lazy_import

if TYPE_CHECKING:
    from sparring_cli import JobCheckerDescriptor
    from sparring_serve import EvaluatorDescriptor
    from sparring_train.hookspecs import (
        DataDescriptor,
        JoinStoreDescriptor,
        ModelDescriptor,
        StreamDescriptor,
        TrackerDescriptor,
        TrainerDescriptor,
    )


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        _command("train", "cli.train", "Train", "Train and evaluate the model of a configuration."),
        _command(
            "init", "cli.init.command", "Start", "Write a configuration for files of examples."
        ),
        _command(
            "replay",
            "cli.replay",
            "Train",
            "Train the recorded cuts of a run on a stream again, and compare the result.",
        ),
        _command("config", "cli.config", "Start", "Show or check a configuration."),
        _command("report", "cli.report", "Train", "Compare two runs."),
        _command("get", "cli.get", "Operate", "Show the row of one key."),
        _command(
            "blame",
            "cli.blame",
            "Operate",
            "Show when the row of one key changed, and from which data.",
        ),
        _command(
            "skew",
            "skew.command",
            "Operate",
            "Compare the ids and numbers of served requests with the data of the training.",
        ),
        _command(
            "erase", "cli.erase", "Operate", "Remove ids from all data that a run has stored."
        ),
        _command(
            "evaluate",
            "cli.evaluate",
            _USE,
            "Print the metrics of a saved model on the test examples of its run.",
        ),
        _command(
            "predict",
            "cli.evaluate",
            _USE,
            "Print or write a prediction for each example of a file.",
        ),
        _command("recommend", "cli.recommend", _USE, "Print the best items for a user."),
        _command(
            "neighbors",
            "cli.neighbors",
            _USE,
            "Print the keys whose embeddings are nearest to the embedding of one key.",
        ),
        _command("look", "view.command", _USE, "Show the tables of a snapshot on a local page."),
        _command(
            "export-program",
            "cli.export_program",
            _USE,
            "Write a trained model as a program that runs without Python.",
        ),
    ]


_USE = "Use a trained model"


def _command(name: str, module: str, group: str, summary: str) -> CommandDescriptor:
    register = lazy_import(f"{module}:add_{name.replace('-', '_')}")
    return CommandDescriptor(
        name=name, group=group, api_version=API_VERSION, summary=summary, register=register
    )


@hookimpl(optionalhook=True)
def sparring_register_trainers() -> Sequence[TrainerDescriptor]:
    from sparring_train.hookspecs import TrainerDescriptor

    return [
        TrainerDescriptor(
            name="torch",
            api_version=API_VERSION,
            summary="All built-in models, with PyTorch's optimizers.",
            train=lazy_import("pytorch.trainer:train"),
            open=lazy_import("pytorch.trainer:open_model"),
            export=lazy_import("pytorch.trainer:export"),
            parameters=lazy_import("run.served_model:torch_parameters"),
        ),
        TrainerDescriptor(
            name="tensorflow",
            api_version=API_VERSION,
            summary="All built-in models, with Keras 3's optimizers.",
            train=lazy_import("keras.trainer:train"),
            open=lazy_import("keras.trainer:open_model"),
            export=lazy_import("keras.trainer:export"),
            parameters=lazy_import("run.served_model:keras_parameters"),
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
def sparring_register_streams() -> Sequence[StreamDescriptor]:
    from sparring_train.built_in_kinds import stream_kinds

    return stream_kinds()


@hookimpl(optionalhook=True)
def sparring_register_join_stores() -> Sequence[JoinStoreDescriptor]:
    from sparring_train.built_in_kinds import join_stores

    return join_stores()


@hookimpl(optionalhook=True)
def sparring_register_trackers() -> Sequence[TrackerDescriptor]:
    from sparring_train.built_in_kinds import tracker_kinds

    return tracker_kinds()


@hookimpl(optionalhook=True)
def sparring_register_job_checkers() -> Sequence[JobCheckerDescriptor]:
    from sparring_cli import JobCheckerDescriptor

    return [
        JobCheckerDescriptor(
            name="train",
            api_version=API_VERSION,
            summary="Checks before `sparring train`.",
            check=lazy_import("checks.job:check_job"),
        )
    ]


@hookimpl(optionalhook=True)
def sparring_register_evaluators() -> Sequence[EvaluatorDescriptor]:
    from sparring_serve import EvaluatorDescriptor

    return [
        EvaluatorDescriptor(
            name="train",
            api_version=API_VERSION,
            summary="Models of the configurations of `sparring train`.",
            quality=lazy_import("served_quality:served_quality"),
            model_files=lazy_import("run.served_model:model_files"),
            computed_tables=lazy_import("recommend.served_vectors:item_vectors"),
        )
    ]
