"""`LogitCheck`: detects models that return probabilities although their loss expects logits."""

from __future__ import annotations

import logging
from typing import Any

import numpy.typing as npt

from sparring_train.built_in_kinds import model_kinds
from sparring_train.config.sections.kinds import ModelSection

__all__ = ["LogitCheck"]

_log = logging.getLogger(__name__)

_MIN_EXAMPLES = 8
_MAX_BATCHES = 20
_FRESH_SIGMOID = (0.35, 0.65)
"""Range of the mean output of an untrained model that ends with a sigmoid."""


class LogitCheck:
    """Checks the outputs of the first batches.

    Outputs outside [0, 1] are logits. Outputs inside are probabilities if their mean is close to 1/2 in
    the first batch, or if no output of several batches is outside: untrained logits may all be slightly
    positive.

    Args:
        model: the section of the model. Built-in models return logits.
    """

    def __init__(self, model: ModelSection) -> None:
        self._kind = model.kind
        self._num_batches = self._num_examples = 0
        self.is_decided = any(type(model) is each.section for each in model_kinds())

    def observe(self, outputs: npt.NDArray[Any]) -> None:
        """Logs a warning if the model returns probabilities.

        Args:
            outputs: outputs of the model for a batch, ``(b,)``.
        """
        if not len(outputs):
            return
        least, largest, mean = float(outputs.min()), float(outputs.max()), float(outputs.mean())
        if least < 0 or largest > 1:
            self.is_decided = True
            return
        self._num_batches += 1
        self._num_examples += len(outputs)
        is_first = self._num_batches == 1 and len(outputs) >= _MIN_EXAMPLES
        is_fresh = is_first and _FRESH_SIGMOID[0] <= mean <= _FRESH_SIGMOID[1]
        has_enough = self._num_examples >= _MAX_BATCHES * _MIN_EXAMPLES
        if is_fresh or (has_enough and self._num_batches >= _MAX_BATCHES):
            self.is_decided = True
            _log.warning(
                "model.kind: %s returned numbers from %.4g to %.4g, which look like probabilities; its "
                "loss expects logits and applies the sigmoid itself. Remove the sigmoid from the model's "
                "last layer, or it trains worse",
                self._kind,
                least,
                largest,
            )
