#include "kernels/initialize.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/hash.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

template <class T>
T smallest_above(double bound) {
  const auto nearest = static_cast<T>(bound);
  return nearest > bound ? nearest : std::nextafter(nearest, std::numeric_limits<T>::infinity());
}

template <class T>
T largest_below(double bound) {
  const auto nearest = static_cast<T>(bound);
  return nearest < bound ? nearest : std::nextafter(nearest, -std::numeric_limits<T>::infinity());
}

template <class T>
InitialValues values_for(const InitializerSpec& spec) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  InitialValues values{spec.kind, spec.philox_key, spec.first, spec.second, -kInfinity, kInfinity};
  switch (spec.kind) {
    case InitialKind::uniform:
      values.second = spec.second - spec.first;
      values.lower = smallest_above<T>(spec.first);
      values.upper = largest_below<T>(spec.second);
      if (values.lower > values.upper) {
        values.lower = values.upper = static_cast<T>(spec.first);
      }
      break;
    case InitialKind::truncated_normal:
      values.lower = static_cast<T>(spec.first - 2 * spec.second);
      values.upper = static_cast<T>(spec.first + 2 * spec.second);
      break;
    case InitialKind::constant:
    case InitialKind::normal:
      break;
  }
  return values;
}

}  // namespace

bool initial_kind_named(std::string_view name, InitialKind* kind) {
  if (name == "zeros" || name == "constant") {
    *kind = InitialKind::constant;
  } else if (name == "uniform" || name == "xavier") {
    *kind = InitialKind::uniform;
  } else if (name == "normal") {
    *kind = InitialKind::normal;
  } else if (name == "truncated_normal") {
    *kind = InitialKind::truncated_normal;
  } else {
    return false;
  }
  return true;
}

uint64_t philox_key_for(int64_t seed, uint64_t table_hash) {
  return mix64(static_cast<uint64_t>(seed) ^ std::rotl(table_hash, 32));
}

template <class T>
void initialize(const SparringExecutor* executor, const InitializerSpec& spec,
                const InitializeRows<T>& rows) {
  const RowKernels<T>& kernels = row_kernels<T>();
  const InitializeArguments<T> arguments{
      values_for<T>(spec), rows.keys, rows.found, rows.state, rows.rows, spec.dim, rows.width};
  // A value costs about as much time as moving 16 bytes.
  const int64_t grain = grain_for(16 * rows.width);
  parallel_for(executor, rows.count, grain, [&](int64_t begin, int64_t end) {
    kernels.initialize(arguments, begin, end);
  });
}

template void initialize(const SparringExecutor*, const InitializerSpec&,
                         const InitializeRows<float>&);
template void initialize(const SparringExecutor*, const InitializerSpec&,
                         const InitializeRows<double>&);

}  // namespace sparring::kernels
