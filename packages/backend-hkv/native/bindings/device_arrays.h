// Arrays of a device as Python gives them, by the DLPack protocol: NumPy's, PyTorch's,
// CuPy's. Checked here: dtype, shape, layout, alignment, and that they lie on the device.
// What indices hold is taken for granted.
#ifndef SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_
#define SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/reclaimers.h"
#include "device/memory.h"
#include "device/read_back.h"
#include "device_kernels/row_layout.h"

namespace sparring::hkv {

// Types of devices, as DLPack and storage_abi.h number them.
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;

// Raises sparring.errors.InvalidArgumentError.
[[noreturn]] void refuse(const std::string& message);

// A device that Python holds, and words of pinned memory to read results by.
class DeviceHandle {
 public:
  explicit DeviceHandle(std::shared_ptr<device::Device> device);
  ~DeviceHandle();
  DeviceHandle(const DeviceHandle&) = delete;
  DeviceHandle& operator=(const DeviceHandle&) = delete;

  device::Device& device() const { return *device_; }
  // For tables, which outlive the handle.
  const std::shared_ptr<device::Device>& shared_device() const { return device_; }
  // By which rows that leave a table, and numbers, come to the host.
  device::ReadBack& read_back() { return read_back_; }
  // DLPack's code, 1 = CPU, 2 = CUDA, and number.
  int32_t type() const { return type_; }
  int32_t number() const { return number_; }
  // Bytes on the device; freed once the streams are through that were named to keep_until().
  using Resident = std::shared_ptr<const device::Buffer>;
  static constexpr size_t kMostResidents = 64;
  // These bytes on the device: for the few small arrays that steps want again and again, of which
  // the last kMostResidents are kept. Waits, where it has not seen them before.
  Resident resident(const void* bytes, size_t num_bytes);
  // What was put on `stream` reads residents. REQUIRES: the caller still holds them.
  void keep_until(device::Stream stream);
  // `function()` gives back what it keeps of the device's memory without use, and says whether
  // there was any: asked where the device has no memory left. Holds the GIL.
  void add_reclaimer(pybind11::object function);
  // *from (1) int64, device, once the stream has come there. Waits for that stream alone.
  int64_t read_word(const void* from, device::Stream stream);

 private:
  int64_t* take_word();

  std::shared_ptr<device::Device> device_;
  std::shared_ptr<Reclaimers> reclaimers_ = std::make_shared<Reclaimers>();
  device::ReadBack read_back_;
  int32_t type_;
  int32_t number_;
  std::mutex mutex_;
  // Residents come and go on a stream of their own, as callers' streams do not live as long.
  device::Stream own_stream_ = nullptr;  // NULL: not made yet
  device::Event reads_ = nullptr;
  std::list<std::pair<std::string, Resident>> residents_;  // the least recently used first
  std::vector<int64_t*> words_;  // unused
  size_t num_words_ = 0;         // in use or not
};

// For `expected` shapes: any length.
inline constexpr int64_t kAny = -1;

// An array, kept alive with this.
class DeviceArray {
 public:
  // Raises InvalidArgumentError for what is no array, not on the device, or not
  // C-contiguous (rows may be apart where `rows_apart`).
  DeviceArray(const DeviceHandle& device, const pybind11::handle& object, const char* name,
              bool rows_apart = false);

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t length() const { return shape_[0]; }
  int64_t num_elements() const;
  // Bytes from one row to the next, of two dimensions.
  int64_t row_stride() const { return row_stride_; }
  int64_t element_bytes() const { return element_bytes_; }
  void* bytes() const { return data_; }

  // Raises InvalidArgumentError unless the shape is this one.
  void check_shape(std::initializer_list<int64_t> expected) const;
  // The elements; raises InvalidArgumentError where they are others.
  template <class T>
  T* as() const {
    check_dtype(code_of<T>(), sizeof(T));
    return static_cast<T*>(data_);
  }
  template <class T>
  bool is() const {
    return code_ == code_of<T>() && element_bytes_ == static_cast<int64_t>(sizeof(T));
  }
  device_kernels::RowType row_type() const;

 private:
  // DLPack's type codes. Booleans are written as uint8 by older libraries.
  template <class T>
  static constexpr int code_of() {
    if constexpr (std::is_floating_point_v<T>) return 2;
    if constexpr (std::is_signed_v<T>) return 0;
    return 1;
  }
  void check_dtype(int code, size_t bytes) const;

  const char* name_;
  pybind11::object capsule_;
  void* data_ = nullptr;
  int code_ = 0;
  int64_t element_bytes_ = 0;
  int64_t row_stride_ = 0;
  std::vector<int64_t> shape_;
};

// Calls body(T{}) with the array's dtype, float or double.
template <class Body>
auto with_float_dtype(const DeviceArray& array, const char* name, const Body& body) {
  if (array.is<float>()) return body(float{});
  if (array.is<double>()) return body(double{});
  refuse(std::string(name) + " must be float32 or float64");
}

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_DEVICE_ARRAYS_H_
