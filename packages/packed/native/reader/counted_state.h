// A pointer to an immutable state that readers use while one writer replaces it. Readers take
// no lock.
//
//   word_  [ slot : 16 │ readers that entered : 48 ]         one atomic word
//   slots_[slot]: the state │ readers that left, minus readers that entered
//
// A reader enters with one fetch_add of the word, which atomically returns the slot and counts
// the reader. It leaves with one fetch_add of its slot. The writer exchanges the word: the count
// in the old word is the total number of readers that entered that slot, and is subtracted from
// the slot's balance. After that, the balance becomes zero exactly once, when the last reader has
// left, and the thread that makes it zero frees the state.
//
// INVARIANTS
//   C1. The balance of the current slot is >= 0, of a retired one <= 0, of a free one 0.
//   C2. A slot is reused only after its state was freed.
//   C3. Fewer than 2^48 readers enter one state: at 10^8 per second that is a month.
#ifndef SPARRING_PACKED_READER_COUNTED_STATE_H_
#define SPARRING_PACKED_READER_COUNTED_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace sparring::packed {

template <class State>
class CountedState {
  struct Slot;

 public:
  CountedState() = default;
  CountedState(const CountedState&) = delete;
  CountedState& operator=(const CountedState&) = delete;

  // REQUIRES: there are no readers.
  ~CountedState() {
    for (Slot& slot : slots_) delete slot.state.load();
  }

  // Gives one reader access to a state until it is destroyed.
  class Hold {
   public:
    explicit Hold(CountedState& owner) : owner_(owner) {
      const uint64_t word = owner.word_.fetch_add(1, std::memory_order_acquire);
      slot_ = &owner.slots_[word >> kCountBits];
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { owner_.leave(*slot_, 1); }

    const State& operator*() const { return *slot_->state.load(std::memory_order_relaxed); }
    const State* operator->() const { return &**this; }

   private:
    CountedState& owner_;
    Slot* slot_;
  };

  // Replaces the state. One writer at a time; it only waits if all slots are still being read.
  void store(std::unique_ptr<const State> state) {
    uint64_t next = 0;
    while (slots_[next].state.load(std::memory_order_acquire) != nullptr) {
      if (++next == kNumSlots) {
        next = 0;
        std::this_thread::yield();
      }
    }
    slots_[next].balance.store(0, std::memory_order_relaxed);
    slots_[next].state.store(state.release(), std::memory_order_release);
    const uint64_t old = word_.exchange(next << kCountBits, std::memory_order_acq_rel);
    if (is_set_) leave(slots_[old >> kCountBits], -static_cast<int64_t>(old & kCountMask));
    is_set_ = true;
  }

 private:
  static constexpr int kCountBits = 48;
  static constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
  static constexpr uint64_t kNumSlots = 64;

  struct Slot {
    alignas(64) std::atomic<int64_t> balance{0};
    std::atomic<const State*> state{nullptr};
  };

  // A reader leaves (1), or the writer subtracts the readers that entered. For a retired slot, the
  // last of these calls makes the balance zero.
  void leave(Slot& slot, int64_t change) {
    const int64_t before = slot.balance.fetch_add(change, std::memory_order_acq_rel);
    const bool is_last = before + change == 0;
    // Before the writer's call, the balance is positive after a reader has left.
    if (is_last) {
      delete slot.state.load(std::memory_order_relaxed);
      slot.state.store(nullptr, std::memory_order_release);
    }
  }

  std::atomic<uint64_t> word_{0};
  Slot slots_[kNumSlots];
  bool is_set_ = false;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_COUNTED_STATE_H_
