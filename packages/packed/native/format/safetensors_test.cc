#include "format/safetensors.h"

#include <cstring>
#include <string>

#include "sparring/storage_border.h"
#include "check.h"

using namespace sparring::packed;
using sparring::border::StatusError;

namespace {

std::string file_of(const std::string& header, size_t num_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(num_bytes, 'x');
}

std::string array(const std::string& name, const std::string& dtype, const std::string& shape,
                  int begin, int end) {
  return "\"" + name + R"(": {"dtype": ")" + dtype + R"(", "shape": )" + shape +
         R"(, "data_offsets": [)" + std::to_string(begin) + ", " + std::to_string(end) + "]}";
}

void arrays_are_found_by_name() {
  const std::string header = "{" + array("b", "F32", "[2, 3]", 8, 32) + ", " +
                             R"("__metadata__": {"framework": "torch"}, )" +
                             array("a", "I64", "[]", 0, 8) + ", " + array("empty", "F32", "[0]", 32, 32) + "}  ";
  const auto arrays = parse_safetensors(file_of(header, 32));
  CHECK(arrays.size() == 3);
  CHECK(arrays[0].name == "a" && arrays[0].shape.empty() && arrays[0].num_bytes == 8);
  CHECK(arrays[1].name == "b" && arrays[1].dtype == "F32" && shape_text(arrays[1].shape) == "(2, 3)");
  CHECK(listed_names(file_of(header, 32)).empty());
  const std::string listed = R"({"__metadata__": {"names": "[\"b\", \"a\"]"}})";
  CHECK(listed_names(file_of(listed, 0)) == std::vector<std::string>({"b", "a"}));
  CHECK(arrays[1].begin == 8 + header.size() + 8);
}

void arrays_that_do_not_fill_the_file_are_rejected() {
  const auto refused = [](const std::string& arrays, size_t num_bytes) {
    CHECK_THROWS(parse_safetensors(file_of("{" + arrays + "}", num_bytes)), StatusError);
  };
  CHECK_THROWS(parse_safetensors("short"), StatusError);
  CHECK_THROWS(parse_safetensors(std::string(8, '\xff') + "{}"), StatusError);
  refused(array("a", "F32", "[2]", 0, 8), 12);
  refused(array("a", "F32", "[2]", 0, 8), 4);
  refused(array("a", "F32", "[2]", 4, 12), 12);
  refused(array("a", "F32", "[3]", 0, 8), 8);
  refused(array("a", "F31", "[2]", 0, 8), 8);
  refused(array("a", "F32", "[-1]", 0, 8), 8);
  refused(array("a", "F32", "[4611686018427387904, 4611686018427387904]", 0, 0), 0);
  refused(array("a", "F32", "[2]", 0, 8) + ", " + array("b", "F32", "[2]", 4, 12), 12);
  refused(R"("a": {"dtype": "F32", "shape": [2]})", 8);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"arrays are found by name", arrays_are_found_by_name},
      {"arrays that do not fill the file are rejected", arrays_that_do_not_fill_the_file_are_rejected},
  });
}
