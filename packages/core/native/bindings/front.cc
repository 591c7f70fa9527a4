#include "bindings/front.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <vector>

#include "bindings/export.h"
#include "bindings/gil.h"

namespace py = pybind11;

namespace sparring::bindings {
namespace {

using abi::EvictedRows;
using abi::StorageError;
using abi::StorageHandle;

py::array_t<int64_t> copy_of(const int64_t* keys, int64_t count) {
  return py::array_t<int64_t>(count, keys);
}

// (keys, rows as bytes, scores), or None.
py::object evicted_parts(const EvictedRows& evicted) {
  const auto count = static_cast<py::ssize_t>(evicted.keys.size());
  if (count == 0) return py::none();
  const auto bytes = static_cast<py::ssize_t>(evicted.rows.size());
  py::array_t<uint8_t> rows({count, bytes / count});
  std::memcpy(rows.mutable_data(), evicted.rows.data(), evicted.rows.size());
  return py::make_tuple(py::array_t<int64_t>(count, evicted.keys.data()), rows,
                        py::array_t<uint64_t>(count, evicted.scores.data()));
}

void send(const SparringEvictionSink& sink, const EvictedRows& evicted) {
  if (sink.receive == nullptr || evicted.keys.empty()) return;
  if (sink.receive(sink.context, static_cast<int64_t>(evicted.keys.size()), evicted.keys.data(),
                   evicted.rows.data(), evicted.scores.data()) != 0) {
    throw StorageError(SPARRING_INTERNAL, "the callback for evicted rows failed");
  }
}

// Adds its lifetime to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

// Passes on the rows of the first tier, until a row is missing there.
struct Watch {
  const SparringVisit* asked;
  int64_t num_served = 0;
  bool is_missing = false;

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    auto& self = *static_cast<Watch*>(context);
    const auto* const end = rows + count;
    if (std::find(rows, end, nullptr) != end) {
      self.is_missing = true;
      return 1;
    }
    const int32_t answer = self.asked->show(self.asked->context, begin, count, rows);
    if (answer == 0) self.num_served = begin + count;
    return answer;
  }
};

// Rejects an update for which rows are missing in the first tier, before any change, and
// records their keys.
struct Missing {
  const SparringUpdate* asked = nullptr;
  std::vector<int64_t> keys{};

  static int32_t admit(void* context, int64_t count, const int64_t* positions, uint8_t*) {
    auto& self = *static_cast<Missing*>(context);
    try {
      self.keys.reserve(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) self.keys.push_back(self.asked->keys[positions[i]]);
    } catch (const std::bad_alloc&) {
      self.keys.clear();
    }
    return 1;
  }

  static void change(void* context, int64_t count, const int64_t* positions, void* const* rows,
                     const uint8_t* is_new) {
    const SparringUpdate& asked = *static_cast<const Missing*>(context)->asked;
    asked.change(asked.context, count, positions, rows, is_new);
  }
};

// The rest of a visit, whose positions begin elsewhere.
struct Rest {
  const SparringVisit* asked;
  int64_t first;

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    const auto& self = *static_cast<const Rest*>(context);
    return self.asked->show(self.asked->context, self.first + begin, count, rows);
  }
};

}  // namespace

Front::Front(py::capsule first)
    : capsule_(std::move(first)), first_(capsule_.get_pointer<SparringStorage>()) {}

void Front::visit(py::object& adapter, const SparringStorage& stack, SparringVisit* a) const {
  Watch watch{a};
  double seconds = 0;
  adapter.attr("begin_visit")();
  try {
    SparringVisit inner{};
    inner.count = a->count;
    inner.keys = a->keys;
    inner.columns = a->columns;
    inner.show = &Watch::show;
    inner.context = &watch;
    const GilRelease release;
    const Stopwatch stopwatch(seconds);
    first_.visit(inner);
  } catch (...) {
    if (!watch.is_missing) {
      adapter.attr("end_visit")(0, 0, seconds);
      throw;
    }
  }
  const auto bytes = static_cast<int64_t>(a->columns.end - a->columns.begin);
  adapter.attr("end_visit")(watch.num_served, watch.num_served * bytes, seconds);
  if (watch.num_served == a->count) return;
  SparringStorage plain = stack;
  plain.visit = nullptr;
  Rest rest{a, watch.num_served};
  SparringVisit inner{};
  inner.count = a->count - watch.num_served;
  inner.keys = a->keys + watch.num_served;
  inner.columns = a->columns;
  inner.show = &Rest::show;
  inner.context = &rest;
  const GilRelease release;
  StorageHandle(&plain).visit(inner);
}

void Front::update(py::object& adapter, const SparringStorage& stack, SparringUpdate* a) const {
  const auto keys = copy_of(a->keys, a->count);
  adapter.attr("begin_update")(keys);
  EvictedRows evicted;
  SparringUpdate inner = *a;
  bool fits = true;
  double seconds = 0;
  try {
    Missing missing;
    inner.admit = &Missing::admit;
    inner.context = &missing;
    missing.asked = a;
    inner.change = &Missing::change;
    try {
      const GilRelease release;
      const Stopwatch stopwatch(seconds);
      first_.update(inner, &evicted);
    } catch (const StorageError&) {
      if (missing.keys.empty()) throw;
    }
    if (!missing.keys.empty()) {
      const auto count = static_cast<int64_t>(missing.keys.size());
      fits = adapter.attr("bring_up")(keys, copy_of(missing.keys.data(), count)).cast<bool>();
      if (fits) {
        inner = *a;
        const GilRelease release;
        const Stopwatch stopwatch(seconds);
        first_.update(inner, &evicted);
      }
    }
  } catch (...) {
    adapter.attr("abort_update")();
    throw;
  }
  if (!fits) {
    adapter.attr("abort_update")();
    SparringStorage plain = stack;
    plain.update = nullptr;
    inner = *a;
    const GilRelease release;
    StorageHandle(&plain).update(inner, &evicted);
    a->inserted = inner.inserted;
    send(a->evicted, evicted);
    return;
  }
  a->inserted = inner.inserted;
  const py::object gone =
      adapter.attr("end_update")(keys, inner.inserted, evicted_parts(evicted), seconds);
  if (!gone.is_none()) send_evicted(a->evicted, gone);
}

}  // namespace sparring::bindings
