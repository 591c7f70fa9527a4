#include "device_kernels/encode.h"

#include "device_kernels/tile.h"

namespace sparring::device_kernels {
namespace {

// Number of columns that one thread processes.
constexpr uint64_t kColumns = 8;

template <class Half>
struct Decodes {
  static constexpr unsigned block_threads = kBlockThreads;
  RowPlaces rows;
  float* out;
  uint64_t count;
  uint64_t dim;

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t at = block.thread_in_grid(); at < count * dim; at += block.grid_threads()) {
      const auto* row = reinterpret_cast<const Half*>(rows.at(at / dim));
      out[at] = HalfBits<Half>::decode(row[at % dim].bits);
    }
  }
};

template <class Half>
struct Encodes {
  static constexpr unsigned block_threads = kBlockThreads;
  const float* embeddings;
  RowPlaces rows;
  Rounding rounding;
  uint64_t salt;        // from rounding_salt
  uint64_t count;
  uint64_t dim;
  uint64_t num_blocks;  // blocks of columns per row

  SPARRING_DEVICE void operator()(const Block& block) const {
    for (uint64_t at = block.thread_in_grid(); at < count * num_blocks; at += block.grid_threads()) {
      const uint64_t i = at / num_blocks;
      const uint64_t first = at % num_blocks * kColumns;
      const float* from = embeddings + i * dim;
      auto* to = reinterpret_cast<Half*>(rows.at(i));
      const uint64_t end = first + kColumns < dim ? first + kColumns : dim;
      if (rounding.keys == nullptr) {
        for (uint64_t k = first; k < end; ++k) to[k] = nearest_half<Half>(from[k]);
        continue;
      }
      const int64_t key =
          rounding.keys[rounding.positions != nullptr ? rounding.positions[i]
                                                      : static_cast<int64_t>(i)];
      const uint64_t stream = rounding_stream(salt, key);
      for (uint64_t k = first; k < end; ++k) {
        const uint32_t word = rounding_word(stream, static_cast<uint32_t>(k / 2));
        to[k] = stochastic_half<Half>(from[k], word >> (k % 2 * 16) & 0xffff);
      }
    }
  }
};

template <class Body>
void with_half(RowType type, const Body& body) {
  if (type == RowType::float16) return body(Float16{});
  body(Bfloat16{});
}

}  // namespace

void decode(Device& device, Stream stream, const HalfRows& rows, float* out) {
  if (rows.count == 0 || rows.dim == 0) return;
  const auto count = static_cast<uint64_t>(rows.count);
  const auto dim = static_cast<uint64_t>(rows.dim);
  with_half(rows.type, [&]<class Half>(Half) {
    launch(device, grid_for(device, count * dim), stream, Decodes<Half>{rows.rows, out, count, dim});
  });
}

void encode(Device& device, Stream stream, const float* embeddings, const Rounding& rounding,
            const HalfRows& rows) {
  if (rows.count == 0 || rows.dim == 0) return;
  const auto count = static_cast<uint64_t>(rows.count);
  const auto dim = static_cast<uint64_t>(rows.dim);
  const uint64_t num_blocks = (dim + kColumns - 1) / kColumns;
  with_half(rows.type, [&]<class Half>(Half) {
    launch(device, grid_for(device, count * num_blocks), stream,
           Encodes<Half>{embeddings, rows.rows, rounding, rounding_salt(rounding.seed, rounding.step),
                         count, dim, num_blocks});
  });
}

}  // namespace sparring::device_kernels
