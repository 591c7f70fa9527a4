#include "cuda_stream.h"

#include "cuda_driver.h"
#include "cuda_status.h"

namespace sparring::device {
namespace {

// Functions of the driver, because cudaStreamGetDevice requires CUDA 12.8.
struct StreamDriver {
  using Context = void*;
  using GetStreamContext = int (*)(cudaStream_t stream, Context* context);
  using GetCurrent = int (*)(Context* context);
  using Push = int (*)(Context context);
  using Pop = int (*)(Context* context);
  using GetDevice = int (*)(int* device);

  GetStreamContext get_context = reinterpret_cast<GetStreamContext>(driver_function("cuStreamGetCtx"));
  GetCurrent get_current = reinterpret_cast<GetCurrent>(driver_function("cuCtxGetCurrent"));
  Push push = reinterpret_cast<Push>(driver_function("cuCtxPushCurrent"));
  Pop pop = reinterpret_cast<Pop>(driver_function("cuCtxPopCurrent"));
  GetDevice get_device = reinterpret_cast<GetDevice>(driver_function("cuCtxGetDevice"));

  bool is_whole() const {
    return get_context != nullptr && get_current != nullptr && push != nullptr && pop != nullptr &&
           get_device != nullptr;
  }
};

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

}  // namespace

int device_of(cudaStream_t stream) {
  static const StreamDriver driver;
  if (is_default(stream) || !driver.is_whole()) return -1;
  StreamDriver::Context owner = nullptr;
  StreamDriver::Context here = nullptr;
  if (driver.get_context(stream, &owner) != 0 || driver.get_current(&here) != 0) return -1;
  if (owner == here || driver.push(owner) != 0) return -1;
  int number = -1;
  if (driver.get_device(&number) != 0) number = -1;
  driver.pop(&owner);
  return number;
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return true;
  }
  throw_if_failed(status, "querying whether a stream is being captured");
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace sparring::device
