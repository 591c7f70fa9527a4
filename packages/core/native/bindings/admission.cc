// sparring._native.AdmissionFilter; see sparring/contracts/tables/admission.py.
#include "kernels/admission.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "kernels/bloom_filter.h"
#include "kernels/frequency_filter.h"
#include "kernels/initialize.h"
#include "kernels/probability_filter.h"
#include "sparring/initial_value.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using kernels::AdmissionFilter;
using kernels::BloomFilter;
using kernels::BloomShape;
using kernels::FrequencyFilter;
using kernels::ProbabilityFilter;
using Filter = std::shared_ptr<AdmissionFilter>;

uint64_t seed_of(int64_t seed, const std::string& table) {
  return philox_key_for(seed, fnv1a(table));
}

Filter make_frequency(int64_t k, int64_t memory_bytes) {
  if (k < 1 || k > UINT32_MAX) refuse("k must be 1 to 2^32 - 1, found " + std::to_string(k));
  constexpr int64_t kLeast = FrequencyFilter::kLeastSlots * FrequencyFilter::kSlotBytes;
  if (memory_bytes < kLeast) {
    refuse("memory_bytes must be at least " + std::to_string(kLeast) + ", found " +
           std::to_string(memory_bytes));
  }
  return std::make_shared<FrequencyFilter>(k, memory_bytes);
}

Filter make_probability(double p, int64_t seed, const std::string& table) {
  if (!(p >= 0 && p <= 1)) refuse("p must be 0 to 1, found " + std::to_string(p));
  return std::make_shared<ProbabilityFilter>(p, seed_of(seed, table));
}

// The size is determined by `expected_keys`, or by `memory_bytes` if that is 0.
Filter make_bloom(int64_t k, double rate, int64_t expected_keys, int64_t memory_bytes,
                  int64_t seed, const std::string& table) {
  if (k < 1 || k > BloomFilter::kMostK) {
    refuse("k must be 1 to " + std::to_string(BloomFilter::kMostK) + ", found " +
           std::to_string(k));
  }
  if (!(rate >= BloomShape::kLeastRate && rate < 1)) {
    refuse("false_positive_rate must be at least 1e-9 and below 1, found " + std::to_string(rate));
  }
  const int64_t num_blocks = memory_bytes / BloomFilter::block_bytes(k);
  if (expected_keys < 1 && num_blocks < 1) {
    refuse("expected_keys must be at least 1, or memory_bytes at least " +
           std::to_string(BloomFilter::block_bytes(k)));
  }
  const GilRelease release;
  const BloomShape shape = expected_keys > 0 ? BloomShape::for_keys(rate, expected_keys)
                                             : BloomShape::for_blocks(rate, num_blocks);
  return std::make_shared<BloomFilter>(k, shape, seed_of(seed, table));
}

py::array_t<bool> decide(const AdmissionFilter& self, const py::array& keys, int64_t step) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  py::array_t<bool> is_admitted(count);
  auto* to = reinterpret_cast<uint8_t*>(is_admitted.mutable_data());
  const GilRelease release;
  self.decide(from, count, step, to);
  return is_admitted;
}

void record(AdmissionFilter& self, const py::array& keys, const py::array& is_admitted) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  const auto* answers = input<uint8_t>(is_admitted, "is_admitted", {count});
  const GilRelease release;
  self.record(from, answers, count);
}

py::array_t<bool> admit(AdmissionFilter& self, const py::array& keys, int64_t step) {
  const auto* from = input<int64_t>(keys, "keys", {kAny});
  const int64_t count = keys.shape(0);
  py::array_t<bool> is_admitted(count);
  auto* to = reinterpret_cast<uint8_t*>(is_admitted.mutable_data());
  const GilRelease release;
  self.admit(from, count, step, to);
  return is_admitted;
}

py::bytes save(const AdmissionFilter& self) {
  std::string saved;
  {
    const GilRelease release;
    saved = self.save();
  }
  return py::bytes(saved);
}

using Take = void (AdmissionFilter::*)(std::string_view);

void take_over(AdmissionFilter& self, const py::bytes& saved, Take take) {
  const auto view = static_cast<std::string_view>(saved);
  std::string reason;
  try {
    const GilRelease release;
    (self.*take)(view);
    return;
  } catch (const std::invalid_argument& error) {
    reason = error.what();
  }
  refuse("saved counters of an admission filter: " + reason + "; nothing was changed");
}

void load(AdmissionFilter& self, const py::bytes& saved) {
  take_over(self, saved, &AdmissionFilter::load);
}

void join(AdmissionFilter& self, const py::bytes& saved) {
  take_over(self, saved, &AdmissionFilter::join);
}

}  // namespace
}  // namespace sparring::bindings

void bind_admission(py::module_& module) {
  using namespace sparring::bindings;
  py::class_<AdmissionFilter, Filter>(
      module, "AdmissionFilter",
      "Decides which keys without a row may get one. Thread-safe.")
      .def_static("frequency", &make_frequency, py::arg("k"), py::arg("memory_bytes"))
      .def_static("probability", &make_probability, py::arg("p"), py::arg("seed"),
                  py::arg("table"))
      .def_static("bloom", &make_bloom, py::arg("k"), py::arg("false_positive_rate"),
                  py::arg("expected_keys"), py::arg("memory_bytes"), py::arg("seed"),
                  py::arg("table"))
      .def("decide", &decide, py::arg("keys").noconvert(), py::arg("step"),
           "Returns whether each of the keys (u) may get a row in this step; counts nothing.")
      .def("record", &record, py::arg("keys").noconvert(), py::arg("is_admitted").noconvert(),
           "Counts the keys (u) of an applied step, given the result of `decide`.")
      .def("admit", &admit, py::arg("keys").noconvert(), py::arg("step"),
           "Calls `decide` and `record` atomically.")
      .def("save", &save, "Returns all counters; see docs/format/admission.md.")
      .def("load", &load, py::arg("saved"), "Replaces all counters by those that an equal filter saved.")
      .def("join", &join, py::arg("saved"),
           "Merges the saved counters of an equal Bloom filter of another rank.")
      .def_property_readonly("memory_bytes", &AdmissionFilter::memory_bytes,
                             "Size of the counters in bytes.")
      .def_property_readonly("num_forgotten", &AdmissionFilter::num_forgotten,
                             "Number of keys whose counter was dropped or not created because the "
                             "memory was full.");
}
