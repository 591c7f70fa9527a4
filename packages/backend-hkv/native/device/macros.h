// Attributes of functions in kernels, for nvcc and for other compilers.
#ifndef SPARRING_HKV_DEVICE_MACROS_H_
#define SPARRING_HKV_DEVICE_MACROS_H_

#if defined(__CUDACC__)
// Runs on the device only / on both sides.
#define SPARRING_DEVICE __device__ __forceinline__
#define SPARRING_HOST_DEVICE __host__ __device__ __forceinline__
// Before a loop: unroll it, so that its arrays are in registers / do not unroll it.
#define SPARRING_UNROLL _Pragma("unroll")
#define SPARRING_NO_UNROLL _Pragma("unroll 1")
#else
#define SPARRING_DEVICE inline
#define SPARRING_HOST_DEVICE inline
#define SPARRING_UNROLL
#define SPARRING_NO_UNROLL
#endif

#endif  // SPARRING_HKV_DEVICE_MACROS_H_
