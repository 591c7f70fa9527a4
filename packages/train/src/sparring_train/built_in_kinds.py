"""Kinds of data and models that sparring-train registers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sparring.contracts import API_VERSION
from sparring_train.config.sections.data import SyntheticCriteoData
from sparring_train.config.sections.model import DeepFmModel, DlrmModel, MatrixFactorizationModel
from sparring_train.config.sections.ranking_models import SequenceModel, TwoTowersModel
from sparring_train.config.sections.stream import (
    KafkaStreamOptions,
    NatsStreamOptions,
    RedisStreamOptions,
    StreamData,
)
from sparring_train.config.sections.table import TableData
from sparring_train.hookspecs import (
    DataDescriptor,
    JoinStoreDescriptor,
    ModelDescriptor,
    ModelRequest,
    StreamDescriptor,
    TrackerDescriptor,
)
from sparring_train.lazy_import import lazy_import

__all__ = ["data_kinds", "join_stores", "model_kinds", "stream_kinds", "tracker_kinds"]


def data_kinds() -> list[DataDescriptor]:
    """Returns the built-in kinds of data."""
    return [
        DataDescriptor(
            name="synthetic_criteo",
            api_version=API_VERSION,
            summary="A synthetic click log, generated from a known model.",
            section=SyntheticCriteoData,
            open=lazy_import("data.clicks:SyntheticClickDataset"),
        ),
        DataDescriptor(
            name="table",
            api_version=API_VERSION,
            summary="Columns of CSV or Parquet files, or of a table of a lakehouse.",
            section=TableData,
            open=lazy_import("data.table.dataset:open_table"),
            read=lazy_import("data.table.dataset:read_table"),
            pin=lazy_import("data.table.dataset:pin_table"),
        ),
        DataDescriptor(
            name="stream",
            api_version=API_VERSION,
            summary="Events of a message broker, or of files that are added to a folder.",
            section=StreamData,
            open=lazy_import("data.join.dataset:open_stream"),
            read=lazy_import("data.stream.dataset:read_files"),
        ),
    ]


def stream_kinds() -> list[StreamDescriptor]:
    """Returns the built-in kinds of streams."""
    return [
        StreamDescriptor(
            name="folder",
            api_version=API_VERSION,
            summary="A folder to which Parquet files are added.",
            open=lazy_import("data.stream.folder:FolderSource"),
        ),
        StreamDescriptor(
            name="kafka",
            api_version=API_VERSION,
            summary="Topics of Kafka.",
            options=KafkaStreamOptions,
            open=lazy_import("data.stream.kafka:KafkaSource"),
        ),
        StreamDescriptor(
            name="nats",
            api_version=API_VERSION,
            summary="Streams of NATS JetStream.",
            options=NatsStreamOptions,
            open=lazy_import("data.stream.nats:NatsSource"),
        ),
        *(
            StreamDescriptor(
                name=scheme,
                api_version=API_VERSION,
                summary="Redis Streams.",
                options=RedisStreamOptions,
                open=lazy_import("data.stream.redis_streams:RedisSource"),
            )
            for scheme in ("redis", "rediss")
        ),
    ]


def join_stores() -> list[JoinStoreDescriptor]:
    """Returns the built-in stores of open impressions."""
    return [
        JoinStoreDescriptor(
            name="memory",
            api_version=API_VERSION,
            summary="Open impressions in memory.",
            open=lazy_import("data.join.memory_store:MemoryJoinStore"),
        )
    ]


def tracker_kinds() -> list[TrackerDescriptor]:
    """Returns the built-in kinds of trackers."""
    return [
        TrackerDescriptor(
            name="tensorboard",
            api_version=API_VERSION,
            summary="Event files for TensorBoard.",
            open=lazy_import("trackers.tensorboard:TensorBoardTracker"),
            package="tensorboard",
        ),
        TrackerDescriptor(
            name="mlflow",
            api_version=API_VERSION,
            summary="Runs in MLflow.",
            open=lazy_import("trackers.mlflow:MlflowTracker"),
            package="mlflow",
        ),
        TrackerDescriptor(
            name="wandb",
            api_version=API_VERSION,
            summary="Runs in Weights & Biases.",
            open=lazy_import("trackers.wandb:WandbTracker"),
            package="wandb",
        ),
    ]


def model_kinds() -> list[ModelDescriptor]:
    """Returns the built-in kinds of models."""
    return [
        ModelDescriptor(
            name="matrix_factorization",
            api_version=API_VERSION,
            summary="Biased matrix factorization of ratings.",
            section=MatrixFactorizationModel,
            build=_build("models:ColumnFactorization"),
        ),
        ModelDescriptor(
            name="dlrm",
            api_version=API_VERSION,
            summary="Deep learning recommendation model, for clicks.",
            section=DlrmModel,
            build=_build("models:ColumnDLRM"),
        ),
        ModelDescriptor(
            name="deepfm",
            api_version=API_VERSION,
            summary="Factorization machine and dense layers on the same embeddings, for clicks.",
            section=DeepFmModel,
            build=_build("models:ColumnDeepFM"),
        ),
        ModelDescriptor(
            name="two_towers",
            api_version=API_VERSION,
            summary="A user vector and an item vector, for retrieval.",
            section=TwoTowersModel,
            build=_build("ranking_models:TwoTowers"),
        ),
        ModelDescriptor(
            name="sequence",
            api_version=API_VERSION,
            summary="Self-attention over earlier items that predicts the next one.",
            section=SequenceModel,
            build=_build("ranking_models:SequenceNetwork"),
        ),
    ]


def _build(home: str) -> Mapping[str, Callable[[ModelRequest], Any]]:
    """Returns framework → model class. The module and the class have the same name in both packages."""
    return {"torch": lazy_import(f"pytorch.{home}"), "tensorflow": lazy_import(f"keras.{home}")}
