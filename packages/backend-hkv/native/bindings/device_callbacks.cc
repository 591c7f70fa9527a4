#include "bindings/device_callbacks.h"

#include <pybind11/numpy.h>

#include <new>

#include "bindings/device_arrays.h"
#include "device_kernels/rows.h"

namespace py = pybind11;

namespace sparring::hkv {

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
      refuse("admission must answer with one bool for each key");
    for (size_t i = 0; i < size; ++i) answers[i] = answered.data()[i] ? 1 : 0;
  }
  device->copy(is_admitted, answers.data(), size, stream);
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
    return 1;  // the rows have left; the table says so
  }
  self.count_ += count;
  return 0;
}

py::object Departed::arrays() const {
  if (!is_kept_) return py::none();
  const auto count = static_cast<py::ssize_t>(count_);
  const py::array_t<int64_t> keys(count, keys_.data());
  const py::array_t<uint8_t> rows(
      std::vector<py::ssize_t>{count, static_cast<py::ssize_t>(row_bytes_)}, rows_.data());
  const py::array_t<uint64_t> scores(count, scores_.data());
  return py::make_tuple(keys, rows, scores);
}

}  // namespace sparring::hkv
