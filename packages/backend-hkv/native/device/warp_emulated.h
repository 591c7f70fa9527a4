// Implements warp.h on the emulator. Include warp.h instead.
#ifndef SPARRING_HKV_DEVICE_WARP_EMULATED_H_
#define SPARRING_HKV_DEVICE_WARP_EMULATED_H_

#include <cstring>
#include <source_location>
#include <type_traits>

#include "emulator.h"

namespace sparring::device {

class Warp {
 public:
  using Place = std::source_location;
  explicit Warp(emulator::Lane& self) : self_(&self) {}

  unsigned lane() const { return self_->number; }

  uint32_t ballot(bool holds, Place place = Place::current()) const {
    return emulator::ballot(*self_, holds, place);
  }
  bool any(bool holds, Place place = Place::current()) const { return ballot(holds, place) != 0; }
  bool all(bool holds, Place place = Place::current()) const {
    return ballot(holds, place) == all_lanes;
  }
  void sync(Place place = Place::current()) const {
    emulator::meet(*self_, emulator::Operation::kSync, place);
  }

  template <class T>
  T shuffle(T value, unsigned source, Place place = Place::current()) const {
    return shown(value, place, source % warp_lanes);
  }
  template <class T>
  T shuffle_xor(T value, unsigned mask, Place place = Place::current()) const {
    return shown(value, place, (lane() ^ mask) % warp_lanes);
  }
  template <class T>
  T shuffle_up(T value, unsigned distance, Place place = Place::current()) const {
    return shown(value, place, lane() < distance ? lane() : lane() - distance);
  }
  template <class T>
  T shuffle_down(T value, unsigned distance, Place place = Place::current()) const {
    return shown(value, place, lane() + distance < warp_lanes ? lane() + distance : lane());
  }
  template <class T>
  uint32_t match(T value, Place place = Place::current()) const {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    const emulator::Exchange& exchange = emulator::show(
        *self_, emulator::Operation::kMatch, &value, sizeof(T), place);
    uint32_t equal = 0;
    for (unsigned other = 0; other < warp_lanes; ++other)
      if (std::memcmp(exchange.values[other], &value, sizeof(T)) == 0) equal |= 1u << other;
    return equal;
  }

 private:
  template <class T>
  T shown(T value, Place place, unsigned source) const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
    const emulator::Exchange& exchange = emulator::show(
        *self_, emulator::Operation::kShuffle, &value, sizeof(T), place);
    std::memcpy(&value, exchange.values[source], sizeof(T));
    return value;
  }

  emulator::Lane* self_;
};

class Block {
 public:
  Block(emulator::Lane& self, const emulator::BlockView& view) : self_(&self), view_(view) {}

  Warp warp() const { return Warp(*self_); }
  unsigned thread() const { return self_->warp_index * warp_lanes + self_->number; }
  unsigned num_threads() const { return view_.num_threads; }
  unsigned warp_index() const { return self_->warp_index; }
  unsigned num_warps() const { return view_.num_threads / warp_lanes; }
  unsigned index() const { return view_.index; }
  unsigned num_blocks() const { return view_.num_blocks; }

  uint64_t thread_in_grid() const { return uint64_t{index()} * num_threads() + thread(); }
  uint64_t grid_threads() const { return uint64_t{num_blocks()} * num_threads(); }
  uint64_t warp_in_grid() const { return uint64_t{index()} * num_warps() + warp_index(); }
  uint64_t grid_warps() const { return uint64_t{num_blocks()} * num_warps(); }

  // This block as one of `count` blocks, the first of which has number `first` in the grid.
  Block part(unsigned first, unsigned count) const {
    return Block(*self_, {view_.index - first, count, view_.num_threads, view_.shared});
  }

  void sync(std::source_location place = std::source_location::current()) const {
    emulator::meet_block(*self_, place);
  }

  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(view_.shared);
  }

 private:
  emulator::Lane* self_;
  emulator::BlockView view_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_WARP_EMULATED_H_
