"""Training data: MovieLens ratings, click logs in Criteo format, and a synthetic click log."""

from sparring.data.batches import (
    ClickBatch,
    RatingBatch,
    concatenate,
    rebatch,
    shuffled_batches,
    take,
)
from sparring.data.click_log import ClickLog
from sparring.data.criteo import count_clicks, criteo_files, read_clicks
from sparring.data.criteo_format import (
    COLUMNS,
    MISSING_IDS,
    NUM_FEATURES,
    NUM_INTEGERS,
    transform_integers,
)
from sparring.data.movielens import read_ratings
from sparring.data.planted_model import PlantedModel
from sparring.data.splitting import RatingSplit, is_test_row, split_ratings
from sparring.data.synthetic import SyntheticFiles, best_auc, generate, write_synthetic

__all__ = [
    "COLUMNS",
    "MISSING_IDS",
    "NUM_FEATURES",
    "NUM_INTEGERS",
    "ClickBatch",
    "ClickLog",
    "PlantedModel",
    "RatingBatch",
    "RatingSplit",
    "SyntheticFiles",
    "best_auc",
    "concatenate",
    "count_clicks",
    "criteo_files",
    "generate",
    "is_test_row",
    "read_clicks",
    "read_ratings",
    "rebatch",
    "shuffled_batches",
    "split_ratings",
    "take",
    "transform_integers",
    "write_synthetic",
]
