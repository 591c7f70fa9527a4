// The other direction: a storage written in Python as a struct of storage_abi.h.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "sparring/storage_abi.h"

namespace sparring::bindings {

// `adapter` is a sparring.storage.native.ExportAdapter. The capsule owns the
// struct, which owns a reference to the adapter.
pybind11::capsule export_storage(pybind11::object adapter,
                                 const std::string& distribution);

// Whether the struct is one that export_storage made: its callbacks call Python.
bool is_exported(const SparringStorage& storage);

// Passes on the adapter's (keys, rows as bytes, scores), or nothing for None. REQUIRES: the GIL.
void send_evicted(const SparringEvictionSink& sink, const pybind11::object& evicted);

}  // namespace sparring::bindings
