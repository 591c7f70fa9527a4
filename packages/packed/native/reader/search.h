// Looks for many keys in files at once.
//
// A key costs two reads that depend on each other: a bucket, and the record. Each step of a loop
// takes three keys, so that what was asked of memory for a key has come when it is read:
//
//   key i + 2 kAhead              key i + kAhead             key i
//   hash, ask for the bucket      match, ask for the record  compare
//
#ifndef SPARRING_PACKED_READER_SEARCH_H_
#define SPARRING_PACKED_READER_SEARCH_H_

#include <algorithm>
#include <cstdint>

#include "reader/version.h"

namespace sparring::packed {

// Keys that are looked for together.
inline constexpr int64_t kGroup = 512;

// Rows longer than this are asked for in part: the rest follows by itself.
inline constexpr int64_t kMostPrefetchedBytes = 512;

// One search for up to kGroup keys.
class Search {
 public:
  // keys (count). `record_bytes`: how much of a record is read later.
  Search(const FileSet& files, const int64_t* keys, int64_t count, int64_t record_bytes)
      : files_(files),
        keys_(keys),
        count_(count),
        prefetched_bytes_(std::min(record_bytes, kMostPrefetchedBytes)) {}

  // found (count): records, or NULL. Throws StatusError(SPARRING_CORRUPT).
  void run(const uint8_t** found) {
    if (const PackedFile* const file = files_.only_file()) {
      const FileView view = file->view();
      run_all(found, [&](int64_t) -> const FileView& { return view; },
              [&](int64_t) { return file; });
      return;
    }
    const PackedFile* file_of[kGroup];
    for (int64_t i = 0; i < count_; ++i) {
      const PackedFile* const file = files_.file_of(keys_[i]);
      file_of[i] = file != nullptr ? file : files_.files().front().get();
    }
    run_all(found, [&](int64_t i) -> const FileView& { return file_of[i]->view(); },
            [&](int64_t i) { return file_of[i]; });
  }

 private:
  static constexpr int64_t kAhead = 32;

  template <class ViewOf, class FileOf>
  __attribute__((always_inline)) void run_all(const uint8_t** found, const ViewOf& view_of,
                                              const FileOf& file_of) {
    const int64_t count = count_;
    const int64_t bytes = prefetched_bytes_;
    const int64_t* const keys = keys_;
    for (int64_t i = -2 * kAhead; i < count; ++i) {
      if (const int64_t next = i + 2 * kAhead; next < count) {
        const FileView& view = view_of(next);
        hashes_[next] = view.hash_of(keys[next]);
        buckets_[next] = view.buckets + bucket_of(hashes_[next], view.num_buckets);
        __builtin_prefetch(buckets_[next]);
      }
      if (const int64_t next = i + kAhead; next >= 0 && next < count) {
        const FileView& view = view_of(next);
        const Bucket& bucket = *buckets_[next];
        if (!view.has(bucket)) [[unlikely]] {
          file_of(next)->refuse_bucket(static_cast<uint64_t>(buckets_[next] - view.buckets));
        }
        const uint32_t matches = FileView::matches(bucket, hashes_[next]);
        const uint8_t* record = nullptr;
        if (matches != 0) {
          record = view.record(bucket.start + static_cast<uint64_t>(__builtin_ctz(matches)));
          for (int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(record + offset);
          __builtin_prefetch(record + bytes - 1);
        }
        found[next] = record;
      }
      if (i < 0 || (found[i] != nullptr && key_of(found[i]) == keys[i])) continue;
      // Another key with this digest, or a bucket with more keys than digests.
      if (found[i] != nullptr || buckets_[i]->count > kBucketDigests) {
        found[i] = view_of(i).find(*buckets_[i], keys[i], hashes_[i]);
      }
    }
  }

  const FileSet& files_;
  const int64_t* const keys_;
  const int64_t count_;
  const int64_t prefetched_bytes_;
  uint64_t hashes_[kGroup];
  const Bucket* buckets_[kGroup];
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_SEARCH_H_
