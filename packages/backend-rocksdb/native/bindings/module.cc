// The Python module: opens databases and returns tables as capsules of storage_abi.h.
// All other operations of a table use that struct. The records of a join have no struct.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <rocksdb/version.h>

#include "database.h"
#include "status.h"
#include "storage.h"
#include "sparring/python_errors.h"
#include "table.h"
#include "timed_records.h"

namespace py = pybind11;
using namespace sparring::flash;

namespace {

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const sparring::border::StatusError& error) {
    sparring::border::set_python_error(error.status(), error.what());
  }
}

// A database owned by Python. All operations that may wait for the disk run without
// the GIL.
class OpenDatabase {
 public:
  OpenDatabase(const std::string& folder, uint64_t block_cache_bytes, uint64_t write_buffer_bytes,
               uint64_t block_bytes, double bloom_bits_per_key, const std::string& compression,
               bool direct_io, uint64_t rate_limit_bytes_per_second, int max_open_files,
               int background_threads, const std::string& recovery, bool secondary) {
    const py::gil_scoped_release without_gil;
    database_ = Database::open(
        folder, {.block_cache_bytes = block_cache_bytes,
                 .write_buffer_bytes = write_buffer_bytes,
                 .block_bytes = block_bytes,
                 .bloom_bits_per_key = bloom_bits_per_key,
                 .compression = compression,
                 .direct_io = direct_io,
                 .rate_limit_bytes_per_second = rate_limit_bytes_per_second,
                 .max_open_files = max_open_files,
                 .background_threads = background_threads,
                 .recovery = recovery,
                 .secondary = secondary});
  }

  Database& get() const {
    if (database_ == nullptr) {
      throw sparring::border::StatusError(SPARRING_CLOSED, "this database is closed; open it again");
    }
    if (database_->is_of_parent()) {
      throw sparring::border::StatusError(SPARRING_CLOSED, "this database" + std::string(kOfParent));
    }
    return *database_;
  }
  const std::shared_ptr<Database>& shared() const {
    get();
    return database_;
  }
  void close() {
    const py::gil_scoped_release without_gil;
    database_.reset();
  }

 private:
  std::shared_ptr<Database> database_;
};

std::shared_ptr<Table> open_table(const OpenDatabase& database, const std::string& name,
                                  const std::string& label, uint64_t row_bytes, bool sync_writes,
                                  uint64_t known_keys_bytes) {
  const std::shared_ptr<Database> shared = database.shared();
  const py::gil_scoped_release without_gil;
  return std::make_shared<Table>(shared, TableOptions{.name = name,
                                                      .label = label,
                                                      .row_bytes = row_bytes,
                                                      .sync_writes = sync_writes,
                                                      .known_keys_bytes = known_keys_bytes});
}

// The capsule owns the struct. Its destructor calls release.
py::capsule capsule_of(const std::shared_ptr<Table>& table) {
  SparringStorage* storage = make_storage(table, "sparring-rocksdb " SPARRING_ROCKSDB_VERSION);
  PyObject* capsule = PyCapsule_New(storage, SPARRING_STORAGE_CAPSULE, [](PyObject* self) {
    auto* owned =
        static_cast<SparringStorage*>(PyCapsule_GetPointer(self, SPARRING_STORAGE_CAPSULE));
    owned->release(owned);
  });
  if (capsule == nullptr) {
    storage->release(storage);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::capsule>(capsule);
}

py::list get_records(const TimedRecords& self, const std::vector<std::string>& keys) {
  std::vector<std::optional<TimedRecord>> found;
  {
    const py::gil_scoped_release without_gil;
    found = self.get(keys);
  }
  py::list result;
  for (const auto& each : found) {
    if (each.has_value()) {
      result.append(py::make_tuple(each->time, py::bytes(each->value)));
    } else {
      result.append(py::none());
    }
  }
  return result;
}

void write_records(TimedRecords& self, const std::vector<std::pair<std::string, double>>& removed,
                   const std::vector<std::tuple<std::string, double, std::string>>& added) {
  const py::gil_scoped_release without_gil;
  std::vector<TimedRecord> records;
  records.reserve(added.size());
  for (const auto& [key, time, value] : added) records.push_back({key, time, value});
  self.write(removed, records);
}

py::list scan_records(const TimedRecords& self, double after, double until, size_t max_records) {
  std::vector<TimedRecord> found;
  {
    const py::gil_scoped_release without_gil;
    found = self.scan(after, until, max_records);
  }
  py::list result;
  for (const TimedRecord& each : found) {
    result.append(py::make_tuple(each.time, py::bytes(each.key), py::bytes(each.value)));
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Tables in RocksDB, in C++.";
  module.attr("__version__") = SPARRING_ROCKSDB_VERSION;
  module.attr("rocksdb_version") = ROCKSDB_NAMESPACE::GetRocksVersionAsString();
  py::register_exception_translator(&translate);

  py::class_<Table, std::shared_ptr<Table>>(module, "Table")
      .def_property_readonly("capsule", &capsule_of)
      .def("close", &Table::close, py::call_guard<py::gil_scoped_release>());

  py::class_<OpenDatabase>(module, "Database")
      .def(py::init<const std::string&, uint64_t, uint64_t, uint64_t, double, const std::string&,
                    bool, uint64_t, int, int, const std::string&, bool>(),
           py::arg("folder"), py::kw_only(), py::arg("block_cache_bytes"),
           py::arg("write_buffer_bytes"), py::arg("block_bytes"), py::arg("bloom_bits_per_key"),
           py::arg("compression"), py::arg("direct_io"), py::arg("rate_limit_bytes_per_second"),
           py::arg("max_open_files"), py::arg("background_threads"), py::arg("recovery"),
           py::arg("secondary") = false)
      .def("label", [](const OpenDatabase& self, const std::string& table) {
        return self.get().label(table);
      })
      .def("read_note",
           [](const OpenDatabase& self, const std::string& table, const std::string& name) {
             return self.get().read_note(table, name);
           })
      .def("write_note",
           [](const OpenDatabase& self, const std::string& table, const std::string& name,
              const std::optional<std::string>& text) {
             const std::shared_ptr<Database> shared = self.shared();
             const py::gil_scoped_release without_gil;
             shared->write_note(table, name, text);
           })
      .def("tables", [](const OpenDatabase& self) { return self.get().tables(); })
      .def("open_table", &open_table, py::arg("name"), py::kw_only(), py::arg("label"),
           py::arg("row_bytes"), py::arg("sync_writes"), py::arg("known_keys_bytes"))
      .def("checkpoint",
           [](const OpenDatabase& self, const std::string& folder) {
             const std::shared_ptr<Database> shared = self.shared();
             const py::gil_scoped_release without_gil;
             shared->checkpoint(folder);
           })
      .def("purge",
           [](const OpenDatabase& self, const std::string& table) {
             const std::shared_ptr<Database> shared = self.shared();
             const py::gil_scoped_release without_gil;
             shared->purge(table);
           })
      .def("close", &OpenDatabase::close);

  py::class_<TimedRecords>(module, "TimedRecords")
      .def(py::init<const std::string&, uint64_t, uint64_t, const std::string&>(),
           py::arg("folder"), py::kw_only(), py::arg("block_cache_bytes"),
           py::arg("write_buffer_bytes"), py::arg("compression"),
           py::call_guard<py::gil_scoped_release>())
      .def("get", &get_records)
      .def("write", &write_records)
      .def("scan", &scan_records)
      .def("checkpoint", &TimedRecords::checkpoint, py::call_guard<py::gil_scoped_release>());
}
