// The inverse of the normal distribution function: part of the format, defined by
// core's native/kernels/initialize.h and done here one number at a time.
//
// Wichura, "Algorithm AS 241: the percentage points of the normal distribution",
// Applied Statistics 37 (1988), PPND16, without its third region: the smallest p of
// a 32-bit word does not reach it.
#ifndef SPARRING_HKV_DEVICE_KERNELS_NORMAL_H_
#define SPARRING_HKV_DEVICE_KERNELS_NORMAL_H_

#include "device_kernels/scalars.h"

namespace sparring::device_kernels {

// Horner's rule; coefficients, lowest power first.
SPARRING_DEVICE double horner(double, double highest) { return highest; }
template <class... Higher>
SPARRING_DEVICE double horner(double x, double lowest, Higher... higher) {
  return horner(x, higher...) * x + lowest;
}

SPARRING_DEVICE double normal_central(double p) {
  const double q = p - 0.5;
  const double r = 0.180625 - q * q;
  const double top = horner(r, 3.3871328727963666080e0, 1.3314166789178437745e2,
                            1.9715909503065514427e3, 1.3731693765509461125e4,
                            4.5921953931549871457e4, 6.7265770927008700853e4,
                            3.3430575583588128105e4, 2.5090809287301226727e3);
  const double bottom = horner(r, 1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
                               5.3941960214247511077e3, 2.1213794301586595867e4,
                               3.9307895800092710610e4, 2.8729085735721942674e4,
                               5.2264952788528545610e3);
  return q * top / bottom;
}

// The natural logarithm of a positive normal number: x = m * 2^e with m between
// sqrt(1/2) and sqrt(2), log m = 2 atanh((m - 1) / (m + 1)).
SPARRING_DEVICE double logarithm(double x) {
  // The bits of sqrt(1/2), so that a mantissa above it carries into the exponent.
  const uint64_t root_half = 0x3fe6a09e667f3bcdu;
  const uint64_t shifted = bits_as<uint64_t>(x) - root_half;
  const double m = bits_as<double>((shifted & 0x000fffffffffffffu) + root_half);
  const auto e = static_cast<double>(static_cast<int64_t>(shifted) >> 52);
  const double s = (m - 1.0) / (m + 1.0);
  const double series = horner(s * s, 1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13,
                               1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21);
  return e * 0.693147180559945309417 + s * 2.0 * series;
}

SPARRING_DEVICE double normal_tail(double p) {
  const double nearest = p < 0.5 ? p : 1.0 - p;
  const double r = square_root(-logarithm(nearest)) - 1.6;
  const double top = horner(r, 1.42343711074968357734e0, 4.63033784615654529590e0,
                            5.76949722146069140550e0, 3.64784832476320460504e0,
                            1.27045825245236838258e0, 2.41780725177450611770e-1,
                            2.27238449892691845833e-2, 7.74545014278341407640e-4);
  const double bottom = horner(r, 1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
                               6.89767334985100004550e-1, 1.48103976427480074590e-1,
                               1.51986665636164571966e-2, 5.47593808499534494600e-4,
                               1.05075007164441684324e-9);
  const double size = top / bottom;
  return p < 0.5 ? -size : size;
}

SPARRING_DEVICE double normal_deviate(double p) {
  const double distance = p - 0.5;
  return distance > 0.425 || distance < -0.425 ? normal_tail(p) : normal_central(p);
}

}  // namespace sparring::device_kernels

#endif  // SPARRING_HKV_DEVICE_KERNELS_NORMAL_H_
