// Small functions that kernels share with other code must never be compiled out
// of line: the kernels are compiled for particular processors, and the linker
// might use such a copy everywhere. See kernels.h. With nvcc they are also
// compiled for the GPU, because its table uses the same hashes and scores.
#ifndef SPARRING_HKV_TABLE_INLINE_H_
#define SPARRING_HKV_TABLE_INLINE_H_

#if defined(__CUDACC__)
#define SPARRING_HKV_INLINE __host__ __device__ __forceinline__
#else
#define SPARRING_HKV_INLINE [[gnu::always_inline]] inline
#endif

#endif  // SPARRING_HKV_TABLE_INLINE_H_
