// sparring._native.BlockedBloom; see sparring/kernels/bloom.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "execution/pool.h"
#include "kernels/blocked_bloom.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using kernels::BlockedBloom;
using Filter = std::unique_ptr<BlockedBloom>;

Filter make(double rate, int64_t planned_keys, uint64_t seed) {
  if (!(rate >= BlockedBloom::kLeastRate && rate <= BlockedBloom::kMostRate)) {
    refuse("false_positive_rate must be from 1e-6 to 0.5, found " + std::to_string(rate));
  }
  if (planned_keys < 1 || planned_keys > BlockedBloom::kMostKeys) {
    refuse("planned_keys must be from 1 to 2^40, found " + std::to_string(planned_keys));
  }
  const GilRelease release;
  return std::make_unique<BlockedBloom>(rate, planned_keys, seed);
}

void add(BlockedBloom& self, const py::array& keys) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  const GilRelease release;
  self.add(from, count);
}

py::array_t<bool> contains(const BlockedBloom& self, const py::array& keys) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  py::array_t<bool> found(count);
  auto* to = reinterpret_cast<uint8_t*>(found.mutable_data());
  const GilRelease release;
  self.contains(execution::process_executor(), from, count, to);
  return found;
}

py::bytes save(const BlockedBloom& self) {
  std::string saved;
  {
    const GilRelease release;
    saved = self.save();
  }
  return py::bytes(saved);
}

Filter load(const py::bytes& saved) {
  const auto view = static_cast<std::string_view>(saved);
  std::string reason;
  try {
    const GilRelease release;
    return BlockedBloom::load(view);
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  }
  refuse("saved bytes of a Bloom filter: " + reason + "; create them again");
}

}  // namespace
}  // namespace sparring::bindings

void bind_bloom(py::module_& module) {
  using namespace sparring::bindings;
  py::class_<BlockedBloom>(module, "BlockedBloom", "See sparring.kernels.bloom.BloomFilter.")
      .def(py::init(&make), py::arg("false_positive_rate"), py::arg("planned_keys"),
           py::arg("seed"))
      .def("add", &add, py::arg("keys").noconvert())
      .def("contains", &contains, py::arg("keys").noconvert())
      .def("clear", &BlockedBloom::clear)
      .def("save", &save)
      .def_static("load", &load, py::arg("saved"))
      .def_property_readonly("false_positive_rate", &BlockedBloom::rate)
      .def_property_readonly("planned_keys", &BlockedBloom::planned_keys)
      .def_property_readonly("num_added", &BlockedBloom::num_added)
      .def_property_readonly("num_blocks", &BlockedBloom::num_blocks)
      .def_property_readonly("memory_bytes", &BlockedBloom::memory_bytes);
}
