// Moves rows of one size, up to 32 per warp.
//
//   lanes      0  1 | 2  3 | 4  5 | ...        rows of 32 bytes: two lanes per row, 16 rows at once
//   lanes      0 ........ 15 | 16 ........ 31  rows of 256 bytes: 16 lanes per row, 2 rows at once
//
// Rows are scattered in memory, so each load has the full memory latency. Therefore each lane has
// four loads in flight before it stores the first.
#ifndef SPARRING_HKV_DEVICE_MOVE_ROWS_H_
#define SPARRING_HKV_DEVICE_MOVE_ROWS_H_

#include <cstdint>
#include <initializer_list>

#include "atomics.h"
#include "warp.h"

namespace sparring::device {

// How the lanes of a warp are assigned to rows.
struct RowShape {
  uint32_t num_words;   // per row
  uint32_t lanes_bits;  // 2^lanes_bits lanes move a row together
};

template <class Word>
RowShape row_shape(uint64_t row_bytes) {
  RowShape shape{static_cast<uint32_t>(row_bytes / sizeof(Word)), 0};
  while (shape.lanes_bits < 5 && (1u << shape.lanes_bits) < shape.num_words) ++shape.lanes_bits;
  return shape;
}

// The largest of 16, 4, 2 and 1 bytes that divides all of these numbers.
inline unsigned word_bytes(std::initializer_list<uint64_t> numbers) {
  uint64_t all = 0;
  for (const uint64_t number : numbers) all |= number;
  return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}
inline uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// Calls body.template operator()<Word>() with a word of that many bytes.
template <class Body>
void with_word(unsigned bytes, const Body& body) {
  switch (bytes) {
    case 16:
      return body.template operator()<Vector16>();
    case 4:
      return body.template operator()<uint32_t>();
    case 2:
      return body.template operator()<uint16_t>();
    default:
      return body.template operator()<uint8_t>();
  }
}

// Whether rows will be read again soon.
enum class Reading { kOnce, kAgain };

template <class Word, Reading kReading>
SPARRING_DEVICE Word load_word(const char* from) {
  if constexpr (sizeof(Word) == 16) {
    return kReading == Reading::kOnce ? load_16_once(from) : load_16(from);
  } else {
    return *reinterpret_cast<const Word*>(from);
  }
}
template <class Word>
SPARRING_DEVICE void store_word(char* to, const Word& word) {
  if constexpr (sizeof(Word) == 16) {
    store_16_once(to, word);
  } else {
    *reinterpret_cast<Word*>(to) = word;
  }
}

// Each lane passes the source of its row (NULL: zeros) and its destination (NULL: none). Rows of
// lanes from `num_rows` on are skipped. All lanes of the warp must call this together.
template <class Word, Reading kReading>
SPARRING_DEVICE void move_rows(const Warp& warp, const RowShape& shape, unsigned num_rows,
                               const char* from, char* to) {
  constexpr unsigned kInFlight = 4;
  const unsigned rows_bits = 5 - shape.lanes_bits;  // 2^rows_bits rows at once
  const unsigned first_row = warp.lane() >> shape.lanes_bits;
  const unsigned first_word = warp.lane() & ((1u << shape.lanes_bits) - 1);
  const unsigned num_rounds = (num_rows + (1u << rows_bits) - 1) >> rows_bits;
  for (unsigned round = 0; round < num_rounds; round += kInFlight) {
    const char* sources[kInFlight];
    char* targets[kInFlight];
    SPARRING_UNROLL
    for (unsigned k = 0; k < kInFlight; ++k) {
      sources[k] = nullptr;
      targets[k] = nullptr;
      if (round + k >= num_rounds) continue;  // the same for all lanes
      const unsigned row = ((round + k) << rows_bits) + first_row;
      sources[k] = warp.shuffle(from, row);
      targets[k] = warp.shuffle(to, row);
    }
    for (unsigned word = first_word; word < shape.num_words; word += 1u << shape.lanes_bits) {
      const auto at = uint64_t{word} * sizeof(Word);
      Word words[kInFlight];
      SPARRING_UNROLL
      for (unsigned k = 0; k < kInFlight; ++k) {
        words[k] = Word{};
        if (targets[k] != nullptr && sources[k] != nullptr) {
          words[k] = load_word<Word, kReading>(sources[k] + at);
        }
      }
      SPARRING_UNROLL
      for (unsigned k = 0; k < kInFlight; ++k) {
        if (targets[k] != nullptr) store_word<Word>(targets[k] + at, words[k]);
      }
    }
  }
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_MOVE_ROWS_H_
