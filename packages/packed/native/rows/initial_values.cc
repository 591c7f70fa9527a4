// Compiled with -ffp-contract=off: a multiplication and an addition round twice.
#include "rows/initial_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "format/hash.h"
#include "format/manifest.h"
#include "rows/halves.h"
#include "sparring_packed.h"

namespace sparring::packed {
namespace {

// ---- numbers of a dtype ------------------------------------------------------

// From double with one rounding. A float32 between would round twice: it is rounded to
// odd, which leaves the second rounding what it would have been.
float to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1u) != 0) return nearest;
  const bool is_above = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(is_above ? bits - 1 : bits + 1);
}

uint16_t half_of(int32_t dtype, double value) {
  return dtype == SPARRING_PACKED_FLOAT16 ? float16_of_float(to_odd(value))
                                          : bfloat16_of_float(to_odd(value));
}

float float_of_half(int32_t dtype, uint16_t bits) {
  return dtype == SPARRING_PACKED_FLOAT16 ? float_of_float16(bits) : float_of_bfloat16(bits);
}

float nearest(int32_t dtype, double value) {
  if (dtype == SPARRING_PACKED_FLOAT32) return static_cast<float>(value);
  return float_of_half(dtype, half_of(dtype, value));
}

// The next number of the dtype, of a number of it.
double above(int32_t dtype, double value) {
  if (dtype == SPARRING_PACKED_FLOAT32) {
    return std::nextafter(static_cast<float>(value), std::numeric_limits<float>::infinity());
  }
  const uint16_t bits = half_of(dtype, value);
  if ((bits & 0x7fff) == 0) return float_of_half(dtype, 1);
  return float_of_half(dtype, static_cast<uint16_t>((bits & 0x8000) != 0 ? bits - 1 : bits + 1));
}

double below(int32_t dtype, double value) { return -above(dtype, -value); }

// ---- random words -------------------------------------------------------------

struct Block {
  uint32_t words[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Block philox(int64_t id, uint32_t block, uint64_t key) {
  const auto halves = static_cast<uint64_t>(id);
  uint32_t c[4] = {static_cast<uint32_t>(halves), static_cast<uint32_t>(halves >> 32), block, 0};
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0,
                              static_cast<uint32_t>(product1),
                              static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1,
                              static_cast<uint32_t>(product0)};
    std::copy(next, next + 4, c);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

// ---- the inverse of the normal distribution function: Wichura, AS 241 (1988), PPND16 ----

constexpr double kCentralTop[] = {
    3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
    1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
    3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr double kCentralBottom[] = {
    1.0,                     4.2313330701600911252e1, 6.8718700749205790830e2,
    5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
    2.8729085735721942674e4, 5.2264952788528545610e3};
constexpr double kTailTop[] = {
    1.42343711074968357734e0,  4.63033784615654529590e0,  5.76949722146069140550e0,
    3.64784832476320460504e0,  1.27045825245236838258e0,  2.41780725177450611770e-1,
    2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kTailBottom[] = {
    1.0,                       2.05319162663775882187e0,  1.67638483018380384940e0,
    6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
    5.47593808499534494600e-4, 1.05075007164441684324e-9};
// 1 / (2k + 1): the series of atanh(s) / s in s squared.
constexpr double kAtanh[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                             1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};

// Horner's rule; coefficients, lowest power first.
template <size_t kCount>
double polynomial(const double (&coefficients)[kCount], double x) {
  double sum = coefficients[kCount - 1];
  for (size_t k = kCount - 1; k-- > 0;) sum = sum * x + coefficients[k];
  return sum;
}

double logarithm(double x) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;  // of sqrt(1/2)
  const uint64_t shifted = std::bit_cast<uint64_t>(x) - kRootHalf;
  const auto m = std::bit_cast<double>((shifted & 0x000fffffffffffffu) + kRootHalf);
  const auto e = static_cast<double>(static_cast<int64_t>(shifted) >> 52);
  const double s = (m - 1.0) / (m + 1.0);
  return e * 0.693147180559945309417 + s * 2.0 * polynomial(kAtanh, s * s);
}

double normal_deviate(double p) {
  const double q = p - 0.5;
  if (q <= 0.425 && q >= -0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kCentralTop, r) / polynomial(kCentralBottom, r);
  }
  const double nearest = p < 0.5 ? p : 1.0 - p;
  const double r = std::sqrt(-logarithm(nearest)) - 1.6;
  const double size = polynomial(kTailTop, r) / polynomial(kTailBottom, r);
  return p < 0.5 ? -size : size;
}

double value_of_word(const InitialValues& values, uint32_t word) {
  // The values of the distribution function at -2 and 2 standard deviations.
  constexpr double kBelow = 0.02275013194817921;
  constexpr double kAbove = 0.97724986805182079;
  double value = (static_cast<double>(word) + 0.5) * 0x1p-32;
  if (values.kind == InitialKind::truncated_normal) value = kBelow + value * (kAbove - kBelow);
  if (values.kind != InitialKind::uniform) value = normal_deviate(value);
  value = values.first + value * values.second;
  value = value < values.lower ? values.lower : value;
  return value > values.upper ? values.upper : value;
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

InitialValues initial_values_of(const TableEntry& table) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  InitialKind kind = InitialKind::constant;
  initial_kind_named(table.initializer, &kind);
  const uint64_t name = fnv1a(table.name);
  const int32_t dtype = table.trained_dtype;
  InitialValues values{kind,         dtype,
                       mix64(static_cast<uint64_t>(table.seed) ^ std::rotl(name, 32)),
                       table.first,  table.second,
                       -kInfinity,   kInfinity};
  if (kind == InitialKind::uniform) {
    values.second = table.second - table.first;
    values.lower = nearest(dtype, table.first);
    if (!(values.lower > table.first)) values.lower = above(dtype, values.lower);
    values.upper = nearest(dtype, table.second);
    if (!(values.upper < table.second)) values.upper = below(dtype, values.upper);
    if (values.lower > values.upper) values.lower = values.upper = nearest(dtype, table.first);
  } else if (kind == InitialKind::truncated_normal) {
    values.lower = nearest(dtype, table.first - 2 * table.second);
    values.upper = nearest(dtype, table.first + 2 * table.second);
  }
  return values;
}

void initial_embedding(const InitialValues& values, int64_t id, int64_t dim, float* out) {
  if (values.kind == InitialKind::constant) {
    std::fill(out, out + dim, nearest(values.dtype, values.first));
    return;
  }
  for (int64_t column = 0; column < dim; column += 4) {
    const Block block = philox(id, static_cast<uint32_t>(column / 4), values.philox_key);
    for (int64_t i = 0; i < 4 && column + i < dim; ++i) {
      out[column + i] = nearest(values.dtype, value_of_word(values, block.words[i]));
    }
  }
}

}  // namespace sparring::packed
