// Numbers in saved bytes, little-endian.
#ifndef SPARRING_KERNELS_SAVED_BYTES_H_
#define SPARRING_KERNELS_SAVED_BYTES_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sparring::kernels {

static_assert(std::endian::native == std::endian::little);

template <class T>
void append(std::string& bytes, const T* values, size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Takes numbers off the front. Throws std::invalid_argument where too few are left.
class SavedBytes {
 public:
  explicit SavedBytes(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, front(sizeof(T)), sizeof(T));
    return value;
  }

  // REQUIRES: nothing; `count` may come from the bytes.
  template <class T>
  std::vector<T> take_many(uint64_t count) {
    if (count > bytes_.size() / sizeof(T)) throw std::invalid_argument("the bytes end too early");
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), front(count * sizeof(T)), count * sizeof(T));
    return values;
  }

  void expect(std::string_view text) {
    if (bytes_.substr(0, text.size()) != text) {
      throw std::invalid_argument("the bytes do not begin with '" + std::string(text) + "'");
    }
    bytes_.remove_prefix(text.size());
  }

  void expect_end() const {
    if (!bytes_.empty()) throw std::invalid_argument("bytes are left over at the end");
  }

 private:
  const char* front(size_t size) {
    if (size > bytes_.size()) throw std::invalid_argument("the bytes end too early");
    const char* at = bytes_.data();
    bytes_.remove_prefix(size);
    return at;
  }

  std::string_view bytes_;
};

}  // namespace sparring::kernels

#endif  // SPARRING_KERNELS_SAVED_BYTES_H_
