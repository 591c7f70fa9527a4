// Access to the native storage in sparring._native.StorageHandle.
#ifndef SPARRING_BINDINGS_STORAGE_H_
#define SPARRING_BINDINGS_STORAGE_H_

#include <pybind11/pybind11.h>

#include "abi/storage_handle.h"

namespace sparring::bindings {

// Returns the handle in a `StorageHandle`; NULL for None. It is valid as long as the object.
const abi::StorageHandle* storage_handle_in(const pybind11::handle& object);

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_STORAGE_H_
