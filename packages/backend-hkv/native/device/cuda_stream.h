// Queries properties of a CUDA stream without enqueueing work on it.
#ifndef SPARRING_HKV_DEVICE_CUDA_STREAM_H_
#define SPARRING_HKV_DEVICE_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

namespace sparring::device {

// The number of the stream's GPU; -1: the GPU of the calling thread, or unknown to the driver.
int device_of(cudaStream_t stream);

// Whether the stream is being captured into a graph, or is the default stream and its use would
// invalidate the capture of another stream. Throws DeviceError, DeviceLost.
bool is_captured(cudaStream_t stream);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_CUDA_STREAM_H_
