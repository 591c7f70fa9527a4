// The simplest model of a device table: processes one key after another on a map.
// Evicting tables are modeled by buckets, which device_layout.h assigns.
#ifndef SPARRING_HKV_TESTING_DEVICE_MODEL_H_
#define SPARRING_HKV_TESTING_DEVICE_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "client.h"
#include "device_layout.h"
#include "hash.h"
#include "policy.h"
#include "views.h"

namespace sparring::hkv::testing {

class DeviceModel {
 public:
  using Evicted = std::vector<std::pair<int64_t, Held>>;

  explicit DeviceModel(const TableOptions& options)
      : options_(options), layout_(make_device_layout(options)), policy_(options.policy) {}

  const Rows& rows() const { return rows_; }
  Policy& policy() { return policy_; }
  bool fits(const Keys& keys) const {
    if (layout_.evicts) return true;
    const auto is_new = [&](int64_t key) { return !rows_.contains(key); };
    return rows_.size() + static_cast<uint64_t>(std::count_if(keys.begin(), keys.end(), is_new)) <=
           layout_.max_rows;
  }

  // The row of each key is make_row(key, version). REQUIRES: fits(keys).
  Evicted upsert(const Keys& keys, uint64_t version, const Scores* scores) {
    policy_.begin_call();
    Evicted evicted;
    std::vector<size_t> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = rows_.find(keys[i]);
      if (found == rows_.end()) {
        missing.push_back(i);
        continue;
      }
      found->second.row = make_row(keys[i], version, options_.row_bytes);
      found->second.score = policy_.updated(found->second.score, given(scores, i));
    }
    for (const size_t i : missing) insert(keys[i], version, given(scores, i), evicted);
    return evicted;
  }

  // New rows are make_row(key, version); each byte of an existing row is incremented.
  // REQUIRES: fits(keys), and that no row is evicted.
  void update(const Keys& keys, uint64_t version) {
    policy_.begin_call();
    Evicted evicted;
    for (const int64_t key : keys) {
      const auto found = rows_.find(key);
      if (found == rows_.end()) {
        insert(key, version, nullptr, evicted);
        continue;
      }
      for (char& byte : found->second.row) byte = static_cast<char>(byte + 1);
      found->second.score = policy_.updated(found->second.score, nullptr);
    }
  }

  void touch(const Keys& keys, const Scores* scores) {
    policy_.begin_call();
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = rows_.find(keys[i]);
      if (found == rows_.end()) continue;
      found->second.score = policy_.updated(found->second.score, given(scores, i));
    }
  }

  int64_t erase(const Keys& keys) {
    int64_t erased = 0;
    for (const int64_t key : keys) erased += remove(key) ? 1 : 0;
    return erased;
  }

  Evicted evict(int64_t wanted) {
    Evicted all(rows_.begin(), rows_.end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second.score, a.first) < std::pair(b.second.score, b.first);
    });
    all.resize(std::min(all.size(), static_cast<size_t>(wanted)));
    for (const auto& [key, held] : all) remove(key);
    return all;
  }

  void clear() {
    rows_.clear();
    buckets_.clear();
  }

 private:
  static const uint64_t* given(const Scores* scores, size_t i) {
    return scores == nullptr ? nullptr : scores->data() + i;
  }
  uint64_t bucket_of(int64_t key) const {
    return fixed_bucket_of(hash_key(key, options_.hash_seed), layout_.num_fixed_heads);
  }
  uint64_t limit(uint64_t bucket) const {
    return layout_.max_rows / layout_.num_fixed_heads +
           (bucket < layout_.max_rows % layout_.num_fixed_heads ? 1 : 0);
  }

  void insert(int64_t key, uint64_t version, const uint64_t* score, Evicted& evicted) {
    const Held arriving{make_row(key, version, options_.row_bytes), policy_.initial(score)};
    if (layout_.evicts) {
      std::vector<int64_t>& bucket = buckets_[bucket_of(key)];
      if (bucket.size() == limit(bucket_of(key))) {
        const auto lowest = std::min_element(bucket.begin(), bucket.end(), [&](auto a, auto b) {
          return std::pair(rows_.at(a).score, a) < std::pair(rows_.at(b).score, b);
        });
        if (std::pair(arriving.score, key) < std::pair(rows_.at(*lowest).score, *lowest)) {
          evicted.push_back({key, arriving});
          return;
        }
        evicted.push_back({*lowest, rows_.at(*lowest)});
        remove(*lowest);
      }
      bucket.push_back(key);
    }
    rows_.emplace(key, arriving);
  }

  bool remove(int64_t key) {
    if (layout_.evicts) std::erase(buckets_[bucket_of(key)], key);
    return rows_.erase(key) == 1;
  }

  TableOptions options_;
  DeviceLayout layout_;
  Policy policy_;
  Rows rows_;
  std::map<uint64_t, std::vector<int64_t>> buckets_;
};

}  // namespace sparring::hkv::testing

#endif  // SPARRING_HKV_TESTING_DEVICE_MODEL_H_
