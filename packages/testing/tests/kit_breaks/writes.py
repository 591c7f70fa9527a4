"""Bugs of `upsert`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores
from sparring.storage.memory import MemoryStorage

from .registry import Found, caught_by, put


@caught_by("test_upsert_is_visible_to_next_find")
class UpsertWaitsForTheNextUpsert(MemoryStorage):
    _waiting: tuple[Keys, Rows] | None = None

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        if self._waiting:
            put(self, *self._waiting)
        self._waiting = keys.copy(), rows.copy()
        return self._nothing_evicted()


@caught_by("test_last_upsert_wins")
class FirstUpsertWins(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        is_new = np.array([key not in self._entries for key in keys.tolist()])
        return put(self, keys[is_new], rows[is_new])


@caught_by("test_whole_rows_are_replaced")
class UpsertAdds(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        old = self.find(keys).rows
        old[:, : self.table.dim] = 0  # only the state is added to
        return put(self, keys, rows + old)


@caught_by("test_every_int64_is_a_valid_key")
class KeepsMinusOneForItself(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys[keys != -1], rows[keys != -1])


@caught_by("test_single_extreme_key_is_stored")
class TakesTheSmallestKeyForAMissingOne(MemoryStorage):
    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys, columns, rows, found)
        found[keys == -(2**63)] = True


@caught_by("test_neighboring_and_aligned_keys_are_kept_apart")
class ForgetsTheUpperHalfOfKeys(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys & 0xFFFFFFFF, rows)

    def _find_impl(self, keys: Keys, columns: Columns, rows: Rows, found: Found) -> None:
        super()._find_impl(keys & 0xFFFFFFFF, columns, rows, found)


@caught_by("test_row_bits_are_preserved")
class LosesTheSignOfZero(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys, np.where(rows == 0, 0, rows).astype(rows.dtype))


@caught_by("test_row_bits_are_preserved")
class LosesThePayloadOfNaN(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys, np.where(np.isnan(rows), np.nan, rows).astype(rows.dtype))


@caught_by("test_rows_of_every_dim")
class RoundsToFloat32(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys, rows.astype(np.float32).astype(rows.dtype))


@caught_by("test_rows_of_every_dim")
class ForgetsColumnsBeyond512(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        cut = rows.copy()
        cut[:, 512:] = 0
        return put(self, keys, cut)


@caught_by("test_state_behind_the_embedding_is_part_of_the_row")
class ForgetsState(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        cut = rows.copy()
        cut[:, self.table.dim :] = 0
        return put(self, keys, cut)


@caught_by("test_state_of_16_bit_rows_is_float32_bit_for_bit")
class TakesRowsThroughFloat32(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        with np.errstate(invalid="ignore"):  # halves of a float32 may look like signalling NaNs
            return put(self, keys, rows.astype(np.float32).astype(rows.dtype))


@caught_by("test_call_of_a_million_rows")
class ForgetsWhatIsBeyondAHundredThousand(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys[:100_000], rows[:100_000])


@caught_by("test_calls_of_one_row")
class NeedsTwoRows(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return put(self, keys, rows) if len(keys) > 1 else self._nothing_evicted()


@caught_by("test_upsert_accepts_known_and_new_keys_in_one_call")
class UpsertUpdatesOrInserts(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        is_known = self.find(keys).found
        chosen = is_known if is_known.any() else ~is_known
        return put(self, keys[chosen], rows[chosen])


@caught_by("test_upsert_below_the_capacity_evicts_nothing")
class UpsertReturnsWhatItWrote(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        put(self, keys, rows)
        return EvictedRows(keys, rows, np.zeros(len(keys), np.uint64))


@caught_by("test_strided_and_converted_arrays_are_read_correctly")
class UpsertReadsMemoryInOrder(MemoryStorage):
    def upsert(self, keys: npt.ArrayLike, rows: npt.ArrayLike, *parts: Any) -> EvictedRows:
        array = np.asarray(rows)
        return super().upsert(keys, array.ravel(order="K").reshape(array.shape), *parts)
