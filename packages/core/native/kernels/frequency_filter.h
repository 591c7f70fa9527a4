// Admits a key in the k-th step that trained on it, counting exactly.
//
//   keys_     capacity x int64   ┐ one slot: the key, and the number of steps that trained
//   counts_   capacity x uint32  ┘ it so far; linear probing from the key's home
//
//   home     h           h        h
//   key    │ 7 │   │ -1 │ 42 │ 3 │ 9 │   │      3 is one after its home, which 42 occupies
//   count  │ 1 │ 0 │  2 │  1 │ 1 │ 4 │ 0 │
//
// INVARIANTS
//   1. A slot is empty exactly if its count is 0, so no key is reserved.
//   2. A count is below k: the step that would make it k admits the key and frees its slot,
//      because a key with a row is not counted.
//   3. Between a key's home and its slot there is no empty slot.
//   4. At most three quarters of the slots are occupied.
//   5. The slots use at most the byte budget. There are none at first, and they double as
//      keys are added; while they double, the old slots exist too.
//   6. The slot of a key depends on a secret of the process (key_index.h). No externally
//      visible result depends on it.
//
// If no slot is left for a key, all counts are halved, and slots whose count becomes 0
// are freed: frequent keys stay, and keys that occurred once are removed. This happens at
// most once per call of record(), so that one batch of new keys cannot empty the table.
// Keys without a slot after it are not counted. Therefore a key may be admitted later
// than in its k-th step, but never earlier.
#ifndef SPARRING_KERNELS_FREQUENCY_FILTER_H_
#define SPARRING_KERNELS_FREQUENCY_FILTER_H_

#include <memory>

#include "kernels/admission.h"
#include "kernels/key_index.h"

namespace sparring::kernels {

class FrequencyFilter final : public AdmissionFilter {
 public:
  static constexpr int64_t kSlotBytes = sizeof(int64_t) + sizeof(uint32_t);
  static constexpr int64_t kLeastSlots = 64;

  // REQUIRES: 1 <= k < 2^32, memory_bytes >= kLeastSlots * kSlotBytes.
  FrequencyFilter(int64_t k, int64_t memory_bytes);

 private:
  // The slots, with a fixed capacity.
  class Slots {
   public:
    Slots() = default;
    // Throws std::bad_alloc.
    explicit Slots(int64_t capacity);

    int64_t capacity() const { return capacity_; }
    int64_t limit() const { return capacity_ / 4 * 3; }
    int64_t size() const { return size_; }
    int64_t key(int64_t slot) const { return keys_.get()[slot]; }
    uint32_t& count(int64_t slot) { return counts_.get()[slot]; }
    uint32_t count(int64_t slot) const { return counts_.get()[slot]; }

    void prefetch(int64_t key) const;
    // The key's slot, or the empty one where it would go. REQUIRES: capacity() > 0.
    int64_t slot_of(int64_t key) const;
    // REQUIRES: `slot` is slot_of(key), and size() < limit().
    void fill(int64_t slot, int64_t key, uint32_t count);
    // Keeps invariant 3: moves up the keys that the gap would separate from their homes.
    void free(int64_t slot);
    // Halves all counts, and frees those that become 0.
    void halve();

   private:
    struct Free {
      void operator()(void* memory) const { std::free(memory); }
    };

    int64_t home(int64_t key) const;
    int64_t next(int64_t slot) const { return slot + 1 == capacity_ ? 0 : slot + 1; }

    KeyIndex hasher_;
    int64_t capacity_ = 0;
    int64_t size_ = 0;
    std::unique_ptr<int64_t, Free> keys_;
    std::unique_ptr<uint32_t, Free> counts_;
  };

  void decide_impl(const int64_t* keys, int64_t count, int64_t step,
                   uint8_t* is_admitted) const override;
  void record_impl(const int64_t* keys, const uint8_t* is_admitted, int64_t count) override;
  int64_t memory_bytes_impl() const override { return slots_.capacity() * kSlotBytes; }
  int64_t num_forgotten_impl() const override { return num_forgotten_; }
  std::string save_impl() const override;
  void load_impl(std::string_view saved) override;

  // Whether one more key can be added without removing another.
  bool make_room();
  static Slots resized(const Slots& slots, int64_t capacity);

  const uint32_t k_;
  const int64_t most_slots_;
  Slots slots_;
  int64_t num_forgotten_ = 0;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_FREQUENCY_FILTER_H_
