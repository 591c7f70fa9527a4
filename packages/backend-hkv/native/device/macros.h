// What marks functions of kernels, for nvcc and for any other compiler.
#ifndef SPARRING_HKV_DEVICE_MACROS_H_
#define SPARRING_HKV_DEVICE_MACROS_H_

#if defined(__CUDACC__)
// Runs on the device only / on both sides.
#define SPARRING_DEVICE __device__ __forceinline__
#define SPARRING_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SPARRING_DEVICE inline
#define SPARRING_HOST_DEVICE inline
#endif

#endif  // SPARRING_HKV_DEVICE_MACROS_H_
