// Implements warp.h with CUDA's intrinsics. Include warp.h instead.
#ifndef SPARRING_HKV_DEVICE_WARP_CUDA_H_
#define SPARRING_HKV_DEVICE_WARP_CUDA_H_

#include <type_traits>

namespace sparring::device {

class Warp {
 public:
  __device__ __forceinline__ unsigned lane() const { return threadIdx.x % warp_lanes; }

  __device__ __forceinline__ uint32_t ballot(bool holds) const {
    return __ballot_sync(all_lanes, holds);
  }
  __device__ __forceinline__ bool any(bool holds) const { return __any_sync(all_lanes, holds); }
  __device__ __forceinline__ bool all(bool holds) const { return __all_sync(all_lanes, holds); }
  __device__ __forceinline__ void sync() const { __syncwarp(all_lanes); }

  // The value of lane `source % 32`.
  template <class T>
  __device__ __forceinline__ T shuffle(T value, unsigned source) const {
    return moved(value, [source](uint32_t word) {
      return __shfl_sync(all_lanes, word, static_cast<int>(source));
    });
  }
  // The value of the lane whose number differs by the bits of `mask`.
  template <class T>
  __device__ __forceinline__ T shuffle_xor(T value, unsigned mask) const {
    return moved(value, [mask](uint32_t word) {
      return __shfl_xor_sync(all_lanes, word, static_cast<int>(mask));
    });
  }
  // The value of the lane `distance` before this one; its own value if there is none.
  template <class T>
  __device__ __forceinline__ T shuffle_up(T value, unsigned distance) const {
    return moved(value, [distance](uint32_t word) {
      return __shfl_up_sync(all_lanes, word, distance);
    });
  }
  // The value of the lane `distance` after this one; its own value if there is none.
  template <class T>
  __device__ __forceinline__ T shuffle_down(T value, unsigned distance) const {
    return moved(value, [distance](uint32_t word) {
      return __shfl_down_sync(all_lanes, word, distance);
    });
  }
  // Mask of the lanes with an equal value of 4 or 8 bytes.
  template <class T>
  __device__ __forceinline__ uint32_t match(T value) const {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    if constexpr (sizeof(T) == 4) {
      return __match_any_sync(all_lanes, static_cast<unsigned>(value));
    } else {
      return __match_any_sync(all_lanes, static_cast<unsigned long long>(value));
    }
  }

 private:
  template <class T, class Move>
  __device__ __forceinline__ static T moved(T value, Move move) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
    if constexpr (sizeof(T) < 4) {
      uint32_t word = 0;
      memcpy(&word, &value, sizeof(T));
      word = move(word);
      memcpy(&value, &word, sizeof(T));
    } else {
      static_assert(sizeof(T) % 4 == 0);
      uint32_t words[sizeof(T) / 4];
      memcpy(words, &value, sizeof(T));
#pragma unroll
      for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = move(words[i]);
      memcpy(&value, words, sizeof(T));
    }
    return value;
  }
};

class Block {
 public:
  __device__ __forceinline__ Block() : Block(blockIdx.x, gridDim.x) {}

  // This block as one of `count` blocks, the first of which has number `first` in the grid.
  __device__ __forceinline__ Block part(unsigned first, unsigned count) const {
    return Block(index_ - first, count);
  }

  __device__ __forceinline__ Warp warp() const { return {}; }
  __device__ __forceinline__ unsigned thread() const { return threadIdx.x; }
  __device__ __forceinline__ unsigned num_threads() const { return blockDim.x; }
  __device__ __forceinline__ unsigned warp_index() const { return threadIdx.x / warp_lanes; }
  __device__ __forceinline__ unsigned num_warps() const { return blockDim.x / warp_lanes; }
  __device__ __forceinline__ unsigned index() const { return index_; }
  __device__ __forceinline__ unsigned num_blocks() const { return num_blocks_; }

  __device__ __forceinline__ uint64_t thread_in_grid() const {
    return uint64_t{index_} * blockDim.x + threadIdx.x;
  }
  __device__ __forceinline__ uint64_t grid_threads() const {
    return uint64_t{num_blocks_} * blockDim.x;
  }
  __device__ __forceinline__ uint64_t warp_in_grid() const {
    return uint64_t{index_} * num_warps() + warp_index();
  }
  __device__ __forceinline__ uint64_t grid_warps() const {
    return uint64_t{num_blocks_} * num_warps();
  }

  __device__ __forceinline__ void sync() const { __syncthreads(); }

  // The block's shared memory, with the size requested at the launch.
  template <class T>
  __device__ __forceinline__ T* shared() const {
    extern __shared__ Vector16 sparring_shared_memory[];
    return reinterpret_cast<T*>(sparring_shared_memory);
  }

 private:
  __device__ __forceinline__ Block(unsigned index, unsigned num_blocks)
      : index_(index), num_blocks_(num_blocks) {}

  unsigned index_;
  unsigned num_blocks_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_WARP_CUDA_H_
