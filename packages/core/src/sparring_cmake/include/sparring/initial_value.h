// The initial value of a key, the hash functions of keys and of table names, and the random bits of
// stochastic rounding.
//
// THESE BITS ARE PART OF THE FORMATS and never change: another device, framework or version must
// compute the same bits. The partition of a key decides which rank owns it and which file of a snapshot
// contains it. A key without a row reads as its initial value, and nothing is stored for it.
//
// Element `column` of the embedding of `key` is computed as follows, in IEEE double with
// round-to-nearest and without fused multiply-add, and is rounded to the table's dtype once, at the
// end, to nearest, ties to even.
//
//   1. philox_key = mix64(uint64(seed) ^ rotate_left(fnv1a(name), 32)).
//   2. word = word (column % 4) of Philox4x32-10 for the counter
//      (low half of key, high half of key, column / 4, 0) and the Philox key
//      (low half of philox_key, high half of philox_key). A key's halves are those
//      of its two's complement.
//   3. u = (word + 0.5) / 2^32, which is exact and within (0, 1).
//   4. uniform(low, high), and xavier with low = -limit, high = limit:
//        value = low + u * (high - low), clamped to [lower, upper]. Here lower is
//        the smallest number of the dtype above low, and upper the largest below
//        high (if the dtype has no number between them, both are the one nearest to low).
//      normal(mean, stddev):
//        value = mean + normal(u) * stddev.
//      truncated_normal(mean, stddev):
//        p = 0.02275013194817921 + u * (0.97724986805182079 - 0.02275013194817921),
//        value = mean + normal(p) * stddev, clamped to mean ± 2 stddev, bounds that
//        are rounded to the dtype.
//      normal() is algorithm AS 241 with the logarithm below.
//   5. constant(value), and zeros with value = 0: the value, rounded to the dtype.
//
// Numbers and vectors share this text. A function with a parameter `V` computes with the types and
// operations of V: `Scalar` is one number at a time, and core's native/kernels/level_philox.inc has the
// vectors of each SIMD level. nvcc compiles the functions for both sides.
//
// REQUIRES: the compiler fuses no multiplication with an addition (-ffp-contract=off, -fmad=false).
// No header of the standard library with inline functions is included: native/kernels/level.h of core
// explains why, and all functions are inlined for the same reason.
#ifndef SPARRING_INITIAL_VALUE_H_
#define SPARRING_INITIAL_VALUE_H_

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define SPARRING_FORMAT_FUNCTION __host__ __device__ __forceinline__
#define SPARRING_FORMAT_UNROLL
#else
#define SPARRING_FORMAT_FUNCTION inline __attribute__((always_inline))
#define SPARRING_FORMAT_UNROLL _Pragma("GCC unroll 10")
#endif

namespace sparring {

// ---- hash functions ------------------------------------------------------------------------------

// Number of partitions of a table's key space.
inline constexpr int kNumPartitions = 4096;
inline constexpr int kPartitionBits = 12;

// A bijection of 64 bits in which every input bit affects every output bit: the finalizer of
// MurmurHash3 (Appleby, public domain).
SPARRING_FORMAT_FUNCTION constexpr uint64_t mix64(uint64_t bits) {
  bits ^= bits >> 33;
  bits *= 0xff51afd7ed558ccdu;
  bits ^= bits >> 33;
  bits *= 0xc4ceb9fe1a85ec53u;
  bits ^= bits >> 33;
  return bits;
}

// The partition of a key: the top 12 bits of mix64(key), 0 to 4,095.
SPARRING_FORMAT_FUNCTION constexpr int partition_of(int64_t key) {
  return static_cast<int>(mix64(static_cast<uint64_t>(key)) >> (64 - kPartitionBits));
}

// FNV-1a, 64 bits (Fowler, Noll, Vo), of the bytes of a string or of a view of one. The hash of a table
// is the hash of its name in UTF-8.
template <class Text>
SPARRING_FORMAT_FUNCTION constexpr uint64_t fnv1a(const Text& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  }
  return hash;
}

SPARRING_FORMAT_FUNCTION constexpr uint64_t philox_key_for(int64_t seed, uint64_t table_hash) {
  return mix64(static_cast<uint64_t>(seed) ^ (table_hash << 32 | table_hash >> 32));
}

// ---- random bits of stochastic rounding ----------------------------------------------------------
//
// core's native/kernels/halves.h defines the rounding. A row and a step have one stream of 64 bits; a
// column's bits are half of a 32-bit hash of the stream and the column. Each bit is uniform over the
// streams, because every step of the hash is a bijection. Philox would take longer than the update of the row.

// The seed of a table, for rounding_stream().
SPARRING_FORMAT_FUNCTION constexpr uint64_t rounding_seed_for(uint64_t philox_key) {
  return mix64(philox_key ^ 0x726f756e64696e67u);
}

// Distinguishes the streams of tables and steps.
SPARRING_FORMAT_FUNCTION constexpr uint64_t rounding_salt(uint64_t rounding_seed, int64_t step) {
  return mix64(mix64(rounding_seed) + static_cast<uint64_t>(step));
}

// The stream of the row of `key`.
SPARRING_FORMAT_FUNCTION constexpr uint64_t rounding_stream(uint64_t salt, int64_t key) {
  return mix64(static_cast<uint64_t>(key) ^ salt);
}

// The bits of columns 2 * number (lower half) and 2 * number + 1 (upper half). `Word` is uint32_t or a
// vector of them.
template <class Word>
SPARRING_FORMAT_FUNCTION constexpr Word rounding_word(uint64_t stream, Word number) {
  Word bits = number * 0x9e3779b9u + static_cast<uint32_t>(stream);
  bits ^= bits >> 16;
  bits *= 0x85ebca6bu;
  bits ^= bits >> 13;
  bits ^= static_cast<uint32_t>(stream >> 32);
  bits *= 0xc2b2ae35u;
  return bits ^ bits >> 16;
}

// ---- numbers one at a time, and rows of 16 bits -----------------------------------------------------

template <class To, class From>
SPARRING_FORMAT_FUNCTION To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

struct Scalar {
  using Word = uint32_t;
  using Bits = uint64_t;
  using Double = double;
  struct Product {
    Word low;
    Word high;
  };

  static SPARRING_FORMAT_FUNCTION constexpr Product multiply(Word left, uint32_t right) {
    const uint64_t product = static_cast<uint64_t>(left) * right;
    return {static_cast<Word>(product), static_cast<Word>(product >> 32)};
  }
  static SPARRING_FORMAT_FUNCTION Double double_of_word(Word word) {
    return static_cast<double>(word);
  }
  static SPARRING_FORMAT_FUNCTION Bits bits_of(Double value) { return bits_as<Bits>(value); }
  static SPARRING_FORMAT_FUNCTION Double double_of_bits(Bits bits) { return bits_as<Double>(bits); }
  static SPARRING_FORMAT_FUNCTION Double square_root(Double value) {
#if defined(__CUDA_ARCH__)
    return __dsqrt_rn(value);
#else
    return __builtin_sqrt(value);
#endif
  }
};

// IEEE binary16.
struct Float16 {
  uint16_t bits;
  static constexpr int kMantissa = 10;
  static constexpr int kBias = 15;
  static constexpr uint32_t kInfinity = 0x7c00;
};

// The upper half of a float32.
struct Bfloat16 {
  uint16_t bits;
  static constexpr int kMantissa = 7;
  static constexpr int kBias = 127;
  static constexpr uint32_t kInfinity = 0x7f80;
};

// `value` in a row of T, rounded once to nearest, ties to even. T is float, double, Float16 or Bfloat16.
template <class T>
SPARRING_FORMAT_FUNCTION T rounded(double value) {
  if constexpr (sizeof(T) > 2) {
    return static_cast<T>(value);
  } else {
    constexpr int kDropped = 52 - T::kMantissa;
    constexpr uint64_t kBelowNormal = 1023 - T::kBias;  // an exponent
    const uint64_t bits = bits_as<uint64_t>(value);
    const auto sign = static_cast<uint32_t>(bits >> 48 & 0x8000);
    const uint64_t magnitude = bits & 0x7fffffffffffffff;
    const uint64_t exponent = magnitude >> 52;
    uint64_t result = 0;
    if (magnitude > 0x7ff0000000000000) {
      result = T::kInfinity | uint64_t{1} << (T::kMantissa - 1);
    } else if (exponent > kBelowNormal) {
      const uint64_t rebiased = magnitude - (kBelowNormal << 52);
      const uint64_t half = (uint64_t{1} << (kDropped - 1)) - 1;
      result = (rebiased + half + (rebiased >> kDropped & 1)) >> kDropped;
      if (result > T::kInfinity) result = T::kInfinity;
    } else {
      const uint64_t shift = kDropped + kBelowNormal + 1 - exponent;
      const uint64_t significand = (magnitude & 0x000fffffffffffff) | 0x0010000000000000;
      if (shift <= 53) {
        const uint64_t half = (uint64_t{1} << (shift - 1)) - 1;
        result = (significand + half + (significand >> shift & 1)) >> shift;
      }
    }
    return T{static_cast<uint16_t>(result | sign)};
  }
}

// The value of a finite number of T. Not via float32, in which a Bfloat16 may be subnormal.
template <class T>
SPARRING_FORMAT_FUNCTION double widened(T value) {
  if constexpr (sizeof(T) > 2) {
    return value;
  } else {
    constexpr uint64_t kRebias = uint64_t{1023 - T::kBias} << 52;
    const uint64_t magnitude = value.bits & 0x7fff;
    const bool is_subnormal = magnitude >> T::kMantissa == 0;
    // A subnormal number is read as a normal one of the least exponent, which is then subtracted.
    const uint64_t raised = is_subnormal ? magnitude | uint64_t{1} << T::kMantissa : magnitude;
    double result = bits_as<double>((raised << (52 - T::kMantissa)) + kRebias);
    if (is_subnormal) result -= bits_as<double>((uint64_t{1} << 52) + kRebias);
    return (value.bits & 0x8000) != 0 ? -result : result;
  }
}

// ---- random words ------------------------------------------------------------------------------------

// Ten rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) over
// a counter; the output replaces it.
template <class V>
SPARRING_FORMAT_FUNCTION constexpr void philox4x32_10(typename V::Word (&words)[4], uint64_t key) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  SPARRING_FORMAT_UNROLL
  for (int round = 0; round < 10; ++round) {
    const typename V::Product first = V::multiply(words[0], 0xD2511F53u);
    const typename V::Product second = V::multiply(words[2], 0xCD9E8D57u);
    words[0] = second.high ^ words[1] ^ key0;
    words[1] = second.low;
    words[2] = first.high ^ words[3] ^ key1;
    words[3] = first.low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

struct PhiloxBlock {
  uint32_t words[4];
};

// The block for the counter (low half of key, high half of key, third, fourth).
SPARRING_FORMAT_FUNCTION constexpr PhiloxBlock philox_of(int64_t key, uint32_t third, uint32_t fourth,
                                                         uint64_t philox_key) {
  const auto bits = static_cast<uint64_t>(key);
  PhiloxBlock block{
      {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), third, fourth}};
  philox4x32_10<Scalar>(block.words, philox_key);
  return block;
}

// ---- the inverse of the normal distribution function -------------------------------------------------
//
// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37
// (1988), PPND16. Its third region, sqrt(-log p) > 5, is beyond what a 32-bit word can reach: the
// smallest p is 2^-33, for which it is 4.8. Coefficients are listed lowest power first, as in the paper.

// Horner's rule, each step one multiplication and one addition.
template <class Double>
SPARRING_FORMAT_FUNCTION Double polynomial(Double, double highest) {
  return Double{} + highest;
}
template <class Double, class... Higher>
SPARRING_FORMAT_FUNCTION Double polynomial(Double x, double lowest, Higher... higher) {
  return polynomial(x, higher...) * x + lowest;
}

// normal_central is for |p - 0.5| <= kCentral, normal_tail for the rest.
inline constexpr double kCentral = 0.425;

template <class V>
SPARRING_FORMAT_FUNCTION typename V::Double normal_central(typename V::Double p) {
  const typename V::Double q = p - 0.5;
  const typename V::Double r = 0.180625 - q * q;
  const typename V::Double top = polynomial(
      r, 3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
      1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
      3.3430575583588128105e4, 2.5090809287301226727e3);
  const typename V::Double bottom = polynomial(
      r, 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
      2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
      5.2264952788528545610e3);
  return q * top / bottom;
}

// The natural logarithm of a positive normal number above 2^-64: x = m * 2^e with m between sqrt(1/2)
// and sqrt(2), log m = 2 atanh((m - 1) / (m + 1)).
template <class V>
SPARRING_FORMAT_FUNCTION typename V::Double logarithm(typename V::Double x) {
  using Double = typename V::Double;
  using Bits = typename V::Bits;
  // The bits of sqrt(1/2), so that a mantissa above it carries into the exponent.
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;
  constexpr uint64_t kBias = 1024;  // makes the exponent positive
  const Bits shifted = V::bits_of(x) - kRootHalf;
  const Double m = V::double_of_bits((shifted & 0x000fffffffffffffu) + kRootHalf);
  const Bits biased = (shifted + (kBias << 52)) >> 52;
  const Double e = V::double_of_word(static_cast<typename V::Word>(biased)) - double{kBias};
  const Double s = (m - 1.0) / (m + 1.0);
  const Double series = polynomial(s * s, 1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11,
                                   1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21);
  return e * 0.693147180559945309417 + s * 2.0 * series;
}

template <class V>
SPARRING_FORMAT_FUNCTION typename V::Double normal_tail(typename V::Double p) {
  using Double = typename V::Double;
  const Double nearest = p < 0.5 ? p : 1.0 - p;
  const Double r = V::square_root(-logarithm<V>(nearest)) - 1.6;
  const Double top = polynomial(
      r, 1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
      3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
      2.27238449892691845833e-2, 7.74545014278341407640e-4);
  const Double bottom = polynomial(
      r, 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
      1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
      1.05075007164441684324e-9);
  const Double size = top / bottom;
  return p < 0.5 ? -size : size;
}

// ---- initial values -----------------------------------------------------------------------------------

enum class InitialKind : int32_t { constant, uniform, normal, truncated_normal };

// Reads zeros, constant, uniform, normal, truncated_normal or xavier; returns false for any other name.
// `Text` compares with strings.
template <class Text>
bool initial_kind_named(const Text& name, InitialKind* kind) {
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

// A table's initializer; sparring/contracts/tables/initializers.py describes the kinds and their parameters.
struct Initializer {
  InitialKind kind;
  double first;   // constant: the value; uniform: low; normal: the mean
  double second;  // uniform: high; normal: the standard deviation
  uint64_t philox_key;
};

// An initializer, prepared for rows of one type.
struct InitialValues {
  InitialKind kind;
  uint64_t philox_key;
  double first;
  double second;  // uniform: high - low
  double lower;   // results are clamped to [lower, upper], which are exact in the rows' type
  double upper;
};

template <int kBytes>
struct Unsigned;
template <>
struct Unsigned<2> {
  using type = uint16_t;
};
template <>
struct Unsigned<4> {
  using type = uint32_t;
};
template <>
struct Unsigned<8> {
  using type = uint64_t;
};

// The next number of T above a number of T.
template <class T>
double next_above(double number) {
  using Bits = typename Unsigned<sizeof(T)>::type;
  constexpr auto kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(T) - 1));
  const auto bits = bits_as<Bits>(rounded<T>(number));
  if ((bits & ~kSign) == 0) return widened(bits_as<T>(Bits{1}));
  return widened(bits_as<T>(static_cast<Bits>((bits & kSign) != 0 ? bits - 1 : bits + 1)));
}

// Prepares an initializer for rows of T: float, double, Float16 or Bfloat16.
template <class T>
InitialValues initial_values(const Initializer& given) {
  const auto nearest = [](double value) { return widened(rounded<T>(value)); };
  InitialValues values{given.kind,   given.philox_key,      given.first,
                       given.second, -__builtin_huge_val(), __builtin_huge_val()};
  if (given.kind == InitialKind::uniform) {
    values.second = given.second - given.first;
    values.lower = nearest(given.first);
    if (!(values.lower > given.first)) values.lower = next_above<T>(values.lower);
    values.upper = nearest(given.second);
    if (!(values.upper < given.second)) values.upper = -next_above<T>(-values.upper);
    if (values.lower > values.upper) values.lower = values.upper = nearest(given.first);
  } else if (given.kind == InitialKind::truncated_normal) {
    values.lower = nearest(given.first - 2 * given.second);
    values.upper = nearest(given.first + 2 * given.second);
  }
  return values;
}

// The probability, in (0, 1), that a random word represents.
template <class V>
SPARRING_FORMAT_FUNCTION typename V::Double probability_of(InitialKind kind,
                                                           typename V::Word word) {
  const typename V::Double u = (V::double_of_word(word) + 0.5) * 0x1p-32;
  if (kind != InitialKind::truncated_normal) return u;
  // The values of the distribution function at -2 and 2 standard deviations.
  constexpr double kBelow = 0.02275013194817921;
  constexpr double kAbove = 0.97724986805182079;
  return kBelow + u * (kAbove - kBelow);
}

// The value of a probability (uniform) or of a normal deviate.
template <class V>
SPARRING_FORMAT_FUNCTION typename V::Double scaled(const InitialValues& values,
                                                   typename V::Double deviate) {
  using Double = typename V::Double;
  Double value = values.first + deviate * values.second;
  value = value < values.lower ? Double{} + values.lower : value;
  return value > values.upper ? Double{} + values.upper : value;
}

// ---- int8 embeddings -----------------------------------------------------------------------------------
//
// Initial embeddings of int8 tables are float32 ones, rounded to codes with a common scale. core's
// native/kernels/bytes.h describes the format.

inline constexpr float kMostInt8Code = 127.0f;
inline constexpr float kLargestInt8Scale = 448.0f;

// The scale of an embedding whose largest magnitude is `largest`, a finite number: largest / 127,
// rounded up to 2 bits of mantissa, which float16 represents exactly.
SPARRING_FORMAT_FUNCTION float int8_scale(float largest) {
  constexpr uint32_t kCut = (uint32_t{1} << 21) - 1;
  constexpr float kLeast = 0x1p-22f;
  const auto scale =
      bits_as<float>((bits_as<uint32_t>(largest / kMostInt8Code) + kCut) & ~kCut);
  return scale < kLeast ? kLeast : scale > kLargestInt8Scale ? kLargestInt8Scale : scale;
}

// The nearest code of a number whose magnitude is at most 127 * scale.
SPARRING_FORMAT_FUNCTION int32_t int8_code(float value, float scale) {
  // Adding it rounds to an integer in the low bits.
  constexpr float kRounding = 0x1.8p23f;
  const float units = value * (0x1p14f / scale);
  const float rounded_units = units + kRounding;
  return static_cast<int32_t>(bits_as<uint32_t>(rounded_units) - 0x4b400000u + 0x2000u) >> 14;
}

template <class T>
struct InitialColumns {
  T values[4];
};

// Columns [4 block, 4 block + 4) of the embedding of `key`.
template <class T>
SPARRING_FORMAT_FUNCTION InitialColumns<T> initial_columns(const InitialValues& values, int64_t key,
                                                           uint32_t block) {
  InitialColumns<T> columns;
  if (values.kind == InitialKind::constant) {
    for (int i = 0; i < 4; ++i) columns.values[i] = rounded<T>(values.first);
    return columns;
  }
  const PhiloxBlock random = philox_of(key, block, 0, values.philox_key);
  for (int i = 0; i < 4; ++i) {
    double deviate = probability_of<Scalar>(values.kind, random.words[i]);
    if (values.kind != InitialKind::uniform) {
      const double distance = deviate - 0.5;
      deviate = distance > kCentral || distance < -kCentral ? normal_tail<Scalar>(deviate)
                                                            : normal_central<Scalar>(deviate);
    }
    columns.values[i] = rounded<T>(scaled<Scalar>(values, deviate));
  }
  return columns;
}

}  // namespace sparring

#undef SPARRING_FORMAT_FUNCTION
#undef SPARRING_FORMAT_UNROLL

#endif  // SPARRING_INITIAL_VALUE_H_
