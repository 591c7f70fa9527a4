#include "kernels/initialize.h"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/halves.h"
#include "kernels/hash.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace sparring::kernels {
namespace {

// Bounds in the numbers of one row type, as doubles.
template <class T>
struct Numbers {
  static double nearest(double value) { return static_cast<T>(value); }
  static double above(double value) {
    return std::nextafter(static_cast<T>(value), std::numeric_limits<T>::infinity());
  }
  static double below(double value) {
    return std::nextafter(static_cast<T>(value), -std::numeric_limits<T>::infinity());
  }
};

struct HalfNumbers {
  const HalfKernels& loops;

  double nearest(double value) const { return loops.widened(loops.nearest(value)); }
  // The neighbours of a number of the type.
  double above(double value) const {
    const uint16_t bits = loops.nearest(value);
    if ((bits & 0x7fff) == 0) return loops.widened(1);
    return loops.widened(static_cast<uint16_t>((bits & 0x8000) != 0 ? bits - 1 : bits + 1));
  }
  double below(double value) const { return -above(-value); }
};

template <class Numbers>
InitialValues values_for(const InitializerSpec& spec, const Numbers& numbers) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  InitialValues values{spec.kind, spec.philox_key, spec.first, spec.second, -kInfinity, kInfinity};
  switch (spec.kind) {
    case InitialKind::uniform:
      values.second = spec.second - spec.first;
      values.lower = numbers.nearest(spec.first);
      if (!(values.lower > spec.first)) values.lower = numbers.above(values.lower);
      values.upper = numbers.nearest(spec.second);
      if (!(values.upper < spec.second)) values.upper = numbers.below(values.upper);
      if (values.lower > values.upper) {
        values.lower = values.upper = numbers.nearest(spec.first);
      }
      break;
    case InitialKind::truncated_normal:
      values.lower = numbers.nearest(spec.first - 2 * spec.second);
      values.upper = numbers.nearest(spec.first + 2 * spec.second);
      break;
    case InitialKind::constant:
    case InitialKind::normal:
      break;
  }
  return values;
}

InitialValues values_of(const InitializerSpec& spec, RowType type) {
  switch (type) {
    case RowType::float32:
      return values_for(spec, Numbers<float>{});
    case RowType::float64:
      return values_for(spec, Numbers<double>{});
    case RowType::float16:
    case RowType::bfloat16:
      return values_for(spec, HalfNumbers{half_kernels(type)});
  }
  return {};
}

using InitializeLoop = void (*)(const InitializeArguments&, int64_t, int64_t);

InitializeLoop loop_of(RowType type) {
  switch (type) {
    case RowType::float32:
      return row_kernels<float>().initialize;
    case RowType::float64:
      return row_kernels<double>().initialize;
    case RowType::float16:
    case RowType::bfloat16:
      return half_kernels(type).initialize;
  }
  return nullptr;
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

void initialize(const SparringExecutor* executor, const InitializerSpec& spec,
                const InitializeRows& rows) {
  const RowLayout& layout = rows.layout;
  const InitializeLoop loop = loop_of(layout.type);
  const InitializeArguments arguments{values_of(spec, layout.type), rows.keys,  rows.found,
                                      rows.state, rows.rows, layout.dim, layout.state_begin,
                                      layout.row_bytes};
  // A value costs about as much time as moving 16 bytes.
  const int64_t grain = grain_for(16 * (layout.dim + layout.state_width));
  parallel_for(executor, rows.count, grain,
               [&](int64_t begin, int64_t end) { loop(arguments, begin, end); });
}

}  // namespace sparring::kernels
