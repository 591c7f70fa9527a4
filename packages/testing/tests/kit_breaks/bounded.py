"""Bugs of capacity, eviction and scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparring.contracts.storage.results import EvictedRows, Keys, Rows, Scores
from sparring.errors import CapacityError
from sparring.storage.memory import MemoryStorage

from .registry import caught_by, put


@caught_by("test_capacity_is_never_exceeded")
class HoldsOneMore(MemoryStorage):
    def _count_surplus(self, new: Any) -> int:
        return max(0, super()._count_surplus(new) - 1)


@caught_by("test_nothing_is_evicted_before_the_storage_is_full")
class EvictsEarly(MemoryStorage):
    def _count_surplus(self, new: Any) -> int:
        surplus = super()._count_surplus(new)
        capacity = self.capacity
        return surplus if capacity is None else max(0, surplus + capacity // 10)


@caught_by("test_every_upserted_key_is_stored_or_was_returned_once_as_evicted")
class EvictsInSilence(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        super()._upsert_impl(keys, rows, scores)
        return self._nothing_evicted()


@caught_by("test_one_call_may_contain_more_rows_than_fit")
class HandsBackOldRows(MemoryStorage):
    """Evicts before it updates, so that a key of the call may be evicted with its old row."""

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        if self.capacity is None or not self.capabilities.evicts:
            return super()._upsert_impl(keys, rows, scores)
        is_new = ~self.find(keys).found
        room = self.capacity - len(self._entries)
        first = super()._evict_impl(max(0, int(is_new.sum()) - room))
        second = super()._upsert_impl(keys, rows, scores)
        return EvictedRows(
            np.concatenate([first.keys, second.keys]),
            np.concatenate([first.rows, second.rows]),
            np.concatenate([first.scores, second.scores]),
        )


@caught_by("test_rows_with_the_lowest_scores_are_evicted")
class EvictsTheHighest(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        surplus = max(0, self._count_surplus(dict.fromkeys(keys.tolist())))
        by_score = sorted(self._entries, key=lambda key: self._entries[key].score)
        leaving = [key for key in by_score if key not in set(keys.tolist())][-surplus:]
        evicted = self._evicted(self._entries, leaving if surplus else [])
        self._erase_impl(evicted.keys)
        others = super()._upsert_impl(keys, rows, scores)
        return evicted if len(evicted) else others


@caught_by("test_evict_removes_the_lowest_scores_first")
class EvictTakesAnyRows(MemoryStorage):
    def _evict_impl(self, count: int) -> EvictedRows:
        keys = list(self._entries)[::-1][:count]
        evicted = self._evicted(self._entries, keys)
        self._erase_impl(np.array(keys, np.int64))
        return evicted


@caught_by("test_new_row_with_the_lowest_score_is_returned_as_evicted")
class NewRowsAlwaysStay(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        if scores is not None and scores.max() == 1:
            scores = scores + np.uint64(10_000)
        return super()._upsert_impl(keys, rows, scores)


@caught_by("test_touched_rows_outlast_others")
class TouchDoesNothing(MemoryStorage):
    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        pass


@caught_by("test_lru_evicts_the_oldest_rows")
class LruKeepsTheOldest(MemoryStorage):
    def _score(self, key: int, given: int | None) -> int:
        score = super()._score(key, given)
        return 2**40 - score if self._options.policy == "lru" else score


@caught_by("test_upserted_rows_outlast_others")
class LfuCountsInsertsOnly(MemoryStorage):
    def _score(self, key: int, given: int | None) -> int:
        score = super()._score(key, given)
        return 1 if self._options.policy == "lfu" else score


@caught_by("test_touch_changes_no_rows_and_adds_no_keys")
class TouchInserts(MemoryStorage):
    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        put(self, keys, self.find(keys).rows)


@caught_by("test_given_scores_are_stored")
class ForgetsGivenScores(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return super()._upsert_impl(keys, rows, None)


@caught_by("test_full_storage_that_may_not_evict_raises_and_is_unchanged")
class RefusesHalfway(MemoryStorage):
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        try:
            return super()._upsert_impl(keys, rows, scores)
        except CapacityError:
            num_free = (self.capacity or 0) - len(self._entries)
            put(self, keys[:num_free], rows[:num_free])
            raise


@caught_by("test_declared_capabilities_of_bounded_storages_agree")
class DoesNotDeclareItsBound(MemoryStorage):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, bounded=False, evicts=False)


@caught_by("test_storage_that_evicts_stays_full")
class EvictsHalfAtOnce(MemoryStorage):
    def _count_surplus(self, new: Any) -> int:
        surplus = super()._count_surplus(new)
        return surplus + (self.capacity or 0) // 2 if surplus > 0 else surplus


@caught_by("test_upsert_of_known_keys_evicts_nothing")
class MakesRoomForKnownKeys(MemoryStorage):
    def _count_surplus(self, new: Any) -> int:
        super()._count_surplus(new)
        return 0 if self.capacity is None else len(self._entries) + len(new) - self.capacity


@caught_by("test_erased_rows_are_not_returned_as_evicted")
class HandsBackErasedRows(MemoryStorage):
    def _erase_impl(self, keys: Keys) -> int:
        self._erased = self._evicted(self._entries, keys[self.find(keys).found].tolist())
        return super()._erase_impl(keys)

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        evicted = super()._upsert_impl(keys, rows, scores)
        return getattr(self, "_erased", evicted) if len(evicted) else evicted


@caught_by("test_evict_of_more_rows_than_stored_empties_the_storage")
class EvictLeavesOneRow(MemoryStorage):
    def _evict_impl(self, count: int) -> EvictedRows:
        return super()._evict_impl(min(count, len(self._entries) - 1))


@caught_by("test_touch_stores_the_given_scores")
class TouchForgetsScores(MemoryStorage):
    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        super()._touch_impl(keys, None)


@caught_by("test_upsert_without_scores_keeps_the_scores_of_known_keys")
class UpsertWithoutScoresResets(MemoryStorage):
    def _score(self, key: int, given: int | None) -> int:
        is_custom = self._options.policy == "custom"
        return given or 0 if is_custom else super()._score(key, given)


@caught_by("test_rows_with_the_lowest_scores_are_evicted")
class BucketsEvictAnyRow(MemoryStorage):
    """Declares buckets, but evicts any row."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.capabilities = replace(self.capabilities, eviction_scope="bucket")

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        surplus = max(0, self._count_surplus(dict.fromkeys(keys.tolist())))
        others = sorted(self._entries.keys() - set(keys.tolist()), key=lambda key: hash((key, 1)))
        evicted = self._evicted(self._entries, others[:surplus])
        self._erase_impl(evicted.keys)
        rest = super()._upsert_impl(keys, rows, scores)
        return evicted if len(evicted) else rest


@caught_by("test_random_operations_on_a_bounded_storage_agree_with_a_dict")
class FlushForgetsABoundedStorage(MemoryStorage):
    def _flush_impl(self) -> None:
        if self.capacity is not None and len(self._entries) > 1:
            self._entries.popitem()
