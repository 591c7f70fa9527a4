// The encoding of a key in the database, and the order of keys there.
//
//   key (int64)            code: sign bit flipped      bytes: big endian
//   -2^63                  0x0000000000000000          00 00 00 00 00 00 00 00
//   -1                     0x7fffffffffffffff          7f ff ff ff ff ff ff ff
//   0                      0x8000000000000000          80 00 00 00 00 00 00 00
//   2^63 - 1               0xffffffffffffffff          ff ff ff ff ff ff ff ff
//
// Therefore RocksDB's order of bytes is the order of integers for all of int64.
#ifndef SPARRING_ROCKSDB_TABLE_KEY_ORDER_H_
#define SPARRING_ROCKSDB_TABLE_KEY_ORDER_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace sparring::flash {

constexpr uint64_t kSignBit = uint64_t{1} << 63;

constexpr uint64_t code_of(int64_t key) { return static_cast<uint64_t>(key) ^ kSignBit; }
constexpr int64_t key_of(uint64_t code) { return static_cast<int64_t>(code ^ kSignBit); }

// The 8 bytes that RocksDB compares.
class KeyBytes {
 public:
  KeyBytes() = default;
  explicit KeyBytes(uint64_t code) {
    for (int i = 0; i < 8; ++i) bytes_[i] = static_cast<char>(code >> (56 - 8 * i));
  }

  const char* data() const { return bytes_; }
  static constexpr size_t size() { return 8; }

  // `bytes` are 8 that a KeyBytes wrote.
  static uint64_t code(const char* bytes) {
    uint64_t code = 0;
    for (int i = 0; i < 8; ++i) code = code << 8 | static_cast<unsigned char>(bytes[i]);
    return code;
  }

 private:
  char bytes_[8];
};

// A key as its code, with its position in the arrays of a call.
struct PlacedCode {
  uint64_t code;
  int64_t position;
};

// The keys of a call in ascending order. A radix sort over the bytes in which they differ: a comparison
// sort takes three times as long for the thousands of keys of a batch.
std::vector<PlacedCode> in_order(const int64_t* keys, int64_t count);

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_KEY_ORDER_H_
