// A small, strict JSON parser for manifests: bounded depth, no duplicate names.
#ifndef SPARRING_PACKED_FORMAT_JSON_H_
#define SPARRING_PACKED_FORMAT_JSON_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace sparring::packed {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;

  // Throws StatusError(SPARRING_CORRUPT) with the offset of the error.
  static Json parse(std::string_view text);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

  // Each throws StatusError(SPARRING_CORRUPT), naming `what`, if the value has the wrong type.
  const Object& object(const char* what) const;
  const Array& array(const char* what) const;
  const std::string& text(const char* what) const;
  int64_t whole(const char* what, int64_t least, int64_t most) const;
  double number(const char* what) const;

  // A member of an object. Throws if it does not exist.
  const Json& at(const char* name) const;

 private:
  friend class JsonParser;
  // Integers are separate from other numbers, because a seed has 64 bits.
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_FORMAT_JSON_H_
