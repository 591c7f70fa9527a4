#include "tables/row_formats.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"

using namespace sparring::serve;

namespace {

uint16_t half_of(float value) {
  uint16_t found;
  encode_rows(&value, 1, 1, kFloat16, reinterpret_cast<char*>(&found));
  return found;
}

void float16_is_rounded_to_even_and_overflows_to_infinity() {
  CHECK(half_of(1.0f) == 0x3c00 && half_of(-2.0f) == 0xc000 && half_of(0.0f) == 0);
  CHECK(half_of(65504.0f) == 0x7bff && half_of(65519.0f) == 0x7bff && half_of(65520.0f) == 0x7c00);
  CHECK(half_of(1.0f + 0x1p-11f) == 0x3c00 && half_of(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(half_of(0x1p-24f) == 1 && half_of(0x1p-25f) == 0 && half_of(1.5f * 0x1p-24f) == 2);
  CHECK(half_of(std::numeric_limits<float>::infinity()) == 0x7c00);
  CHECK((half_of(std::nanf("")) & 0x7fff) > 0x7c00);
}

void int8_has_the_extremes_of_the_row() {
  const std::vector<float> row = {-1.0f, 0.0f, 4.0f, 1.0f};
  std::vector<char> out(8);
  encode_rows(row.data(), 1, 4, kInt8, out.data());
  CHECK(static_cast<uint8_t>(out[0]) == 0 && static_cast<uint8_t>(out[2]) == 255);
  uint16_t bias;
  std::memcpy(&bias, &out[6], sizeof bias);
  CHECK(bias == 0xbc00);
  const std::vector<float> equal(4, 3.0f);
  encode_rows(equal.data(), 1, 4, kInt8, out.data());
  CHECK(out[0] == 0 && out[3] == 0 && out[4] == 0);
}

void found_bits_start_with_the_lowest() {
  std::vector<uint8_t> found(24, 0);
  for (const size_t at : {0, 3, 8, 10}) found[at] = 1;
  found[11] = 1;  // beyond the ids
  std::vector<char> out(2);
  CHECK(pack_found(found.data(), 11, out.data()) == 4);
  CHECK(out[0] == 0b1001 && out[1] == 0b101);
  CHECK(pack_found(found.data(), 0, out.data()) == 0);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"float16 is rounded to even and overflows to infinity",
       float16_is_rounded_to_even_and_overflows_to_infinity},
      {"int8 has the extremes of the row", int8_has_the_extremes_of_the_row},
      {"found bits start with the lowest", found_bits_start_with_the_lowest},
  });
}
