// Atomic accesses to memory that threads share, and wide accesses.
//
// All atomics are relaxed: they order no other accesses. fence() orders a thread's
// accesses before it and after it, for threads that read through these functions.
//
#ifndef SPARRING_HKV_DEVICE_ATOMICS_H_
#define SPARRING_HKV_DEVICE_ATOMICS_H_

#include <cstring>
#include <type_traits>

#include "warp.h"

#if !defined(__CUDACC__)
#include <atomic>
#endif

namespace sparring::device {

#if defined(__CUDACC__)

namespace detail {
// CUDA declares 64-bit atomics for `unsigned long long`, which is not uint64_t on Linux.
template <class T>
using Word = std::conditional_t<sizeof(T) == 4,
                                std::conditional_t<std::is_signed_v<T>, int, unsigned>,
                                std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>>;
template <class T>
__device__ __forceinline__ Word<T>* word(T* at) {
  static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  return reinterpret_cast<Word<T>*>(at);
}
}  // namespace detail

// All return the previous value.
template <class T>
__device__ __forceinline__ T atomic_add(T* at, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return atomicAdd(at, value);
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<T>(atomicAdd(reinterpret_cast<unsigned long long*>(at),
                                    static_cast<unsigned long long>(value)));
  } else {
    return static_cast<T>(atomicAdd(detail::word(at), static_cast<detail::Word<T>>(value)));
  }
}
template <class T>
__device__ __forceinline__ T atomic_min(T* at, T value) {
  return static_cast<T>(atomicMin(detail::word(at), static_cast<detail::Word<T>>(value)));
}
template <class T>
__device__ __forceinline__ T atomic_max(T* at, T value) {
  return static_cast<T>(atomicMax(detail::word(at), static_cast<detail::Word<T>>(value)));
}
template <class T>
__device__ __forceinline__ T atomic_or(T* at, T value) {
  static_assert(std::is_unsigned_v<T>);
  return static_cast<T>(atomicOr(detail::word(at), static_cast<detail::Word<T>>(value)));
}
template <class T>
__device__ __forceinline__ T atomic_and(T* at, T value) {
  static_assert(std::is_unsigned_v<T>);
  return static_cast<T>(atomicAnd(detail::word(at), static_cast<detail::Word<T>>(value)));
}
template <class T>
__device__ __forceinline__ T atomic_exchange(T* at, T value) {
  static_assert(std::is_integral_v<T>);
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(atomicExch(reinterpret_cast<unsigned long long*>(at),
                                     static_cast<unsigned long long>(value)));
  } else {
    return static_cast<T>(atomicExch(detail::word(at), static_cast<detail::Word<T>>(value)));
  }
}
// Stores `desired` if the value is `expected`.
template <class T>
__device__ __forceinline__ T atomic_cas(T* at, T expected, T desired) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(atomicCAS(reinterpret_cast<unsigned long long*>(at),
                                    static_cast<unsigned long long>(expected),
                                    static_cast<unsigned long long>(desired)));
  } else {
    return static_cast<T>(atomicCAS(detail::word(at), static_cast<detail::Word<T>>(expected),
                                    static_cast<detail::Word<T>>(desired)));
  }
}
template <class T>
__device__ __forceinline__ T atomic_load(const T* at) {
  return *const_cast<const volatile T*>(at);
}
template <class T>
__device__ __forceinline__ void atomic_store(T* at, T value) {
  *const_cast<volatile T*>(at) = value;
}
__device__ __forceinline__ void fence() { __threadfence(); }

// One access of 16 bytes. REQUIRES: 16-byte alignment, and global memory. The compiler is told so,
// because it cannot infer the address space of a pointer loaded from memory.
__device__ __forceinline__ Vector16 load_16(const void* from) {
  __builtin_assume(__isGlobal(from));
  const uint4 read = *static_cast<const uint4*>(from);
  return {{read.x, read.y, read.z, read.w}};
}
__device__ __forceinline__ void store_16(void* to, const Vector16& value) {
  __builtin_assume(__isGlobal(to));
  *static_cast<uint4*>(to) =
      make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}
// The same for data that this kernel reads once, which should not evict other cache lines.
__device__ __forceinline__ Vector16 load_16_once(const void* from) {
  const uint4 read = __ldcs(static_cast<const uint4*>(from));
  return {{read.x, read.y, read.z, read.w}};
}
__device__ __forceinline__ void store_16_once(void* to, const Vector16& value) {
  __stcs(static_cast<uint4*>(to),
         make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]));
}

#else  // the emulator

template <class T>
inline T atomic_add(T* at, T value) {
  emulator::pause_at_atomic();
  return std::atomic_ref<T>(*at).fetch_add(value, std::memory_order_relaxed);
}
namespace detail {
template <class T, class Better>
inline T atomic_best(T* at, T value, Better better) {
  emulator::pause_at_atomic();
  std::atomic_ref<T> word(*at);
  T before = word.load(std::memory_order_relaxed);
  while (better(value, before) &&
         !word.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
}
}  // namespace detail
template <class T>
inline T atomic_min(T* at, T value) {
  return detail::atomic_best(at, value, [](T left, T right) { return left < right; });
}
template <class T>
inline T atomic_max(T* at, T value) {
  return detail::atomic_best(at, value, [](T left, T right) { return left > right; });
}
template <class T>
inline T atomic_or(T* at, T value) {
  emulator::pause_at_atomic();
  return std::atomic_ref<T>(*at).fetch_or(value, std::memory_order_relaxed);
}
template <class T>
inline T atomic_and(T* at, T value) {
  emulator::pause_at_atomic();
  return std::atomic_ref<T>(*at).fetch_and(value, std::memory_order_relaxed);
}
template <class T>
inline T atomic_exchange(T* at, T value) {
  emulator::pause_at_atomic();
  return std::atomic_ref<T>(*at).exchange(value, std::memory_order_relaxed);
}
template <class T>
inline T atomic_cas(T* at, T expected, T desired) {
  emulator::pause_at_atomic();
  std::atomic_ref<T>(*at).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}
template <class T>
inline T atomic_load(const T* at) {
  emulator::pause_at_atomic();
  return std::atomic_ref<T>(*const_cast<T*>(at)).load(std::memory_order_relaxed);
}
template <class T>
inline void atomic_store(T* at, T value) {
  emulator::pause_at_atomic();
  std::atomic_ref<T>(*at).store(value, std::memory_order_relaxed);
}
inline void fence() {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not support fences; this read-modify-write orders as much.
  static std::atomic<int> crossing{0};
  crossing.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

inline Vector16 load_16(const void* from) {
  emulator::check_aligned_to_16(from);
  Vector16 value;
  std::memcpy(&value, from, 16);
  return value;
}
inline void store_16(void* to, const Vector16& value) {
  emulator::check_aligned_to_16(to);
  std::memcpy(to, &value, 16);
}
inline Vector16 load_16_once(const void* from) { return load_16(from); }
inline void store_16_once(void* to, const Vector16& value) { store_16(to, value); }

#endif

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_ATOMICS_H_
