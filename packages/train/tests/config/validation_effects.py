"""Effects of keys about validation rows."""

from __future__ import annotations

from .config_runs import Effects, Runs
from .table_effects import _ran as run_table

__all__ = ["register"]


def register(effects: Effects) -> None:
    """Registers a function that shows the effects of keys of the section `data`."""

    @effects.of("data:synthetic_criteo.validation_samples")
    def _(runs: Runs) -> None:
        few, many = (runs.clicks(f"data.validation_samples={count}") for count in (20, 64))
        assert few.end.validation != many.end.validation
        assert few.losses == runs.clicks().losses

    ways = (
        "fraction", "exact_fraction", "time", "time_from", "column", "files", "leave_one_out", "value",
    )  # fmt: skip

    @effects.of(*(f"data:table.validation.{way}" for way in ways))
    def _(runs: Runs) -> None:
        trained = {}
        for way in (
            "null",
            "{fraction: 0.4}",
            "{exact_fraction: 0.25}",
            "{time: 0.25}",
            "{time_from: 70}",
            "{column: clicked, value: 1}",
            "{leave_one_out: user}",
        ):
            # The column has only one value, for which no AUC is defined.
            watch = () if way == "null" else ("training.watch=log_loss",)
            ran = run_table(runs, "data.time=at", f"data.validation={way}", *watch)
            trained[way] = sum(ran.samples)
            assert (ran.end.best_step is None) == (way == "null")
        assert trained["null"] == 64
        assert trained["{exact_fraction: 0.25}"] == 48
        assert trained["{time: 0.25}"] == 48
        # Places 70 to 79 are 10 rows, two of which are for the test.
        assert trained["{time_from: 70}"] == 56
        assert trained["{leave_one_out: user}"] == 54
        assert trained["{fraction: 0.4}"] < 50
        assert trained["{column: clicked, value: 1}"] < 50
        (runs.folder / "parts").mkdir(exist_ok=True)
        for name in ("table.csv", "fewer.csv"):
            (runs.folder / "parts" / name).write_bytes((runs.folder / name).read_bytes())
        both = run_table(runs, "data.path=parts", "data.validation={files: few*}")
        assert sum(both.samples) == 64
        assert both.end.best_step is not None
