#include "stream_table.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace sparring::device {
namespace {

struct Holder {
  std::shared_ptr<Device> device;
  std::string name;
  SparringStreams streams{};
};

SparringStatus refuse(SparringStreamCall* call, SparringStatus status, const char* message) noexcept {
  char* const copy = static_cast<char*>(std::malloc(std::strlen(message) + 1));
  if (copy == nullptr) {
    call->error = {"the message of the error could not be allocated", nullptr, nullptr};
  } else {
    std::strcpy(copy, message);
    call->error = {copy, [](SparringError* error) { std::free(error->owner); }, copy};
  }
  return status;
}

// Creates a function of the table from one of the device; `Body` captures nothing.
template <class Body>
constexpr SparringStreamFunction with(Body) {
  return [](void* self, SparringStreamCall* call) -> SparringStatus {
    try {
      Body{}(*static_cast<Device*>(self), *call);
      return SPARRING_OK;
    } catch (const OutOfDeviceMemory& error) {
      return refuse(call, SPARRING_OUT_OF_MEMORY, error.what());
    } catch (const DeviceLost& error) {
      return refuse(call, SPARRING_DEVICE_LOST, error.what());
    } catch (const DeviceError& error) {
      return refuse(call, SPARRING_DEVICE_FAILED, error.what());
    } catch (const std::exception& error) {
      return refuse(call, SPARRING_INTERNAL, error.what());
    }
  };
}

void fill(SparringStreams& streams) {
  using Call = SparringStreamCall;
  streams.version = {SPARRING_STREAMS_ABI_MAJOR, SPARRING_STREAMS_ABI_MINOR};
  streams.struct_bytes = sizeof streams;
  streams.make_stream = with([](Device& d, Call& call) { call.stream = d.make_stream(); });
  streams.free_stream = with([](Device& d, Call& call) { d.free_stream(call.stream); });
  streams.make_event = with([](Device& d, Call& call) { call.event = d.make_event(); });
  streams.free_event = with([](Device& d, Call& call) { d.free_event(call.event); });
  streams.record_event = with([](Device& d, Call& call) { d.record(call.event, call.stream); });
  streams.order_after = with([](Device& d, Call& call) { d.order_after(call.event, call.stream); });
  streams.query_event = with([](Device& d, Call& call) { call.is_done = d.is_done(call.event); });
  streams.call_on_host = with(
      [](Device& d, Call& call) { d.call_on_host(call.stream, call.function, call.argument); });
  streams.allocate_pinned =
      with([](Device& d, Call& call) { call.to = d.allocate_pinned(call.num_bytes); });
  streams.free_pinned = with([](Device& d, Call& call) { d.free_pinned(call.to, call.num_bytes); });
  streams.copy =
      with([](Device& d, Call& call) { d.copy(call.to, call.from, call.num_bytes, call.stream); });
}

}  // namespace

const SparringStreams* streams_of(const std::shared_ptr<Device>& device) {
  static std::mutex mutex;
  static auto* const holders = new std::map<const Device*, Holder>;
  const std::lock_guard<std::mutex> lock(mutex);
  Holder& holder = (*holders)[device.get()];
  if (holder.device == nullptr) {
    holder.device = device;
    holder.name = device->name();
    fill(holder.streams);
    holder.streams.device = holder.name.c_str();
    holder.streams.self = device.get();
  }
  return &holder.streams;
}

}  // namespace sparring::device
