// Moving rows by the lanes of a tile, in the widest words that everything is
// aligned to.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_

#include <cstdint>
#include <initializer_list>

#include "device_locate.h"

namespace sparring::hkv {

template <class Word>
SPARRING_DEVICE Word load_word(const char* from) {
  return *reinterpret_cast<const Word*>(from);
}
template <>
SPARRING_DEVICE device::Vector16 load_word(const char* from) {
  return device::load_16_once(from);
}
template <class Word>
SPARRING_DEVICE void store_word(char* to, const Word& word) {
  *reinterpret_cast<Word*>(to) = word;
}
template <>
SPARRING_DEVICE void store_word(char* to, const device::Vector16& word) {
  device::store_16_once(to, word);
}

// `lane` of `num_lanes` that move `bytes` together. `from` NULL: zeros.
template <class Word>
SPARRING_DEVICE void copy_row(char* to, const char* from, uint64_t bytes, unsigned lane,
                              unsigned num_lanes = kTileLanes) {
  for (uint64_t at = lane * sizeof(Word); at < bytes; at += num_lanes * sizeof(Word)) {
    store_word<Word>(to + at, from == nullptr ? Word{} : load_word<Word>(from + at));
  }
}

// The most of 16, 4, 2 and 1 bytes that divides all of these.
inline unsigned word_bytes(std::initializer_list<uint64_t> numbers) {
  uint64_t all = 0;
  for (const uint64_t number : numbers) all |= number;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}
inline uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Calls body.template operator()<Word>() with the word of that many bytes.
template <class Body>
void with_word(unsigned bytes, const Body& body) {
  switch (bytes) {
    case 16:
      return body.template operator()<device::Vector16>();
    case 4:
      return body.template operator()<uint32_t>();
    case 2:
      return body.template operator()<uint16_t>();
    default:
      return body.template operator()<uint8_t>();
  }
}

// Bytes of rows by their numbers into a dense array: zeros for kNoDeviceRow.
template <class Word>
struct GatherRows {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceRowsView rows;
  uint64_t begin;           // first byte of the row that is wanted
  uint64_t bytes;           // how many
  const uint32_t* numbers;  // (count) device
  uint64_t count;
  char* out;  // (count, out_stride) bytes, device
  uint64_t out_stride;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t at = block.thread_in_grid(); at / kTileLanes < count;
         at += block.grid_threads()) {
      const uint64_t i = at / kTileLanes;
      const uint32_t number = numbers[i];
      copy_row<Word>(out + i * out_stride,
                     number == kNoDeviceRow ? nullptr : rows.at(number) + begin, bytes,
                     static_cast<unsigned>(at % kTileLanes));
    }
  }
};

// Whole rows of the call to where their numbers say; kNoDeviceRow: nowhere.
template <class Word>
struct ScatterRows {
  static constexpr unsigned block_threads = kBlockThreads;
  DeviceRowsView rows;
  uint64_t bytes;
  const uint32_t* numbers;  // (count) device
  uint64_t count;
  const char* in;  // (count, in_stride) bytes, device
  uint64_t in_stride;

  SPARRING_DEVICE void operator()(const device::Block& block) const {
    for (uint64_t at = block.thread_in_grid(); at / kTileLanes < count;
         at += block.grid_threads()) {
      const uint64_t i = at / kTileLanes;
      const uint32_t number = numbers[i];
      if (number == kNoDeviceRow) continue;
      copy_row<Word>(rows.at(number), in + i * in_stride, bytes,
                     static_cast<unsigned>(at % kTileLanes));
    }
  }
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_COPY_H_
