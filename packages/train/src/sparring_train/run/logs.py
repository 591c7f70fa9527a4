"""Logs of a run: lines on standard error with the rank, the step and the table."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from sparring import StepContainer
from sparring.errors import SparringError
from sparring_cli import VERBOSE_HANDLER
from sparring_train.config.sections.logging import LoggingConfig

__all__ = ["PROGRESS", "log_output"]

PROGRESS = logging.getLogger("sparring_train.progress")
"""Receives progress of the training if logs are JSON."""

_PACKAGES = (
    "sparring",
    "sparring_hkv",
    "sparring_packed",
    "sparring_redis",
    "sparring_rocksdb",
    "sparring_shm",
    "sparring_tf",
    "sparring_tiered",
    "sparring_torch",
    "sparring_train",
)

_log = logging.getLogger(__name__)


@contextmanager
def log_output(container: StepContainer, chosen: LoggingConfig) -> Iterator[None]:
    """Writes log messages of sparring's packages as configured during the block, and warnings of other
    packages. As JSON, also logs the exception that ends the block."""
    root = logging.getLogger()
    handler = _Handler(container, is_json=chosen.format == "json")
    # The handler of --verbose would print each message a second time, without the rank and the step.
    replaced = [each for each in root.handlers if each.name == VERBOSE_HANDLER]
    for each in replaced:
        root.removeHandler(each)
        handler.filters += each.filters
    level = chosen.level.upper()
    levels = {name: logging.getLogger(name).level for name in _PACKAGES}
    before = PROGRESS.level
    root.addHandler(handler)
    for name in _PACKAGES:
        logging.getLogger(name).setLevel(level)
    PROGRESS.setLevel(logging.INFO)
    try:
        yield
    except BaseException as error:
        if chosen.format == "json":
            _log.critical("%s: %s", type(error).__name__, error, extra=_about(error))
        raise
    finally:
        root.removeHandler(handler)
        for each in replaced:
            root.addHandler(each)
        for name, old in levels.items():
            logging.getLogger(name).setLevel(old)
        PROGRESS.setLevel(before)


def _about(error: BaseException) -> dict[str, Any]:
    details = error.details if isinstance(error, SparringError) else {}
    return {"table": details["table"]} if "table" in details else {}


class _Handler(logging.Handler):
    """Writes to the current standard error, which a progress bar may have redirected."""

    def __init__(self, container: StepContainer, *, is_json: bool) -> None:
        super().__init__()
        self._counters, self._rank = container.counters, container.collective.rank
        self._is_json = is_json

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._json(record) if self._is_json else self._text(record)
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        table = {"table": record.table} if hasattr(record, "table") else {}
        return {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "rank": self._rank,
            "step": self._counters.steps,
            **table,
            "logger": record.name,
        }

    def _json(self, record: logging.LogRecord) -> str:
        fields = self._fields(record) | {"message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        return json.dumps(fields, default=str)

    def _text(self, record: logging.LogRecord) -> str:
        fields = self._fields(record)
        table = f" table {fields['table']}" if "table" in fields else ""
        head = f"{fields['time']} {fields['level']} rank {self._rank} step {fields['step']}{table}"
        trace = ""
        if record.exc_info:
            trace = "\n" + logging.Formatter().formatException(record.exc_info)
        return f"{head}: {record.getMessage()}{trace}"
