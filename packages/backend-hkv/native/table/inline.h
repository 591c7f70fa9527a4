// Small functions that the kernels share with everybody else must never exist
// out of line: the kernels are compiled for particular processors, and the
// linker might pick such a copy for all. See kernels.h. Under nvcc they exist
// for the GPU too, since its table hashes and scores as this one does.
#ifndef SPARRING_HKV_TABLE_INLINE_H_
#define SPARRING_HKV_TABLE_INLINE_H_

#if defined(__CUDACC__)
#define SPARRING_HKV_INLINE __host__ __device__ __forceinline__
#else
#define SPARRING_HKV_INLINE [[gnu::always_inline]] inline
#endif

#endif  // SPARRING_HKV_TABLE_INLINE_H_
