// The index: the row and the score of each key. It does not know the contents of
// rows. See bucket.h for the layout and its invariants, and directory.h for how
// a hash selects its bucket.
//
// A full bucket of a growing index splits: its entries move, rows do not. If
// many keys share the first bits of their hash, splitting would only enlarge the
// directory. Beyond a depth that the number of buckets justifies, the bucket
// gets an overflow chain instead, as full buckets of a fixed index always do.
//
// Threads: const methods may run concurrently; all others are exclusive.
//
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
  uint64_t score;  // 0 if scores are not stored
  uint32_t row;
};

class Index {
 public:
  struct Options {
    bool has_scores = false;
    uint64_t num_fixed_buckets = Directory::kGrowing;
    uint64_t max_buckets = 0xffffffffu;  // including chains
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

  // Whether the bucket of `hash` has an empty slot.
  // REQUIRES: that bucket has no chain.
  bool has_room(uint64_t hash) const;

  // Throws std::bad_alloc without changing the index.
  // REQUIRES: `key` is absent.
  Place insert(int64_t key, uint64_t hash, uint32_t row, uint64_t score);
  // Returns the row of the key, or kNoRow.
  uint32_t erase(int64_t key, uint64_t hash);
  // Replaces a key by another one that belongs to the same bucket.
  void replace(Place place, int64_t key, uint64_t hash, uint64_t score);

  // Appends entries in the order of their hashes from `cursor` on, at most
  // `capacity`. Returns whether the end was reached; otherwise `cursor` is the
  // first hash that was not visited.
  bool collect(uint64_t& cursor, uint64_t capacity, std::vector<Entry>& entries) const;

  // All buckets that may contain entries, in the order of their numbers: first
  // and other buckets of chains, and free ones (which are empty).
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
