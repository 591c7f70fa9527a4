// What a stream of CUDA is, asked without putting anything on it.
#ifndef SPARRING_HKV_DEVICE_CUDA_STREAM_H_
#define SPARRING_HKV_DEVICE_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

namespace sparring::device {

// The number of its GPU; -1: the calling thread's, or the driver does not say.
int device_of(cudaStream_t stream);

// Whether it is captured into a graph, or is the default stream, use of which would end a capture
// on another one. Throws DeviceError, DeviceLost.
bool is_captured(cudaStream_t stream);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_STREAM_H_
