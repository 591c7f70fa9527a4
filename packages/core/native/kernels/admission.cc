#include "kernels/admission.h"

#include <stdexcept>

namespace sparring::kernels {

void AdmissionFilter::decide(const int64_t* keys, int64_t count, int64_t step,
                             uint8_t* is_admitted) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  decide_impl(keys, count, step, is_admitted);
}

void AdmissionFilter::record(const int64_t* keys, const uint8_t* is_admitted, int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  record_impl(keys, is_admitted, count);
}

void AdmissionFilter::admit(const int64_t* keys, int64_t count, int64_t step,
                            uint8_t* is_admitted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  decide_impl(keys, count, step, is_admitted);
  record_impl(keys, is_admitted, count);
}

int64_t AdmissionFilter::memory_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return memory_bytes_impl();
}

int64_t AdmissionFilter::num_forgotten() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_forgotten_impl();
}

std::string AdmissionFilter::save() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return save_impl();
}

void AdmissionFilter::load(std::string_view saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  load_impl(saved);
}

void AdmissionFilter::join(std::string_view saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  join_impl(saved);
}

void AdmissionFilter::join_impl(std::string_view) {
  throw std::invalid_argument("filters of this kind cannot be merged");
}

}  // namespace sparring::kernels
