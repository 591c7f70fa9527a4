// Visits and updates of the native first tier of a stack of storages.
//
// A stack is written in Python. If its first tier is native, rows in that tier are used without
// copies. The stack's Python object is called before and after:
//
//   begin_visit()              acquires the lock for reading;
//                              end_visit(num_served, bytes, seconds) releases it
//   begin_update(keys)         promotes staged rows, and acquires the lock for writing
//   bring_up(keys, missing)    only if keys are missing in the first tier: copies those that
//                              exist in lower tiers into it. False if they do not fit; then
//                              copies of rows are updated
//   end_update(keys, inserted, evicted, seconds)   passes evicted rows to the next tier, and
//                              releases the lock; abort_update() if nothing was changed
#ifndef SPARRING_BINDINGS_FRONT_H_
#define SPARRING_BINDINGS_FRONT_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "abi/storage_handle.h"

namespace sparring::bindings {

class Front {
 public:
  // Keeps a reference to `first`, a capsule of storage_abi.h.
  explicit Front(pybind11::capsule first);

  bool offers_visit() const { return first_.offers_visit(); }
  bool offers_update() const { return first_.offers_update(); }

  // Like the callbacks of the ABI. `stack` is the struct of the stack. Throws StorageError and
  // Python exceptions. REQUIRES: the GIL is held.
  void visit(pybind11::object& adapter, const SparringStorage& stack, SparringVisit* a) const;
  void update(pybind11::object& adapter, const SparringStorage& stack, SparringUpdate* a) const;

 private:
  pybind11::capsule capsule_;
  abi::StorageHandle first_;
};

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_FRONT_H_
