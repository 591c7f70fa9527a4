"""Reading configurations: defaults, overrides, and the conversion back to YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.tables.admission import Bloom, Frequency
from sparring.contracts.tables.initializers import Normal, Uniform, Zeros
from sparring.contracts.tables.table import TableConfig
from sparring.errors import ConfigError
from sparring_cli import resolve_path
from sparring_train.config.reading.loader import load_config, parse_config
from sparring_train.config.reading.printer import config_as_yaml
from sparring_train.config.run_type import run_type
from sparring_train.config.sections.tables import TablesConfig

RATINGS = """\
data:
  kind: table
  path: ratings.csv
  label: rating
  categorical: [user, item]
  required: [user, item]
model:
  kind: matrix_factorization
"""

CLICKS = """\
data: {kind: table, path: day_0.csv, label: clicked, categorical: [user, item]}
model: {kind: dlrm, bottom_mlp: [32, 16]}
"""


def test_a_short_file_gets_all_defaults() -> None:
    config = parse_config(RATINGS)
    assert config.framework == "torch"
    assert config.storage.backend == "hkv"
    assert config.collective.backend == "auto"
    assert config.rendezvous.backend == "auto"
    assert config.deadline_seconds == 60.0
    assert config.optimizer.sparse.name == "adagrad"
    assert config.training.non_finite_gradients == "raise"
    assert config.report.path is None


def test_the_exchange_section_sets_its_options() -> None:
    assert parse_config(RATINGS).exchange == ExchangeOptions()
    for written, chunk_rows in (("auto", None), ("null", None), ("4096", 4096)):
        text = RATINGS + f"exchange: {{chunk_rows: {written}, row_wire_dtype: int8}}\n"
        options = parse_config(text).exchange
        assert (options.chunk_rows, options.row_wire_dtype) == (chunk_rows, WireDtype.INT8)
    for wrong in ("chunk_rows: 0", "chunk_rows: many", "schedule: tree"):
        with pytest.raises(ConfigError, match=wrong.split(":")[0]):
            parse_config(RATINGS + f"exchange: {{{wrong}}}\n")


def test_settings_that_ranks_compare_exclude_local_ones() -> None:
    shared = parse_config(RATINGS + "threads: 3\nreport: {path: one.html}\n").shared()
    assert shared == parse_config(RATINGS).shared()
    assert shared != parse_config(RATINGS + "seed: 3\n").shared()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        parse_config(RATINGS).seed = 3  # type: ignore[misc]


def test_a_file_is_read_with_its_overrides(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RATINGS)
    assert load_config(path, ["seed=7"]).seed == 7


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + RATINGS.replace("\n", "\r\n").encode())
    assert load_config(path).data.kind == "table"


def hyper(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = config.optimizer.sparse.hyperparameters
    return found


OVERRIDES: list[tuple[str, str, Any]] = [
    (RATINGS, "data.path=a/b.csv", lambda c: c.data.path == "a/b.csv"),
    (RATINGS, "data.path=", None),
    (RATINGS, "data.path=key=value", lambda c: c.data.path == "key=value"),
    (RATINGS, "data.path='2020'", lambda c: c.data.path == "2020"),
    (RATINGS, "data.path=2020-01-01", lambda c: c.data.path == "2020-01-01"),
    (RATINGS, "optimizer.sparse.lr=1e-3", lambda c: c.optimizer.sparse.lr == 0.001),
    (RATINGS, "optimizer.sparse.lr=1", lambda c: c.optimizer.sparse.lr == 1.0),
    (RATINGS, "optimizer.sparse.name=lion", lambda c: "lr" not in hyper(c)),
    (RATINGS, "optimizer.sparse.name=adagrad", lambda c: hyper(c)["lr"] == 0.05),
    (RATINGS, "optimizer.sparse.name=torch.optim:Adagrad", lambda c: hyper(c)["lr"] == 0.05),
    (RATINGS, "optimizer.sparse={name: lion, lr: 0.01}", lambda c: hyper(c)["lr"] == 0.01),
    (RATINGS, "training.steps=null", lambda c: c.training.steps is None),
    (RATINGS, "storage.options={capacity: 10}", lambda c: c.storage.options == {"capacity": 10}),
    (RATINGS, "storage.options.capacity=10", lambda c: c.storage.options == {"capacity": 10}),
    (
        RATINGS,
        "tables.overrides.user.initializer=zeros",
        lambda c: c.tables.overrides["user"].initializer.kind == "zeros",
    ),
    (RATINGS, "tables.initializer=zeros", lambda c: c.tables.initializer.kind == "zeros"),
    (CLICKS, "model.bottom_mlp.1=64", lambda c: c.model.bottom_mlp == (32, 64)),
    (CLICKS, "model.bottom_mlp=[]", lambda c: c.model.bottom_mlp == ()),
    (CLICKS, "data={kind: synthetic_criteo}", lambda c: c.data.kind == "synthetic_criteo"),
]


@pytest.mark.parametrize(("text", "override", "holds"), OVERRIDES)
def test_an_override_replaces_the_value_of_the_file(text: str, override: str, holds: Any) -> None:
    if holds is None:
        with pytest.raises(ValueError, match=r"data\.path is wrong"):
            parse_config(text, [override])
    else:
        assert holds(parse_config(text, [override]))


def test_later_overrides_win() -> None:
    assert parse_config(RATINGS, ["seed=1", "seed=2"]).seed == 2


def test_overrides_may_fill_an_empty_section() -> None:
    config = parse_config(RATINGS + "training:\n", ["training.epochs=2"])
    assert config.training.epochs == 2


def test_an_override_of_one_alias_does_not_change_the_other() -> None:
    text = RATINGS + "optimizer:\n  sparse: &same {name: sgd, lr: 0.1}\n  dense: *same\n"
    config = parse_config(text, ["optimizer.sparse.lr=0.5"])
    assert (config.optimizer.sparse.lr, config.optimizer.dense.lr) == (0.5, 0.1)


def test_yes_and_no_are_text() -> None:
    assert parse_config(RATINGS, ["data.path=no"]).data.path == "no"  # type: ignore[union-attr]


def test_hyperparameters_are_passed_to_the_optimizer_unchanged() -> None:
    config = parse_config(RATINGS, ["optimizer.dense={name: adam, lr: 0.1, betas: [0.8, 0.9]}"])
    assert config.optimizer.dense.hyperparameters == {"lr": 0.1, "betas": [0.8, 0.9]}


def test_the_shown_configuration_reads_back_the_same() -> None:
    config = parse_config(
        CLICKS,
        [
            "tables.initializer={kind: uniform, low: -1, high: 1}",
            "tables.overrides={item: {initializer: zeros}}",
            "optimizer.sparse={name: 'torch.optim:Adam', lr: 1e-7, betas: [0.9, 0.99]}",
            "storage.options={capacity: 10, text: 'null', number: '7'}",
        ],
    )
    assert parse_config(config_as_yaml(config)) == config


@settings(max_examples=50, deadline=None)
@given(
    # Relative paths are normalized: "a/" becomes "a".
    path=st.text(min_size=1, max_size=30).filter(lambda text: os.path.normpath(text) == text),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_text_survives_a_round_trip_through_yaml(path: str, seed: int) -> None:
    config = run_type().model_validate(
        {
            "seed": seed,
            "data": {
                "kind": "table",
                # A configuration contains paths without `.` and without `/` at their ends.
                "path": resolve_path(path, ""),
                "label": "rating",
                "categorical": ["user", "item"],
                "required": ["user", "item"],
                "split": {"exact_fraction": 0.1},
            },
            "model": {"kind": "matrix_factorization"},
        }
    )
    assert parse_config(config_as_yaml(config)) == config


def test_tables_come_from_the_model_the_section_and_their_overrides() -> None:
    section = TablesConfig.model_validate(
        {
            "dtype": "float64",
            "initializer": {"kind": "normal", "stddev": 0.5},
            "overrides": {"item": {"initializer": "zeros"}},
        }
    )
    user = section.table_config(TableConfig("user", 8, seed=3))
    item = section.table_config(TableConfig("item", 8, seed=3))
    assert (user.dim, user.dtype, user.seed, user.initializer) == (
        8,
        "float64",
        3,
        Normal(stddev=0.5),
    )
    assert (item.dim, item.dtype, item.initializer) == (8, "float64", Zeros())


def test_admission_comes_from_the_section_and_its_overrides() -> None:
    text = """
data: {kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}
model: {kind: matrix_factorization}
tables:
  admission: {kind: frequency, k: 3}
  overrides:
    item: {initializer: zeros}
    user: {admission: all}
"""
    for config in (parse_config(text), parse_config(config_as_yaml(parse_config(text)))):
        item = config.tables.table_config(TableConfig("item", 8))
        assert (item.admission, item.initializer) == (Frequency(3), Zeros())
        assert config.tables.table_config(TableConfig("user", 8)).admission is None
        assert config.tables.table_config(TableConfig("third", 8)).admission == Frequency(3)
    bloom = parse_config(text, ["tables.admission={kind: bloom, k: 2, memory_bytes: 4096}"])
    third = bloom.tables.table_config(TableConfig("third", 8))
    assert third.admission == Bloom(2, memory_bytes=4096)


def test_a_model_keeps_its_initializer_unless_one_is_configured() -> None:
    wanted = TableConfig("user", 8, initializer=Uniform(-3.0, 3.0))
    assert TablesConfig().table_config(wanted).initializer == Uniform(-3.0, 3.0)
