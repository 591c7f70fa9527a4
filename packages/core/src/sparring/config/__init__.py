"""Configuration: YAML files and overrides, read into frozen models."""

from __future__ import annotations

from sparring.config.admission import AdmissionConfig
from sparring.config.data import CriteoData, DataConfig, MovieLensData, SyntheticCriteoData
from sparring.config.exchange import ExchangeConfig
from sparring.config.initializer import InitializerConfig
from sparring.config.loading import load_config, parse_config
from sparring.config.metrics import MetricsConfig
from sparring.config.model import DlrmModel, MatrixFactorizationModel, ModelConfig
from sparring.config.optimizer import (
    DenseOptimizer,
    OptimizerChoice,
    OptimizerConfig,
    SparseOptimizer,
)
from sparring.config.problems import Problem
from sparring.config.run import (
    CollectiveConfig,
    RendezvousConfig,
    ReportConfig,
    RunConfig,
    StorageConfig,
)
from sparring.config.snapshots import SnapshotsConfig
from sparring.config.tables import TableOverride, TablesConfig
from sparring.config.training import TrainingConfig
from sparring.config.writing import config_as_yaml

__all__ = [
    "AdmissionConfig",
    "CollectiveConfig",
    "CriteoData",
    "DataConfig",
    "DenseOptimizer",
    "DlrmModel",
    "ExchangeConfig",
    "InitializerConfig",
    "MatrixFactorizationModel",
    "MetricsConfig",
    "ModelConfig",
    "MovieLensData",
    "OptimizerChoice",
    "OptimizerConfig",
    "Problem",
    "RendezvousConfig",
    "ReportConfig",
    "RunConfig",
    "SnapshotsConfig",
    "SparseOptimizer",
    "StorageConfig",
    "SyntheticCriteoData",
    "TableOverride",
    "TablesConfig",
    "TrainingConfig",
    "config_as_yaml",
    "load_config",
    "parse_config",
]
