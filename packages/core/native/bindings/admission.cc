#include "bindings/admission.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "kernels/bloom_filter.h"
#include "kernels/frequency_filter.h"
#include "kernels/probability_filter.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using Filter = std::shared_ptr<PyAdmissionFilter>;

template <class Made, class... Arguments>
Filter make(Arguments... arguments) {
  return std::make_shared<PyAdmissionFilter>(std::make_unique<Made>(arguments...));
}

Filter make_frequency(int64_t k, int64_t memory_bytes) {
  if (k < 1) refuse("k must be at least 1, found " + std::to_string(k));
  if (memory_bytes < kernels::FrequencyFilter::least_bytes()) {
    refuse("memory_bytes must be at least " +
           std::to_string(kernels::FrequencyFilter::least_bytes()) + ", found " +
           std::to_string(memory_bytes));
  }
  return make<kernels::FrequencyFilter>(k, memory_bytes);
}

Filter make_bloom(int64_t k, double rate, int64_t expected_keys, uint64_t seed) {
  if (k < 1 || k > 255) refuse("k must be 1 to 255, found " + std::to_string(k));
  if (!(rate >= 0.001 && rate < 1)) refuse("false_positive_rate must be 0.001 to 1");
  if (expected_keys < 1) refuse("expected_keys must be at least 1");
  return make<kernels::BloomFilter>(k, kernels::BloomFilter::shape_for(rate, expected_keys), seed);
}

Filter make_probability(double p, uint64_t seed) {
  if (!(p >= 0 && p <= 1)) refuse("p must be 0 to 1");
  return make<kernels::ProbabilityFilter>(p, seed);
}

py::array_t<bool> admit(PyAdmissionFilter& self, const py::array& keys, int64_t step) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  py::array_t<bool> is_admitted(count);
  auto* to = reinterpret_cast<uint8_t*>(is_admitted.mutable_data());
  const GilRelease release;
  self.admit(from, count, step, to);
  return is_admitted;
}

void load(PyAdmissionFilter& self, const py::bytes& saved) {
  try {
    self.load(static_cast<std::string_view>(saved));
  } catch (const std::invalid_argument& error) {
    refuse(std::string("saved counters of an admission filter: ") + error.what() +
           "; nothing was changed");
  }
}

}  // namespace
}  // namespace sparring::bindings

void bind_admission(py::module_& module) {
  using namespace sparring::bindings;
  py::class_<PyAdmissionFilter, Filter>(module, "AdmissionFilter")
      .def_static("frequency", &make_frequency, py::arg("k"), py::arg("memory_bytes"))
      .def_static("bloom", &make_bloom, py::arg("k"), py::arg("false_positive_rate"),
                  py::arg("expected_keys"), py::arg("seed"))
      .def_static("probability", &make_probability, py::arg("p"), py::arg("seed"))
      .def("admit", &admit, py::arg("keys"), py::arg("step"))
      .def("save", [](const PyAdmissionFilter& self) { return py::bytes(self.save()); })
      .def("load", &load, py::arg("saved"))
      .def_property_readonly("memory_bytes", &PyAdmissionFilter::memory_bytes);
}
