"""Bugs of `update`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import Storage
from sparring.storage.memory import MemoryStorage

from .registry import caught_by


@caught_by("test_update_leaves_the_rows_that_find_and_upsert_would")
class UpdateForgetsTheLastKey(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        some, values = np.asarray(keys)[:-1], np.asarray(gradients)[:-1]
        return super().update(some, values, choice) + 1 if len(some) else 1


@caught_by("test_update_of_many_keys_changes_each_once")
class UpdatesTwiceWhereThereIsMuchToDo(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        if len(np.asarray(keys)) > 1000:
            super().update(keys, gradients, choice)
        return super().update(keys, gradients, choice)


@caught_by("test_new_keys_of_an_update_start_from_their_initial_row")
class NewKeysStartFromZeros(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        known = self.find(keys).found
        missing = np.asarray(keys)[~known]
        self.upsert(missing, np.zeros((len(missing), self.table.width), self.table.numpy_dtype))
        return super().update(keys, gradients, choice)


@caught_by("test_update_of_no_keys_changes_nothing")
class AnEmptyUpdateClears(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        if not len(np.asarray(keys)):
            self.clear()
        return super().update(keys, gradients, choice)


@caught_by("test_refused_update_changes_nothing")
class RefusesAnUpdateTooLate(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        self.upsert([99], np.ones((1, self.table.width), self.table.numpy_dtype))
        updated = super().update(keys, gradients, choice)
        self.erase([99])
        return updated


@caught_by("test_update_with_gradients_that_are_not_finite_changes_nothing")
class TakesInfinityForANumber(MemoryStorage):
    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: Any) -> int:
        return Storage.update(self, keys, np.nan_to_num(np.asarray(gradients)), choice)
