// Slices of messages that contain keys of several tables; see sparring/exchange/routing.py.
#ifndef SPARRING_BINDINGS_SLICES_H_
#define SPARRING_BINDINGS_SLICES_H_

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings/arrays.h"

namespace sparring::bindings {

// sparring.exchange.routing.TableSlice: table, begin, end, at.
using Slices = std::vector<std::array<int64_t, 4>>;

inline int64_t count_of(const std::array<int64_t, 4>& slice) { return slice[2] - slice[1]; }

// Keys of tables, grouped by owner: `sparring.exchange.routing.RoutedKeys`.
class Routes {
 public:
  // orders: per table (u); ends: (tables, owners + 1), the first key of each owner in its order.
  Routes(std::vector<pybind11::array> orders, pybind11::array ends)
      : orders_(std::move(orders)), ends_(std::move(ends)) {
    const auto num_tables = static_cast<pybind11::ssize_t>(orders_.size());
    firsts_ = input<int64_t>(ends_, "ends", {num_tables, kAny});
    for (const pybind11::array& order : orders_) {
      places_.push_back(input<int64_t>(order, "order", {kAny}));
    }
  }

  size_t num_tables() const { return orders_.size(); }
  int64_t num_keys(size_t table) const { return orders_[table].shape(0); }

  // The positions of a slice's keys among the keys of its table.
  const int64_t* places(int64_t owner, const std::array<int64_t, 4>& slice) const {
    const int64_t first = begin(slice[0], owner);
    if (slice[1] < 0 || slice[1] > slice[2] || first + slice[2] > begin(slice[0], owner + 1)) {
      refuse("a slice must be within the keys of its table for rank " + std::to_string(owner));
    }
    return places_[static_cast<size_t>(slice[0])] + first + slice[1];
  }

  // The first key of an owner in the order of a table.
  int64_t begin(int64_t table, int64_t owner) const {
    if (table < 0 || static_cast<size_t>(table) >= orders_.size() || owner < 0 ||
        owner >= ends_.shape(1)) {
      refuse("table " + std::to_string(table) + " and rank " + std::to_string(owner) +
             " must be among the routed ones");
    }
    return firsts_[table * ends_.shape(1) + owner];
  }

 private:
  std::vector<pybind11::array> orders_;
  pybind11::array ends_;
  std::vector<const int64_t*> places_;
  const int64_t* firsts_;
};

// Checks a message and returns its bytes, aligned for int64. `num_bytes`: size of its slices.
inline std::byte* message_bytes(const pybind11::array& message, int64_t num_bytes) {
  if ((message.flags() & pybind11::array::c_style) == 0 || message.nbytes() < num_bytes ||
      reinterpret_cast<uintptr_t>(message.data()) % 8 != 0) {
    refuse("a message must have at least " + std::to_string(num_bytes) +
           " contiguous bytes, aligned to 8, found " + std::to_string(message.nbytes()));
  }
  return static_cast<std::byte*>(const_cast<void*>(message.data()));
}

}  // namespace sparring::bindings

#endif  // SPARRING_BINDINGS_SLICES_H_
