// Searches for many keys in files at once.
//
// A key requires two dependent reads: a bucket, and the record. Each step of a loop processes three
// keys, so that the prefetched memory of a key has arrived when it is read:
//
//   key i + 2 kAhead              key i + kAhead             key i
//   hash, prefetch the bucket     match, prefetch the record compare
//
// Prefetches for later keys continue while the caller uses the rows of earlier ones.
#ifndef SPARRING_PACKED_READER_SEARCH_H_
#define SPARRING_PACKED_READER_SEARCH_H_

#include <algorithm>
#include <cstdint>

#include "reader/version.h"

namespace sparring::packed {

// Only this part of longer rows is prefetched; the hardware prefetches the rest.
inline constexpr int64_t kMostPrefetchedBytes = 512;

// A search for keys (count), in their order.
class Search {
 public:
  // `record_bytes`: number of bytes of a record that the caller reads.
  Search(const FileSet& files, const int64_t* keys, int64_t count, int64_t record_bytes)
      : files_(files),
        only_file_(files.only_file()),
        keys_(keys),
        count_(count),
        bytes_(static_cast<uint64_t>(std::min(record_bytes, kMostPrefetchedBytes))),
        ahead_(std::min(count, kAhead)),
        next_(-2 * ahead_) {}

  // found (count): the records of the next `count` keys, or NULL. REQUIRES: so many keys are left.
  // Throws StatusError(SPARRING_CORRUPT).
  void next(int64_t count, const uint8_t** found) {
    if (only_file_ != nullptr) {
      const FileView view = only_file_->view();
      advance(count, found, [&](int64_t) { return only_file_; },
              [&](const Slot&) -> const FileView& { return view; });
    } else {
      const PackedFile* const any = files_.files().front().get();
      const auto file_of = [&](int64_t key) {
        const PackedFile* const file = files_.file_of(key);
        // A key of a partition without a file is not found in any file, so any file can be searched.
        return file != nullptr ? file : any;
      };
      advance(count, found, file_of,
              [&](const Slot& slot) -> const FileView& { return slot.file->view(); });
    }
  }

 private:
  static constexpr int64_t kAhead = 24;
  static constexpr int64_t kSlots = 64;  // more than 2 kAhead

  struct Slot {
    const PackedFile* file;
    uint64_t hash;
    const Bucket* bucket;
    const uint8_t* record;  // the first candidate, or NULL
  };

  template <class FileOf, class ViewOf>
  __attribute__((always_inline)) void advance(int64_t count, const uint8_t** found,
                                              const FileOf& file_of, const ViewOf& view_of) {
    const int64_t ahead = ahead_;
    const int64_t first = std::max<int64_t>(next_, 0);
    const int64_t end = first + count;
    for (int64_t i = next_; i < end; ++i) {
      if (const int64_t at = i + 2 * ahead; at < count_) {
        Slot& slot = slots_[at % kSlots];
        slot.file = file_of(keys_[at]);
        const FileView& view = view_of(slot);
        slot.hash = view.hash_of(keys_[at]);
        slot.bucket = view.buckets + bucket_of(slot.hash, view.num_buckets);
        __builtin_prefetch(slot.bucket);
      }
      if (const int64_t at = i + ahead; at >= 0 && at < count_) {
        Slot& slot = slots_[at % kSlots];
        const FileView& view = view_of(slot);
        if (!view.has(*slot.bucket)) [[unlikely]] {
          slot.file->refuse_bucket(static_cast<uint64_t>(slot.bucket - view.buckets));
        }
        const uint32_t matches = FileView::matches(*slot.bucket, slot.hash);
        slot.record = nullptr;
        if (matches != 0) {
          slot.record = view.record(slot.bucket->start + static_cast<uint64_t>(__builtin_ctz(matches)));
          const auto begin = reinterpret_cast<uintptr_t>(slot.record);
          for (uintptr_t line = begin & ~uintptr_t{63}; line < begin + bytes_; line += 64) {
            __builtin_prefetch(reinterpret_cast<const void*>(line));
          }
        }
      }
      if (i < 0) continue;
      const Slot& slot = slots_[i % kSlots];
      found[i - first] = slot.record;
      if (slot.record != nullptr && key_of(slot.record) == keys_[i]) continue;
      // The digests of two keys are equal, or the bucket has more keys than digests.
      if (slot.record != nullptr || slot.bucket->count > kBucketDigests) {
        found[i - first] = view_of(slot).find(*slot.bucket, keys_[i], slot.hash);
      }
    }
    next_ = end;
  }

  const FileSet& files_;
  const PackedFile* const only_file_;
  const int64_t* const keys_;
  const int64_t count_;
  const uint64_t bytes_;
  const int64_t ahead_;
  int64_t next_;
  Slot slots_[kSlots];
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_SEARCH_H_
