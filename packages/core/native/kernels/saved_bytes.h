// The frame of saved counters and filters; docs/format/admission.md and
// docs/format/bloom.md describe it. The latter begins with "SPRBLOOM":
//
//   ┌────────────┬─────────┬──────┬───────────────────────────┬──────────┐
//   │ "SPRADMIT" │ version │ kind │ payload, filled up to 8 k │ checksum │
//   │    8 bytes │     u32 │  u32 │                           │      u64 │
//   └────────────┴─────────┴──────┴───────────────────────────┴──────────┘
//
// All numbers are little-endian. The checksum covers all bytes before it: each word is
// combined with it and mixed, so it detects any change of a single word.
#ifndef SPARRING_KERNELS_SAVED_BYTES_H_
#define SPARRING_KERNELS_SAVED_BYTES_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sparring::kernels {

static_assert(std::endian::native == std::endian::little,
              "saved counters are copied without a conversion, and must be little-endian");

// `bloom` counts for an admission filter; `key_filter` is a BlockedBloom.
enum class SavedKind : uint32_t { frequency = 1, probability = 2, bloom = 3, key_filter = 4 };

class SavedWriter {
 public:
  // Throws std::bad_alloc, like all methods. `bytes`: estimated number of bytes.
  explicit SavedWriter(SavedKind kind, size_t bytes = 0);

  template <class T>
  void add(const T* values, size_t count) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(values), count * sizeof(T));
  }
  void add(uint64_t value) { add(&value, 1); }

  // Call once, last.
  std::string finish();

 private:
  std::string bytes_;
};

// Reads numbers from the beginning of a payload with a valid frame. Throws
// std::invalid_argument for any error.
class SavedReader {
 public:
  SavedReader(std::string_view saved, SavedKind kind);

  uint64_t take() { return take_many<uint64_t>(1)[0]; }

  // `count` may come from the bytes, so at most the existing bytes are allocated.
  template <class T>
  std::vector<T> take_many(uint64_t count) {
    static_assert(std::is_arithmetic_v<T>);
    if (count > payload_.size() / sizeof(T)) refuse_short();
    std::vector<T> values(count);
    copy_front(values.data(), count * sizeof(T));
    return values;
  }

  // Reads a number that must be `wanted`; `what` is its name for the error.
  void expect(uint64_t wanted, const char* what);
  // Checks that only padding is left.
  void expect_end() const;

 private:
  [[noreturn]] static void refuse_short();
  void copy_front(void* to, size_t size);

  std::string_view payload_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_SAVED_BYTES_H_
