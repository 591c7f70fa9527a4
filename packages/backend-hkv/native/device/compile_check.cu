// Instantiates what kernels use of the machine, so that nvcc has seen all of it.
#include "algorithms.h"
#include "atomics.h"
#include "launch.h"

namespace sparring::device {
namespace {

struct UsesEverything {
  static constexpr unsigned block_threads = 256;
  uint64_t* words;
  uint32_t* halves;
  float* reals;
  Vector16* vectors;
  SPARRING_DEVICE void operator()(const Block& block) const {
    const Warp warp = block.warp();
    const uint64_t i = block.thread_in_grid() + block.grid_threads() + block.warp_in_grid() +
                       block.grid_warps() + block.num_warps() + block.num_threads();
    uint64_t word = warp.shuffle(words[i], 3) + warp.shuffle_up(words[i], 1u) +
                    warp.shuffle_down(words[i], 1u) + warp.shuffle_xor(words[i], 1u);
    word += warp.match(words[i]) + warp.match(halves[i]) + warp.ballot(word > 3);
    const Vector16 vector = warp.shuffle(load_16(vectors + i), 1);
    if (warp.any(word > 1) || warp.all(word > 2)) word += equal_bytes(vector.words[0], repeated_byte(7));
    warp.sync();
    word += num_ones(vector.words[1]) + lowest_one(vector.words[2] | 1) +
            leading_zeros(vector.words[3]) + lanes_below(warp.lane());
    block.shared<uint64_t>()[block.thread()] = word;
    block.sync();
    atomic_add(words, word);
    atomic_min(words, word);
    atomic_max(halves, 3u);
    atomic_or(halves, 3u);
    atomic_and(words, word);
    atomic_exchange(words, word);
    atomic_cas(words, word, word + 1);
    atomic_cas(halves, 1u, 2u);
    atomic_add(reals, 1.0f);
    atomic_min(reinterpret_cast<int64_t*>(words), int64_t{-1});
    fence();
    atomic_store(words, atomic_load(words + 1));
    store_16(vectors, load_16_once(vectors + 1));
    store_16_once(vectors + 2, load_16(vectors + 3));
  }
};

}  // namespace

void compile_check(Device& device, Stream stream, void* memory) {
  auto* words = static_cast<uint64_t*>(memory);
  auto* halves = static_cast<uint32_t*>(memory);
  launch(device, {blocks_for(1000, 256, 16), 256 * 8}, stream,
         UsesEverything{words, halves, static_cast<float*>(memory), static_cast<Vector16*>(memory)});
  sort_pairs(device, stream, words, halves, words + 9, halves + 99, 9, {0, 20});
  sort_pairs(device, stream, halves, halves, halves + 9, halves + 99, 9, {0, 20});
  exclusive_sum(device, stream, halves, halves, 9);
  exclusive_sum(device, stream, words, words, 9);
  select_flagged(device, stream, halves, static_cast<uint8_t*>(memory), halves, halves, 9);
}

}  // namespace sparring::device
