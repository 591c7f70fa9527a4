// Converts status codes of the CUDA runtime to exceptions: errors of one call, after which the
// device is usable, and errors that persist until the process ends.
#ifndef SPARRING_HKV_DEVICE_CUDA_STATUS_H_
#define SPARRING_HKV_DEVICE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "memory.h"

namespace sparring::device {

inline std::string text_of(cudaError_t status) {
  return std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status);
}

// Based on the descriptions in the reference of the CUDA runtime: whether "the process must be
// terminated and relaunched", or no GPU is left.
enum class CudaSeverity { kCall, kLost, kUnknown };
inline CudaSeverity severity_of(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorNoDevice:
      return CudaSeverity::kLost;
    case cudaSuccess:
    case cudaErrorNotReady:
    case cudaErrorInvalidValue:
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorLaunchMaxDepthExceeded:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent:
      return CudaSeverity::kCall;
    default:
      return CudaSeverity::kUnknown;
  }
}

// Clears the error of a call, so that other code that reads the thread's last error does not see it.
// An error that remains after that is persistent, and every later call returns it.
inline bool is_lost(cudaError_t status) {
  cudaGetLastError();
  const CudaSeverity severity = severity_of(status);
  if (severity != CudaSeverity::kUnknown) return severity == CudaSeverity::kLost;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  const cudaError_t after = cudaMemGetInfo(&free_bytes, &total_bytes);
  cudaGetLastError();
  return after != cudaSuccess;
}

// Throws DeviceError or DeviceLost with `doing`; never OutOfDeviceMemory, which allocation reports.
inline void throw_if_failed(cudaError_t status, const std::string& doing) {
  if (status == cudaSuccess) return;
  const std::string message = doing + ": " + text_of(status);
  if (is_lost(status)) throw DeviceLost(message);
  throw DeviceError(message);
}

// The same for kernel launches: the driver may need memory and does not report how much.
inline void throw_if_start_failed(cudaError_t status, const std::string& doing) {
  if (status != cudaErrorMemoryAllocation) return throw_if_failed(status, doing);
  cudaGetLastError();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) cudaGetLastError();
  throw OutOfDeviceMemory(0, free_bytes, doing);
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_STATUS_H_
