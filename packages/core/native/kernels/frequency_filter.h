// Admits a key in the k-th step that trained on it, counting exactly.
//
//   slots_   capacity slots, linear probing, at most 3/4 full; the capacity is what
//            the byte budget allows, and never changes
//            ┌──────────────┬───────────┐
//            │ key    int64 │ count u32 │   in two arrays
//            └──────────────┴───────────┘
//
// INVARIANTS
//   1. A slot is empty exactly if its count is 0, so no key is reserved.
//   2. Counts are below k: a key that reaches k is admitted, and its slot is freed.
//   3. Between a key's home slot and its own there is no empty one.
//   4. size_ slots are occupied, at most limit().
//
// When no slot is left for a key, counts are halved and those that become 0 go: a
// key that comes again and again stays, keys that came once make room. A key may
// then be admitted later than in its k-th step, never earlier.
#ifndef SPARRING_KERNELS_FREQUENCY_FILTER_H_
#define SPARRING_KERNELS_FREQUENCY_FILTER_H_

#include <vector>

#include "kernels/admission.h"
#include "kernels/key_index.h"

namespace sparring::kernels {

class FrequencyFilter final : public AdmissionFilter {
 public:
  // REQUIRES: k >= 1, memory_bytes >= least_bytes(). Throws std::bad_alloc.
  FrequencyFilter(int64_t k, int64_t memory_bytes);

  static constexpr int64_t least_bytes() { return 4 * kSlotBytes; }

  void admit(const int64_t* keys, int64_t count, int64_t step,
             uint8_t* is_admitted) noexcept override;
  int64_t memory_bytes() const override;
  std::string save() const override;
  void load(std::string_view saved) override;

  int64_t size() const { return size_; }
  int64_t limit() const { return capacity_ / 4 * 3; }

 private:
  static constexpr int64_t kSlotBytes = 12;

  int64_t home(int64_t key) const;
  int64_t next(int64_t slot) const { return slot + 1 == capacity_ ? 0 : slot + 1; }
  // The key's slot, or the empty one where it would go.
  int64_t slot_of(int64_t key) const;
  void free_slot(int64_t slot);
  void age();

  uint32_t k_;
  int64_t capacity_;
  int64_t size_ = 0;
  KeyIndex hasher_;
  std::vector<int64_t> keys_;
  std::vector<uint32_t> counts_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_FREQUENCY_FILTER_H_
