#include "index.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "match.h"

namespace sparring::hkv {
namespace {

// Uniformly distributed keys need a depth of log2(buckets) + 1 or 2; see may_split().
constexpr uint64_t kWordsPerBucket = 16;
constexpr uint32_t kMaxDepth = 40;

}  // namespace

Index::Index(const Options& options)
    : options_(options),
      directory_(options.num_fixed_buckets),
      buckets_(bucket_bytes(options.has_scores), options.max_buckets, offsetof(Bucket, overflow)) {
  const uint64_t num_heads = std::max<uint64_t>(1, options.num_fixed_buckets);
  buckets_.reserve(num_heads);
  for (uint64_t head = 0; head < num_heads; ++head) buckets_.allocate();
}

IndexView Index::view() const {
  return {directory_.segments(), directory_.num_fixed_buckets(), buckets_.view(), options_.seed};
}

uint64_t Index::memory_bytes() const {
  return sizeof *this + directory_.memory_bytes() + buckets_.memory_bytes();
}

Place Index::locate(int64_t key, uint64_t hash) const {
  const uint8_t digest = digest_of(hash);
  uint32_t number = directory_.bucket_of(hash);
  do {
    Bucket* const found = bucket(number);
    for (uint64_t mask = match_digest(found, digest); mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(std::countr_zero(mask));
      if (found->key(slot) == key) return {found, slot};
    }
    number = found->overflow;
  } while (number != 0);
  return {};
}

bool Index::has_room(uint64_t hash) const { return match_digest(home(hash), 0) != 0; }

Place Index::insert(int64_t key, uint64_t hash, uint32_t row, uint64_t score) {
  for (;;) {
    Bucket* const head = home(hash);
    Bucket* last = head;
    while (last->overflow != 0) last = bucket(last->overflow);
    uint64_t empty = match_digest(last, 0);
    // A chain is split as soon as the number of buckets justifies the depth.
    if ((empty == 0 || last != head) && directory_.is_growing() && may_split(head->depth())) {
      split(hash);
      continue;
    }
    if (empty == 0) {
      const uint32_t number = allocate_bucket();
      last->overflow = number;
      last = bucket(number);
      empty = 1;
    }
    const auto slot = static_cast<uint32_t>(std::countr_zero(empty));
    put(last, slot, {hash, key, score, row});
    ++size_;
    return {last, slot};
  }
}

uint32_t Index::erase(int64_t key, uint64_t hash) {
  const Place place = locate(key, hash);
  if (place.bucket == nullptr) return kNoRow;
  const uint32_t row = place.bucket->row(place.slot);
  Bucket* before = nullptr;
  Bucket* last = home(hash);
  while (last->overflow != 0) {
    before = last;
    last = bucket(last->overflow);
  }
  uint32_t slot = place.slot;
  if (before != nullptr) {
    // Keeps the chain dense: its last entry fills the gap.
    slot = static_cast<uint32_t>(std::bit_width(occupied_slots(last))) - 1;
    if (last != place.bucket || slot != place.slot) {
      put(place.bucket, place.slot, entry_at(last, slot));
    }
  }
  last->digests[slot] = 0;
  if (before != nullptr && occupied_slots(last) == 0) {
    release_bucket(std::exchange(before->overflow, 0u));
  }
  --size_;
  return row;
}

void Index::replace(Place place, int64_t key, uint64_t hash, uint64_t score) {
  put(place.bucket, place.slot, {hash, key, score, place.bucket->row(place.slot)});
}

bool Index::collect(uint64_t& cursor, uint64_t capacity, std::vector<Entry>& entries) const {
  for (;;) {
    const uint64_t before = entries.size();
    const Bucket* const head = home(cursor);
    for (const Bucket* part = head;; part = bucket(part->overflow)) {
      for (uint64_t mask = occupied_slots(part); mask != 0; mask &= mask - 1) {
        const Entry entry = entry_at(part, static_cast<uint32_t>(std::countr_zero(mask)));
        if (entry.hash >= cursor) entries.push_back(entry);
      }
      if (part->overflow == 0) break;
    }
    if (entries.size() > capacity) {
      // A bucket that does not fit completely is returned in the order of hashes.
      const auto by_hash = [](const Entry& a, const Entry& b) { return a.hash < b.hash; };
      std::sort(entries.begin() + static_cast<ptrdiff_t>(before), entries.end(), by_hash);
      cursor = entries[capacity].hash;
      entries.resize(capacity);
      return false;
    }
    const uint64_t last_hash = directory_.last_hash_of(cursor, head->depth());
    if (last_hash == ~uint64_t{0}) return true;
    cursor = last_hash + 1;
    if (entries.size() == capacity) return false;
  }
}

// Splitting a bucket whose keys share many bits of their hash would double its
// segment repeatedly without effect. With uniformly distributed keys a directory
// has about four words per bucket; a bucket is not split if the directory would
// have more than 16 times as many words as buckets.
bool Index::may_split(uint32_t depth) const {
  return depth < kMaxDepth && (uint64_t{2} << depth) <= kWordsPerBucket * (num_buckets() + 1) &&
         num_buckets() < options_.max_buckets;
}

void Index::split(uint64_t hash) {
  Bucket* const head = home(hash);
  const uint32_t depth = head->depth();
  directory_.prepare_split(hash, depth);
  const uint32_t number = allocate_bucket();
  Bucket* const upper = bucket(number);
  if (head->overflow != 0) {
    try {
      split_chain(head, upper);
    } catch (...) {
      release_bucket(number);
      throw;
    }
  } else {
    uint32_t to = 0;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      if (head->digests[slot] == 0) continue;
      const Entry entry = entry_at(head, slot);
      if (((entry.hash >> (63 - depth)) & 1) == 0) continue;
      put(upper, to++, entry);
      head->digests[slot] = 0;
    }
  }
  head->depth() = upper->depth() = depth + 1;
  directory_.split(hash, depth, number);
}

// Distributes the entries of a chain to two dense chains. The available buckets
// suffice: ceil(a / 60) + ceil(b / 60) <= ceil((a + b) / 60) + 1.
void Index::split_chain(Bucket* head, Bucket* upper) {
  const uint32_t depth = head->depth();
  std::vector<Entry> entries;
  std::vector<uint32_t> spare;
  for (const Bucket* part = head;; part = bucket(part->overflow)) {
    for (uint64_t mask = occupied_slots(part); mask != 0; mask &= mask - 1) {
      entries.push_back(entry_at(part, static_cast<uint32_t>(std::countr_zero(mask))));
    }
    if (part->overflow == 0) break;
    spare.push_back(part->overflow);
  }
  // No operation below can fail.
  for (const uint32_t number : spare) {
    std::fill_n(bucket(number)->digests, kSlots, uint8_t{0});
    bucket(number)->overflow = 0;
  }
  std::fill_n(head->digests, kSlots, uint8_t{0});
  head->overflow = 0;
  Bucket* tails[2] = {head, upper};
  uint32_t filled[2] = {0, 0};
  for (const Entry& entry : entries) {
    const auto side = static_cast<uint32_t>((entry.hash >> (63 - depth)) & 1);
    if (filled[side] == kSlots) {
      tails[side]->overflow = spare.back();
      tails[side] = bucket(spare.back());
      spare.pop_back();
      filled[side] = 0;
    }
    put(tails[side], filled[side]++, entry);
  }
  for (const uint32_t number : spare) release_bucket(number);
}

uint32_t Index::allocate_bucket() {
  const uint32_t number = buckets_.allocate();
  bucket(number)->overflow = 0;
  return number;
}

// REQUIRES: the bucket is empty.
void Index::release_bucket(uint32_t number) { buckets_.release(number); }

void Index::put(Bucket* bucket, uint32_t slot, const Entry& entry) {
  bucket->key(slot) = entry.key;
  bucket->row(slot) = entry.row;
  if (options_.has_scores) bucket->scores()[slot] = entry.score;
  bucket->digests[slot] = digest_of(entry.hash);
}

Entry Index::entry_at(const Bucket* bucket, uint32_t slot) const {
  const int64_t key = bucket->key(slot);
  return {hash(key), key, options_.has_scores ? bucket->scores()[slot] : 0, bucket->row(slot)};
}

}  // namespace sparring::hkv
