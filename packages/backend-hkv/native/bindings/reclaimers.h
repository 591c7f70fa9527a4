// Functions of Python that give back what frameworks keep of a device's memory without using it.
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
  // Takes the GIL.
  ~Reclaimers();

  // Holds the GIL. What is there already is not added again.
  void add(pybind11::object function);

  // Calls all; returns whether one gave something back. An exception of one is reported as
  // unraisable. Takes the GIL: no caller may hold a lock that a thread waits for with the GIL.
  bool call();

 private:
  std::vector<pybind11::object> functions_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_BINDINGS_RECLAIMERS_H_
