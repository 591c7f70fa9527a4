"""Effects of keys about validation rows."""

from __future__ import annotations

import pytest

from sparring.errors import ConfigError

from .config_runs import FILES, Effects, Runs
from .table_effects import _ran as run_table

__all__ = ["register"]


def register(effects: Effects) -> None:
    """Registers what shows the effects of keys of the section `data`."""

    @effects.of("data:movielens.validation_fraction")
    def _(runs: Runs) -> None:
        assert runs.ratings().end.best_step is None
        validated = runs.ratings("data.validation_fraction=0.5")
        assert validated.end.best_step == 2  # 27 of 54 ratings are left, 16 in a step
        assert validated.end.validation.keys() == {"rmse"}

    @effects.of("data:criteo.validation_fraction", "data:criteo.validation_path")
    def _(runs: Runs) -> None:
        plain = runs.clicks(FILES)
        part = runs.clicks(FILES, "data.validation_fraction=0.5")
        file = runs.clicks(FILES, "data.validation_path=clicks/test.tsv")
        assert sum(part.samples) < sum(plain.samples) == sum(file.samples)
        assert part.end.validation
        assert file.end.validation
        with pytest.raises(ConfigError, match="takes one source of samples for validation"):
            runs.clicks(
                FILES, "data.validation_fraction=0.5", "data.validation_path=clicks/test.tsv"
            )

    @effects.of("data:synthetic_criteo.validation_samples")
    def _(runs: Runs) -> None:
        few, many = (runs.clicks(f"data.validation_samples={count}") for count in (20, 64))
        assert few.end.validation != many.end.validation
        assert few.losses == runs.clicks().losses

    ways = ("fraction", "time", "time_from", "column", "leave_one_out", "value")

    @effects.of(*(f"data:table.validation.{way}" for way in ways))
    def _(runs: Runs) -> None:
        trained = {}
        for way in (
            "null",
            "{fraction: 0.4}",
            "{time: 0.25}",
            "{time_from: 70}",
            "{column: clicked, value: 1}",
            "{leave_one_out: user}",
        ):
            # The column has one value only, for which no AUC is defined.
            watch = () if way == "null" else ("training.watch=log_loss",)
            ran = run_table(runs, "data.time=at", f"data.validation={way}", *watch)
            trained[way] = sum(ran.samples)
            assert (ran.end.best_step is None) == (way == "null")
        assert trained["null"] == 64
        assert trained["{time: 0.25}"] == 48
        # Places 70 to 79 are 10 rows, of which two are for the test.
        assert trained["{time_from: 70}"] == 56
        assert trained["{leave_one_out: user}"] == 54
        assert trained["{fraction: 0.4}"] < 50
        assert trained["{column: clicked, value: 1}"] < 50
