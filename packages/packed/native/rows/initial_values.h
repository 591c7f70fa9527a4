// What an id reads as before it has a row: the values that core's
// native/kernels/initialize.h defines, one number at a time. Missing ids are few, so
// that vectors would save little here. The tests compare each bit with core's.
#ifndef SPARRING_PACKED_ROWS_INITIAL_VALUES_H_
#define SPARRING_PACKED_ROWS_INITIAL_VALUES_H_

#include <cstdint>
#include <string_view>

namespace sparring::packed {

struct TableEntry;

enum class InitialKind : int32_t { constant, uniform, normal, truncated_normal };

// Reads zeros, constant, uniform, normal, truncated_normal or xavier; returns false for
// any other name.
bool initial_kind_named(std::string_view name, InitialKind* kind);

struct InitialValues {
  InitialKind kind;
  int32_t dtype;  // that values are rounded to: the table's in training
  uint64_t philox_key;
  double first;   // constant: the value; uniform: low; normal: the mean
  double second;  // uniform: high - low; normal: the standard deviation
  double lower;   // results are held within [lower, upper], exact in `dtype`
  double upper;
};

// REQUIRES: the initializer of the table is a known one.
InitialValues initial_values_of(const TableEntry& table);

// out (dim): the embedding of `id`, exact in float32.
void initial_embedding(const InitialValues& values, int64_t id, int64_t dim, float* out);

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_ROWS_INITIAL_VALUES_H_
