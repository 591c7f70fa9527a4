// sparring._native's part of the exchange; see sparring/exchange/messages.py. Indices are not
// checked, like the arguments of the key operations.
#include <pybind11/pybind11.h>

#include <string_view>

#include "bindings/arrays.h"
#include "bindings/gil.h"
#include "bindings/slices.h"
#include "bindings/storage.h"
#include "exchange/place.h"
#include "exchange/tables.h"
#include "exchange/wire.h"
#include "execution/pool.h"

namespace py = pybind11;
namespace exchange = sparring::exchange;
using sparring::bindings::GilRelease;
using sparring::bindings::input;
using sparring::bindings::kAny;
using sparring::bindings::output;
using sparring::bindings::refuse;
using sparring::bindings::Routes;
using sparring::bindings::Slices;
using sparring::bindings::count_of;
using sparring::execution::process_executor;

namespace {

exchange::WireType wire_type(std::string_view name) {
  if (name == "bfloat16") return exchange::WireType::bfloat16;
  if (name == "float16") return exchange::WireType::float16;
  if (name == "int8") return exchange::WireType::int8;
  refuse("a wire dtype must be bfloat16, float16 or int8, found '" + std::string(name) + "'");
}

// Checks that the array has this number of contiguous bytes, aligned for float32, of any dtype.
void check_bytes(const py::array& array, const char* name, int64_t expected) {
  const bool is_contiguous = (array.flags() & py::array::c_style) != 0;
  if (!is_contiguous || array.nbytes() != expected ||
      (expected != 0 && reinterpret_cast<uintptr_t>(array.data()) % 4 != 0)) {
    refuse(std::string(name) + " must be " + std::to_string(expected) +
           " contiguous bytes, aligned to 4, found " + std::to_string(array.nbytes()));
  }
}

void wire_encode(std::string_view dtype, const py::array& rows, py::array& wire) {
  const exchange::WireType type = wire_type(dtype);
  const auto* from = input<float>(rows, "rows", {kAny, kAny});
  const int64_t count = rows.shape(0);
  const int64_t dim = rows.shape(1);
  check_bytes(wire, "wire", exchange::wire_bytes(type, count, dim));
  void* const to = wire.mutable_data();
  const GilRelease release;
  if (count > 0 && dim > 0) exchange::encode(process_executor(), type, from, count, dim, to);
}

void wire_decode(std::string_view dtype, const py::array& wire, py::array& rows) {
  const exchange::WireType type = wire_type(dtype);
  auto* const to = output<float>(rows, "rows", {kAny, kAny});
  const int64_t count = rows.shape(0);
  const int64_t dim = rows.shape(1);
  check_bytes(wire, "wire", exchange::wire_bytes(type, count, dim));
  const void* const from = wire.data();
  const GilRelease release;
  if (count > 0 && dim > 0) exchange::decode(process_executor(), type, from, count, dim, to);
}

int64_t row_bytes_of(const py::array& rows, const char* name) {
  if (rows.ndim() != 2 || (rows.flags() & py::array::c_style) == 0) {
    refuse(std::string(name) + " must have two dimensions and be C-contiguous");
  }
  return rows.shape(1) * rows.itemsize();
}

void place_rows(const py::array& rows, const py::array& places, py::array& out) {
  const int64_t row_bytes = row_bytes_of(rows, "rows");
  if (row_bytes_of(out, "out") != row_bytes) refuse("rows and out must have rows of the same size");
  const auto* at = input<int64_t>(places, "places", {rows.shape(0)});
  const int64_t count = rows.shape(0);
  const void* const from = rows.data();
  void* const to = out.mutable_data();
  const GilRelease release;
  exchange::place_rows(process_executor(), from, at, count, row_bytes, to);
}

// The tables of a pull; see sparring/exchange/pull.py. Each call processes all slices of a message.
class PyPulledTables {
 public:
  // storages: `StorageHandle` or None; columns: bytes of a row; rows, found: results, by key.
  PyPulledTables(py::list storages, const std::vector<std::pair<uint64_t, uint64_t>>& columns,
                 std::vector<py::array> rows, std::vector<py::array> found,
                 std::vector<py::array> orders, py::array ends)
      : storages_(std::move(storages)),
        rows_(std::move(rows)),
        found_(std::move(found)),
        routes_(std::move(orders), std::move(ends)) {
    const size_t count = routes_.num_tables();
    if (storages_.size() != count || columns.size() != count || rows_.size() != count ||
        found_.size() != count) {
      refuse("storages, columns, rows, found and orders must be of the same tables");
    }
    for (size_t i = 0; i < count; ++i) {
      const auto num_keys = static_cast<py::ssize_t>(routes_.num_keys(i));
      const auto [begin, end] = columns[i];
      if (row_bytes_of(rows_[i], "rows") != static_cast<int64_t>(end - begin) ||
          rows_[i].shape(0) != num_keys) {
        refuse("rows must be (" + std::to_string(num_keys) + ", " + std::to_string(end - begin) +
               " bytes)");
      }
      tables_.push_back({sparring::bindings::storage_handle_in(storages_[i]),
                         {begin, end},
                         static_cast<std::byte*>(rows_[i].mutable_data()),
                         output<uint8_t>(found_[i], "found", {num_keys})});
    }
  }

  // Finds the keys (n) of another rank, and writes the reply.
  void find(const Slices& slices, const py::array& keys, py::array& message) const {
    const auto* const from = input<int64_t>(keys, "keys", {kAny});
    std::byte* to = sparring::bindings::message_bytes(message, bytes_of(slices));
    std::vector<exchange::FindPart> parts;
    std::vector<std::pair<std::byte*, std::byte*>> padding;
    for (const auto& slice : slices) {
      const Table& table = tables_.at(static_cast<size_t>(slice[0]));
      check_keys(slice, keys);
      const int64_t count = count_of(slice);
      auto* const flags = to + count * row_bytes(table);
      parts.push_back({table.storage, table.columns, from + slice[3], count, to,
                       reinterpret_cast<uint8_t*>(flags), nullptr});
      to += exchange::align_bytes(count * (row_bytes(table) + 1));
      padding.emplace_back(flags + count, to);
    }
    const GilRelease release;
    for (const auto& [begin, end] : padding) std::fill(begin, end, std::byte{0});
    exchange::find_rows(process_executor(), parts);
  }

  // Finds the keys (n) that this rank owns, directly into the results.
  void find_own(const Slices& slices, const py::array& keys, int64_t rank) const {
    const auto* const from = input<int64_t>(keys, "keys", {kAny});
    std::vector<exchange::FindPart> parts;
    for (const auto& slice : slices) {
      const int64_t* const places = routes_.places(rank, slice);
      const Table& table = tables_[static_cast<size_t>(slice[0])];
      check_keys(slice, keys);
      parts.push_back({table.storage, table.columns, from + slice[3], count_of(slice), table.rows,
                       table.found, places});
    }
    const GilRelease release;
    exchange::find_rows(process_executor(), parts);
  }

  // Copies the rows of a reply to the results. Returns whether the owner found them; if not, nothing
  // is copied.
  bool place(const Slices& slices, int64_t owner, const py::array& message) const {
    const std::byte* from = sparring::bindings::message_bytes(message, bytes_of(slices));
    std::vector<exchange::PlacePart> parts;
    for (const auto& slice : slices) {
      const int64_t* const places = routes_.places(owner, slice);
      const Table& table = tables_[static_cast<size_t>(slice[0])];
      const int64_t count = count_of(slice);
      const auto* const flags = reinterpret_cast<const uint8_t*>(from + count * row_bytes(table));
      if (count > 0 && flags[0] == exchange::kFailed) return false;
      parts.push_back({from, flags, places, count, row_bytes(table), table.rows, table.found});
      from += exchange::align_bytes(count * (row_bytes(table) + 1));
    }
    const GilRelease release;
    exchange::place_rows(process_executor(), parts);
    return true;
  }

 private:
  struct Table {
    const sparring::abi::StorageHandle* storage;
    SparringColumns columns;
    std::byte* rows;
    uint8_t* found;
  };

  static int64_t row_bytes(const Table& table) {
    return static_cast<int64_t>(table.columns.end - table.columns.begin);
  }

  static void check_keys(const std::array<int64_t, 4>& slice, const py::array& keys) {
    if (slice[3] < 0 || count_of(slice) < 0 || slice[3] + count_of(slice) > keys.shape(0)) {
      refuse("a slice must be within the keys of its chunk");
    }
  }

  int64_t bytes_of(const Slices& slices) const {
    int64_t num_bytes = 0;
    for (const auto& slice : slices) {
      const Table& table = tables_.at(static_cast<size_t>(slice[0]));
      num_bytes += exchange::align_bytes(count_of(slice) * (row_bytes(table) + 1));
    }
    return num_bytes;
  }

  py::list storages_;
  std::vector<py::array> rows_;
  std::vector<py::array> found_;
  Routes routes_;
  std::vector<Table> tables_;
};

}  // namespace

void bind_exchange(py::module_& module) {
  module.def("wire_encode", wire_encode, py::arg("dtype"), py::arg("rows"), py::arg("wire"));
  module.def("wire_decode", wire_decode, py::arg("dtype"), py::arg("wire"), py::arg("rows"));
  module.def("place_rows", place_rows, py::arg("rows"), py::arg("places"), py::arg("out"));
  py::class_<PyPulledTables>(module, "PulledTables")
      .def(py::init<py::list, const std::vector<std::pair<uint64_t, uint64_t>>&,
                    std::vector<py::array>, std::vector<py::array>, std::vector<py::array>,
                    py::array>(),
           py::arg("storages"), py::arg("columns"), py::arg("rows"), py::arg("found"),
           py::arg("orders"), py::arg("ends"))
      .def("find", &PyPulledTables::find, py::arg("slices"), py::arg("keys"), py::arg("message"))
      .def("find_own", &PyPulledTables::find_own, py::arg("slices"), py::arg("keys"),
           py::arg("rank"))
      .def("place", &PyPulledTables::place, py::arg("slices"), py::arg("owner"),
           py::arg("message"));
}
