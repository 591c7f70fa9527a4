// Python functions that release device memory which frameworks keep without using it.
#ifndef SPARRING_HKV_BINDINGS_RECLAIMERS_H_
#define SPARRING_HKV_BINDINGS_RECLAIMERS_H_

#include <pybind11/pybind11.h>

#include <vector>

namespace sparring::hkv {

class Reclaimers {
 public:
  Reclaimers() = default;
  Reclaimers(const Reclaimers&) = delete;
  Reclaimers& operator=(const Reclaimers&) = delete;
  // Acquires the GIL.
  ~Reclaimers();

  // Adds a function unless it was added before. Requires the GIL.
  void add(pybind11::object function);

  // Calls all functions and returns whether one of them released memory. Exceptions are reported as
  // unraisable. Acquires the GIL, so the caller must not hold a lock for which a thread with the GIL
  // waits.
  bool call();

 private:
  std::vector<pybind11::object> functions_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_RECLAIMERS_H_
