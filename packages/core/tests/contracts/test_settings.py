"""Settings have the same limits in calls and files, and messages name the invalid value."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.settings import choice_type, get_fields
from sparring.contracts.tables.admission import ADMISSIONS, Bloom, Frequency
from sparring.contracts.tables.expiry import Expiry, parse_expiry
from sparring.contracts.tables.initializers import (
    INITIALIZERS,
    Normal,
    TruncatedNormal,
    Uniform,
    Zeros,
)
from sparring.errors import InvalidArgumentError

WRONG: dict[str, tuple[Any, str]] = {
    "text for a number": (lambda: Uniform(low="1"), "low must be a finite number, found '1'"),  # type: ignore[arg-type]
    "below": (lambda: Normal(0.0, -1.0), "normal: stddev must be a finite number of at least 0"),
    "by place": (lambda: Uniform(0.0, np.inf), "uniform: high must be a finite number, found inf"),
    "unknown": (lambda: Uniform(hihg=1.0), "unknown parameter 'hihg'; did you mean 'high'?"),  # type: ignore[call-arg]
    "too many": (lambda: Zeros(1.0), "zeros: unknown parameter 0; known parameters: none"),  # type: ignore[call-arg]
    "missing": (Frequency, "frequency: parameter 'k' is missing"),
    "optional": (
        lambda: Bloom(2, memory_bytes=0),
        r"memory_bytes must be a whole number from 128 to \d+ or None, found 0",
    ),
    "one of a few": (
        lambda: ExchangeOptions(row_wire_dtype="int4"),
        "row_wire_dtype must be one of exact, float32, bfloat16, float16, int8, found 'int4'",
    ),
    "open range": (
        lambda: ExchangeOptions(chunks_in_flight=65),
        "exchange: chunks_in_flight must be a whole number from 1 to 64, found 65",
    ),
    "no limit": (Expiry, "expire: found neither limit; give after_steps or after_days, or both"),
    "no mapping": (lambda: parse_expiry(3), "must be an Expiry or a mapping .* found 3"),  # type: ignore[arg-type]
    "key of a mapping": (lambda: parse_expiry({3: 1}), "expire: unknown parameter '3'"),  # type: ignore[dict-item]
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG)
def test_messages_name_the_invalid_argument_and_the_expected_value(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize("setting", [Uniform(1, 2), Bloom(2), Expiry(3), ExchangeOptions(5)])
def test_settings_are_values(setting: Any) -> None:
    assert replace(setting) == setting == copy.deepcopy(setting)
    assert pickle.loads(pickle.dumps(setting)) == setting
    assert len({setting, replace(setting)}) == 1
    with pytest.raises(FrozenInstanceError):
        setattr(setting, fields(setting)[0].name, 1)


def test_numpy_numbers_are_converted_to_python_numbers() -> None:
    assert type(Normal(np.float32(0.5)).mean) is float
    assert type(Uniform(0, 1).high) is float
    assert type(Frequency(np.int64(3)).k) is int  # type: ignore[arg-type]


def test_exchange_options_accept_names_of_dtypes_and_auto() -> None:
    options = ExchangeOptions("auto", row_wire_dtype="int8")  # type: ignore[arg-type]
    assert options == ExchangeOptions(None, 8, WireDtype.INT8, WireDtype.EXACT)


class Section(BaseModel):
    initializer: choice_type(INITIALIZERS) | None = None  # type: ignore[valid-type]


def test_a_file_gives_a_choice_as_a_name_or_as_a_mapping() -> None:
    read = Section.model_validate
    assert read({"initializer": "zeros"}).initializer == Zeros()
    given = {"initializer": {"kind": "uniform", "low": -1.0, "high": 1.0}}
    assert read(given).initializer == Uniform(-1.0, 1.0)
    assert read(given).model_dump(mode="json") == given
    assert read({"initializer": Normal()}).initializer == Normal()
    with pytest.raises(ValidationError, match=r"initializer\.normal\.stddev"):
        read({"initializer": {"kind": "normal", "stddev": -1}})
    with pytest.raises(ValidationError, match="does not match any of the expected tags: 'zeros'"):
        read({"initializer": "gauss"})


@pytest.mark.parametrize(
    "setting", [*INITIALIZERS.values(), *ADMISSIONS.values(), ExchangeOptions, Expiry]
)
def test_every_field_is_described(setting: type) -> None:
    for name, field in get_fields(setting).items():
        assert name == "kind" or field.description, f"{setting.__name__}.{name}"


def test_a_truncated_normal_has_the_limits_of_a_normal() -> None:
    assert list(get_fields(TruncatedNormal)) == ["kind", "mean", "stddev"]
    with pytest.raises(InvalidArgumentError, match="truncated_normal: stddev"):
        TruncatedNormal(0.0, -1.0)
