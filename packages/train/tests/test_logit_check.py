"""A model whose outputs are probabilities is reported, for any batch size."""

from __future__ import annotations

import numpy as np
import pytest

from sparring_train.config.sections.model import DlrmModel
from sparring_train.config.sections.own_model import OwnModel
from sparring_train.loop.logit_check import LogitCheck

OWN = OwnModel(kind="own:Model")


@pytest.mark.parametrize(
    ("batch_size", "mean", "num_batches"),
    [(32, 0.5, 1), (32, 0.1, 20), (4, 0.5, 40), (1, 0.1, 160)],
)
def test_probabilities_are_reported_once_there_are_enough(
    batch_size: int, mean: float, num_batches: int, caplog: pytest.LogCaptureFixture
) -> None:
    check = LogitCheck(OWN)
    outputs = np.full(batch_size, mean)
    for _ in range(num_batches - 1):
        check.observe(outputs)
    assert not check.is_decided
    check.observe(outputs)
    assert check.is_decided
    assert "model.kind: own:Model returned numbers from" in caplog.text


@pytest.mark.parametrize("batch_size", [1, 32])
def test_outputs_outside_of_0_and_1_are_logits(
    batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    check = LogitCheck(OWN)
    check.observe(np.full(batch_size, -0.1))
    assert check.is_decided
    assert caplog.text == ""


def test_a_built_in_model_is_not_accused_of_a_sigmoid() -> None:
    assert LogitCheck(DlrmModel(kind="dlrm")).is_decided
