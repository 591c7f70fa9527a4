"""Every key of a configuration has an effect on `sparring train`: training, snapshots, ranks, what
is written, and any section that `test_effects` does not have.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from sparring.cli.application import main
from sparring.errors import (
    ConfigError,
    DeadlineError,
    InvalidArgumentError,
    NonFiniteGradientError,
)
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots
from sparring.snapshot.writer import SnapshotWriter
from sparring_train.metrics_files.prometheus import PrometheusPage
