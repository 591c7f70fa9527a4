// The streams of a device for core, as a table of C functions: sparring/stream_abi.h.
#ifndef SPARRING_HKV_DEVICE_STREAM_TABLE_H_
#define SPARRING_HKV_DEVICE_STREAM_TABLE_H_

#include <memory>

#include "memory.h"
#include "sparring/stream_abi.h"

namespace sparring::device {

// The table of a device, always the same one. The table and the device then exist until the process
// ends, because waits for streams may outlive the caller that started them.
const SparringStreams* streams_of(const std::shared_ptr<Device>& device);

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_STREAM_TABLE_H_
