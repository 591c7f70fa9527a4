#include "known_keys.h"

#include <bit>
#include <utility>

namespace sparring::flash {
namespace {

constexpr uint64_t kBucketBytes = 64 + 1;
constexpr uint64_t kFirstBuckets = 64;

// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators", OOPSLA 2014): every input bit affects every output bit.
uint64_t hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

KnownKeys::KnownKeys(uint64_t budget_bytes, bool is_complete)
    : budget_bytes_(budget_bytes), is_complete_(is_complete) {}

KnownKeys::Choice KnownKeys::buckets_of(uint64_t code) const {
  const uint64_t mask = buckets_.size() - 1;
  const uint64_t bits = hash(code);
  return {bits & mask, bits >> 32 & mask};
}

uint8_t KnownKeys::slots_with(uint64_t bucket, uint64_t code) const {
  unsigned matches = 0;
  for (unsigned i = 0; i < 8; ++i) matches |= unsigned{buckets_[bucket].codes[i] == code} << i;
  return static_cast<uint8_t>(matches & occupied_[bucket]);
}

bool KnownKeys::contains(uint64_t code) const {
  if (buckets_.empty()) return false;
  const Choice choice = buckets_of(code);
  return (slots_with(choice.first, code) | slots_with(choice.second, code)) != 0;
}

bool KnownKeys::place(uint64_t code) {
  const Choice choice = buckets_of(code);
  const bool is_second =
      std::popcount(occupied_[choice.second]) < std::popcount(occupied_[choice.first]);
  const uint64_t at = is_second ? choice.second : choice.first;
  const int slot = std::countr_one(occupied_[at]);
  if (slot == 8) return false;
  buckets_[at].codes[slot] = code;
  occupied_[at] = static_cast<uint8_t>(occupied_[at] | 1u << slot);
  return true;
}

void KnownKeys::insert(uint64_t code) {
  if (contains(code)) return;
  do {
    if (!buckets_.empty() && place(code)) return;
  } while (grow());
  is_complete_ = false;
  if (buckets_.empty()) return;
  // Any code of the bucket may be removed; the top bits of the hash do not select buckets.
  buckets_[buckets_of(code).first].codes[hash(code) >> 61] = code;
}

void KnownKeys::erase(uint64_t code) {
  if (buckets_.empty()) return;
  const Choice choice = buckets_of(code);
  for (const uint64_t at : {choice.first, choice.second}) {
    occupied_[at] = static_cast<uint8_t>(occupied_[at] & ~slots_with(at, code));
  }
}

void KnownKeys::clear(bool is_complete) {
  buckets_ = {};
  occupied_ = {};
  memory_bytes_.store(0, std::memory_order_relaxed);
  is_complete_ = is_complete;
}

bool KnownKeys::grow() {
  const uint64_t num_buckets = buckets_.empty() ? kFirstBuckets : 2 * buckets_.size();
  if (num_buckets * kBucketBytes > budget_bytes_) return false;
  std::vector<Bucket> old_buckets(num_buckets);
  std::vector<uint8_t> old_occupied(num_buckets, 0);
  std::swap(old_buckets, buckets_);
  std::swap(old_occupied, occupied_);
  for (size_t from = 0; from < old_buckets.size(); ++from) {
    for (unsigned i = 0; i < 8; ++i) {
      if ((old_occupied[from] >> i & 1) == 0) continue;
      // If half of all slots are free this succeeds; otherwise one key is removed.
      if (!place(old_buckets[from].codes[i])) is_complete_ = false;
    }
  }
  memory_bytes_.store(num_buckets * kBucketBytes, std::memory_order_relaxed);
  return true;
}

}  // namespace sparring::flash
