// The first tier's own visit and update, with a stack of storages around them.
//
// A storage that is written in Python, but whose first tier is native, need not have rows
// copied where that tier has them. The stack's Python side is told before and after:
//
//   begin_visit()              readers' lock; end_visit(num_served, bytes, seconds) lets go
//   begin_update(keys)         takes up what was staged, and the writer's lock
//   bring_up(keys, missing)    only where the first tier lacks some: brings up those of them
//                              that exist below; False where they do not fit: then copies are
//                              changed
//   end_update(keys, inserted, evicted, seconds)   hands down what left, and lets the lock
//                              go; abort_update() where nothing has changed
#ifndef SPARRING_BINDINGS_FRONT_H_
#define SPARRING_BINDINGS_FRONT_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "abi/storage_handle.h"

namespace sparring::bindings {

class Front {
 public:
  // A capsule of storage_abi.h, which is kept.
  explicit Front(pybind11::capsule first);

  bool offers_visit() const { return first_.offers_visit(); }
  bool offers_update() const { return first_.offers_update(); }

  // As the callbacks of the ABI. `stack` is the struct around. Throws StorageError, and what
  // Python raises. REQUIRES: the GIL.
  void visit(pybind11::object& adapter, const SparringStorage& stack, SparringVisit* a) const;
  void update(pybind11::object& adapter, const SparringStorage& stack, SparringUpdate* a) const;

 private:
  pybind11::capsule capsule_;
  abi::StorageHandle first_;
};

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_FRONT_H_
