"""``sparring train FILE``: writes a configuration for a file of examples, and numbers its runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from sparring import PluginManager
from sparring.errors import ConfigError, DataError
from sparring_cli import make_console, print_json, print_note
from sparring_train.cli.init.command import understand
from sparring_train.cli.init.ranking import RankingKind
from sparring_train.config.reading.loader import parse_config

__all__ = ["train_file"]

_WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Variables in which torchrun and mpiexec tell the number of ranks."""


def train_file(
    path: str,
    words: Sequence[str],
    model: RankingKind | None,
    manager: PluginManager,
    *,
    accepts_defaults: bool,
    is_dry_run: bool,
    as_json: bool,
    resumes: bool,
) -> tuple[str, list[str]] | None:
    """Prints what was understood of a file of examples, and writes a configuration for it.
    Each run has a new folder: `run`, `run-2`, and so on.

    Args:
        path: the file.
        words: roles of columns and keys of the configuration.
        model: model that ranks items; None chooses a model.
        manager: the plugins.
        accepts_defaults: whether doubts are decided by their defaults.
        is_dry_run: whether to write nothing.
        as_json: whether a dry run prints JSON.
        resumes: whether the last run is resumed.

    Returns:
        The configuration, and values that replace its values; None after a dry run.

    Raises:
        ConfigError: the configuration cannot be used, for example because a storage is not installed,
            or there are several ranks.
        DataError: the file was not understood, or the configuration cannot be written.
    """
    # The name without the marks of a pattern, for example `part` for part-*.parquet.
    stem = re.sub(r"[^0-9A-Za-z_-]+", "", path.rstrip("/").rpartition("/")[2].partition(".")[0])
    stem = stem.strip("-") or "my"
    if any(os.environ.get(each, "1") != "1" for each in _WORLD_SIZES):
        chosen = " ".join(map(shlex.quote, (path, *words)))
        raise ConfigError(
            f"training on {path}: found several ranks, each of which would write {stem}.yaml; run once: "
            f"sparring init {chosen} --output {stem}.yaml; then train on all ranks with {stem}.yaml"
        )
    is_reported = any(each.startswith(("report=", "report.path=")) for each in words)
    can_report = find_spec("matplotlib") is not None
    more = () if is_reported or not can_report else ("report.path=report.html",)
    found = understand(
        path, words, model, command="train", more=more, accepts_defaults=accepts_defaults
    )
    if is_dry_run and as_json:
        print_json(found.as_json())
        return None
    found.show(make_console(is_error=True))
    if is_dry_run:
        return None
    if not can_report and not is_reported:
        print_note(
            "no report is written, because matplotlib is not installed; run: pip install "
            "'sparring[report]'"
        )
    parse_config(found.text, source=f"{stem}.yaml (not written)", plugin_manager=manager)
    written, is_new = _write(stem, found.text)
    values: list[str] = []
    run = "run"
    if not any(each.startswith(("snapshots=", "snapshots.url=")) for each in words):
        number = _next_run()
        number -= 1 if resumes and number > 1 else 0
        if number > 1:
            run = f"run-{number}"
            values = [f"snapshots.url={run}"]
            if can_report and not is_reported:
                values.append(f"report.path=report-{number}.html")
    verb = "wrote the configuration" if is_new else "used the unchanged configuration"
    print_note(f"{verb} {written}; to change it: sparring train {written}")
    if values:
        print_note(f"this run is in the folder {run}, because an earlier one exists")
    return written, values


def _write(stem: str, text: str) -> tuple[str, bool]:
    """Writes a configuration, or finds an equal one. Returns its name, and whether it is new."""
    number = 1
    while True:
        name = f"{stem}.yaml" if number == 1 else f"{stem}-{number}.yaml"
        try:
            with Path(name).open("x", encoding="utf-8") as file:
                file.write(text)
            return name, True
        except FileExistsError:
            if Path(name).is_file() and Path(name).read_text("utf-8", "replace") == text:
                return name, False
            number += 1
        except OSError as error:
            raise DataError(
                f"writing {name} failed: {error.strerror or error}; run the command in a folder in which "
                "you may write",
                path=name,
            ) from error


def _next_run() -> int:
    """Returns the number of the first folder of runs that is missing or empty."""
    number = 1
    while (folder := Path("run" if number == 1 else f"run-{number}")).exists():
        if folder.is_dir() and not any(folder.iterdir()):
            break
        number += 1
    return number
