// Exports a storage that is written in Python as a struct of storage_abi.h.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "sparring/storage_abi.h"

namespace sparring::bindings {

// `adapter` is a sparring.storage.native.ExportAdapter. The capsule owns the
// struct, which owns a reference to the adapter.
pybind11::capsule export_storage(pybind11::object adapter,
                                 const std::string& distribution);

// Whether export_storage created the struct, so that its callbacks call Python.
bool is_exported(const SparringStorage& storage);

// Passes the adapter's (keys, rows as bytes, scores) to the sink; nothing for None. REQUIRES: the
// GIL is held.
void send_evicted(const SparringEvictionSink& sink, const pybind11::object& evicted);

}  // namespace sparring::bindings
