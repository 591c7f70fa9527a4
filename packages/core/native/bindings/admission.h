// sparring._native.AdmissionFilter; see sparring/admission.py.
#ifndef SPARRING_BINDINGS_ADMISSION_H_
#define SPARRING_BINDINGS_ADMISSION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/admission.h"

namespace sparring::bindings {

// Safe for use by several threads, unlike what it wraps.
class PyAdmissionFilter final : public kernels::AdmissionFilter {
 public:
  explicit PyAdmissionFilter(std::unique_ptr<kernels::AdmissionFilter> filter)
      : filter_(std::move(filter)) {}

  void admit(const int64_t* keys, int64_t count, int64_t step,
             uint8_t* is_admitted) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    filter_->admit(keys, count, step, is_admitted);
  }
  int64_t memory_bytes() const override { return filter_->memory_bytes(); }
  std::string save() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return filter_->save();
  }
  void load(std::string_view saved) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    filter_->load(saved);
  }

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<kernels::AdmissionFilter> filter_;
};

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_ADMISSION_H_
