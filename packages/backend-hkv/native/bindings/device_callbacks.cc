#include "bindings/device_callbacks.h"

#include <pybind11/numpy.h>

#include <memory>
#include <new>
#include <utility>

#include "bindings/device_arrays.h"
#include "device_kernels/rows.h"

namespace py = pybind11;

namespace sparring::hkv {
namespace {

// Returns a NumPy array that shares the memory.
template <class T>
py::array_t<T> array_of(std::vector<T>&& values, std::vector<py::ssize_t> shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  const T* const data = owned->data();
  const py::capsule owner(owned.get(), [](void* held) { delete static_cast<std::vector<T>*>(held); });
  static_cast<void>(owned.release());  // the capsule owns it now
  return py::array_t<T>(std::move(shape), data, owner);
}

}  // namespace

void Asking::ask(int64_t count, const int64_t* positions, uint8_t* is_admitted) const {
  const auto size = static_cast<size_t>(count);
  const device::Buffer asked = device::make_buffer<int64_t>(*device, size, stream);
  device_kernels::gather(*device, stream,
                         {keys, positions, asked.as<void>(), count, sizeof(int64_t)});
  std::vector<int64_t> host_keys(size);
  device->copy(host_keys.data(), asked.as<void>(), size * sizeof(int64_t), stream);
  device->wait(stream);
  std::vector<uint8_t> answers(size);
  {
    const py::gil_scoped_acquire hold;
    const py::array_t<int64_t> given(static_cast<py::ssize_t>(size), host_keys.data());
    const auto answered = py::array_t<bool, py::array::c_style | py::array::forcecast>(admit(given));
    if (answered.ndim() != 1 || answered.shape(0) != count)
      refuse("admit must return one bool for each key");
    for (size_t i = 0; i < size; ++i) answers[i] = answered.data()[i] ? 1 : 0;
  }
  device->write(is_admitted, answers.data(), size, stream);
}

int32_t Departed::receive(void* context, int64_t count, const int64_t* keys, const void* rows,
                          const uint64_t* scores) {
  auto& self = *static_cast<Departed*>(context);
  const auto size = static_cast<size_t>(count);
  try {
    if (self.is_kept_) {
      const auto before = static_cast<size_t>(self.count_);
      const auto row_bytes = static_cast<size_t>(self.row_bytes_);
      self.keys_.resize(before + size);
      self.rows_.resize((before + size) * row_bytes);
      self.scores_.resize(before + size);
      self.departing_.read({{self.keys_.data() + before, keys, size * sizeof(int64_t)},
                            {self.rows_.data() + before * row_bytes, rows, size * row_bytes},
                            {self.scores_.data() + before, scores, size * sizeof(uint64_t)}},
                           self.stream_);
    }
  } catch (const std::bad_alloc&) {
    return 1;  // the rows were evicted; the table reports the error
  }
  self.count_ += count;
  return 0;
}

py::object Departed::arrays() {
  if (!is_kept_) return py::none();
  const auto count = static_cast<py::ssize_t>(count_);
  return py::make_tuple(array_of(std::move(keys_), {count}),
                        array_of(std::move(rows_), {count, static_cast<py::ssize_t>(row_bytes_)}),
                        array_of(std::move(scores_), {count}));
}

}  // namespace sparring::hkv
