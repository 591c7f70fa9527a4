// Functions of the driver, looked up at run time, so that this module loads without a driver.
#ifndef SPARRING_HKV_DEVICE_CUDA_DRIVER_H_
#define SPARRING_HKV_DEVICE_CUDA_DRIVER_H_

#include <cuda_runtime_api.h>

namespace sparring::device {

// Returns a function with the interface of CUDA 12.0, or NULL if there is none.
inline void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (status == cudaSuccess && result == cudaDriverEntryPointSuccess) return found;
  cudaGetLastError();
  return nullptr;
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_DRIVER_H_
