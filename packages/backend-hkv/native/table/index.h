// The index: which row each key owns, and its score. It knows nothing of what
// rows hold. See bucket.h for the layout and its invariants, directory.h for
// how a hash finds its bucket.
//
// A full bucket of a growing index splits: its entries move, rows do not. Where
// many keys share the first bits of their hash, splitting would only make the
// directory larger; past a depth that the number of buckets does not explain
// the bucket gets an overflow chain instead, as full buckets of a fixed index
// always do.
//
// Threads: const members concurrently; everything else alone.
#ifndef SPARRING_HKV_TABLE_INDEX_H_
#define SPARRING_HKV_TABLE_INDEX_H_

#include <cstdint>
#include <vector>

#include "bucket.h"
#include "directory.h"
#include "hash.h"
#include "pool.h"
#include "views.h"

namespace sparring::hkv {

struct Entry {
  uint64_t hash;
  int64_t key;
  uint64_t score;  // 0 where scores are not kept
  uint32_t row;
};

class Index {
 public:
  struct Options {
    bool has_scores = false;
    uint64_t num_fixed_buckets = Directory::kGrowing;
    uint64_t max_buckets = 0xffffffffu;  // chains included
    uint64_t seed = 0;
  };

  explicit Index(const Options& options);

  uint64_t size() const { return size_; }
  bool has_scores() const { return options_.has_scores; }
  IndexView view() const;
  uint64_t hash(int64_t key) const { return hash_key(key, options_.seed); }
  uint64_t memory_bytes() const;

  Place locate(int64_t key, uint64_t hash) const;
  Bucket* home(uint64_t hash) const { return bucket(directory_.bucket_of(hash)); }

  // Whether `hash` leads to a bucket with an empty slot.
  // REQUIRES: that bucket has no chain.
  bool has_room(uint64_t hash) const;

  // Throws std::bad_alloc, and then the index holds what it held.
  // REQUIRES: `key` is absent.
  Place insert(int64_t key, uint64_t hash, uint32_t row, uint64_t score);
  // Returns the row that the key owned, or kNoRow.
  uint32_t erase(int64_t key, uint64_t hash);
  // Puts another key in the place of one; both lead to the same bucket.
  void replace(Place place, int64_t key, uint64_t hash, uint64_t score);

  // Appends entries in the order of their hashes from `cursor` on, at most
  // `capacity` of them. Returns whether that was the end; otherwise `cursor` has
  // moved to the first hash that was not visited.
  bool collect(uint64_t& cursor, uint64_t capacity, std::vector<Entry>& entries) const;

  // All buckets that may hold entries, in the order of their numbers: heads of
  // chains, the rest of chains, and free ones (which are empty).
  uint64_t num_bucket_numbers() const { return buckets_.end(); }
  Bucket* bucket(uint64_t number) const {
    return reinterpret_cast<Bucket*>(buckets_.at(static_cast<uint32_t>(number)));
  }
  uint64_t num_buckets() const { return buckets_.num_used(); }

  static uint64_t bucket_bytes(bool has_scores) {
    return has_scores ? kScoredBucketBytes : kBucketBytes;
  }

 private:
  bool may_split(uint32_t depth) const;
  void split(uint64_t hash);
  void split_chain(Bucket* head, Bucket* upper);
  uint32_t allocate_bucket();
  void release_bucket(uint32_t number);
  void put(Bucket* bucket, uint32_t slot, const Entry& entry);
  Entry entry_at(const Bucket* bucket, uint32_t slot) const;

  Options options_;
  Directory directory_;
  Pool buckets_;
  uint64_t size_ = 0;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_INDEX_H_
