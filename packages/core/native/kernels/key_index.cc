#include "kernels/key_index.h"

#include <random>

namespace sparring::kernels {

const HashSecret& hash_secret() {
  static const HashSecret secret = [] {
    std::random_device source;
    const auto draw = [&] { return (uint64_t{source()} << 32) | source(); };
    return HashSecret{draw(), draw() | 1};
  }();
  return secret;
}

}  // namespace sparring::kernels
