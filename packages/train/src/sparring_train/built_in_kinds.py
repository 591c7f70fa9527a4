"""Kinds of data and of models that sparring-train itself registers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparring.contracts import API_VERSION
from sparring_train.config.data import CriteoData, MovieLensData, SyntheticCriteoData
from sparring_train.config.model import DeepFmModel, DlrmModel, MatrixFactorizationModel
from sparring_train.config.ranking_models import SequenceModel, TwoTowersModel
from sparring_train.config.table import TableData
from sparring_train.data.columns import ColumnBatch
from sparring_train.data.dataset import Dataset, OpenRequest
from sparring_train.hookspecs import DataDescriptor, ModelDescriptor, ModelRequest

__all__ = ["data_kinds", "model_kinds"]


def data_kinds() -> list[DataDescriptor]:
    """Data that is read without a plugin."""
    return [
        DataDescriptor(
            name="movielens",
            api_version=API_VERSION,
            summary="Ratings in MovieLens' format.",
            section=MovieLensData,
            open=_open_ratings,
            read=_read_ratings,
        ),
        DataDescriptor(
            name="criteo",
            api_version=API_VERSION,
            summary="Click logs in Criteo's format, as text or Parquet.",
            section=CriteoData,
            open=_open_clicks,
            read=_read_clicks,
        ),
        DataDescriptor(
            name="synthetic_criteo",
            api_version=API_VERSION,
            summary="A click log that is made, of a known model.",
            section=SyntheticCriteoData,
            open=_open_synthetic_clicks,
        ),
        DataDescriptor(
            name="table",
            api_version=API_VERSION,
            summary="Rows of CSV or Parquet files, by column.",
            section=TableData,
            open=_open_table,
            read=_read_table,
        ),
    ]


def model_kinds() -> list[ModelDescriptor]:
    """Models that are built without a plugin."""
    return [
        ModelDescriptor(
            name="matrix_factorization",
            api_version=API_VERSION,
            summary="Biased matrix factorisation of ratings.",
            section=MatrixFactorizationModel,
            build=_build("build_matrix_factorization"),
        ),
        ModelDescriptor(
            name="dlrm",
            api_version=API_VERSION,
            summary="Deep learning recommendation model, for clicks.",
            section=DlrmModel,
            build=_build("build_dlrm"),
        ),
        ModelDescriptor(
            name="deepfm",
            api_version=API_VERSION,
            summary="Factorisation machine and layers over the same embeddings, for clicks.",
            section=DeepFmModel,
            build=_build("build_deepfm"),
        ),
        ModelDescriptor(
            name="two_towers",
            api_version=API_VERSION,
            summary="A vector of a user and one of an item, for retrieval.",
            section=TwoTowersModel,
            build=_build("build_two_towers"),
        ),
        ModelDescriptor(
            name="sequence",
            api_version=API_VERSION,
            summary="Self-attention over the items before, for the next one.",
            section=SequenceModel,
            build=_build("build_sequence"),
        ),
    ]


def _build(name: str) -> Mapping[str, Callable[[ModelRequest], Any]]:
    """Framework → the function of this name that builds a model for it."""
    return {"torch": _imported("pytorch", name), "tensorflow": _imported("keras", name)}


def _imported(room: str, name: str) -> Callable[[ModelRequest], Any]:
    """A function whose module imports a framework: by its first call."""

    def build(request: ModelRequest) -> Any:
        return getattr(importlib.import_module(f"sparring_train.{room}.models"), name)(request)

    return build


def _open_ratings(section: MovieLensData, request: OpenRequest) -> Dataset:
    from sparring_train.data.ratings import RatingDataset

    return RatingDataset(section, request)


def _read_ratings(section: MovieLensData, path: str) -> Iterator[ColumnBatch]:
    from sparring_train.data.ratings import read_examples

    return read_examples(section, path)


def _open_clicks(section: CriteoData, request: OpenRequest) -> Dataset:
    from sparring_train.data.clicks import ClickDataset

    return ClickDataset(section, request)


def _read_clicks(section: CriteoData, path: str) -> Iterator[ColumnBatch]:
    from sparring_train.data.clicks import read_examples

    return read_examples(section, path)


def _open_synthetic_clicks(section: SyntheticCriteoData, request: OpenRequest) -> Dataset:
    from sparring_train.data.clicks import SyntheticClickDataset

    return SyntheticClickDataset(section, request)


def _open_table(section: TableData, request: OpenRequest) -> Dataset:
    from sparring_train.data.table.dataset import open_table

    return open_table(section, request)


def _read_table(section: TableData, path: str) -> Iterator[ColumnBatch]:
    from sparring_train.data.table.dataset import read_table

    return read_table(section, path)
