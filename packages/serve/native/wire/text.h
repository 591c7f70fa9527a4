// Parts of messages to callers, in the format of the server in Python.
#ifndef SPARRING_SERVE_WIRE_TEXT_H_
#define SPARRING_SERVE_WIRE_TEXT_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sparring::serve {

// Inserts separators into the digits of a whole number.
std::string grouped(const std::string& digits);

// A whole number with separators: 1,234,567.
std::string with_commas(std::integral auto number) { return grouped(std::to_string(number)); }

// A number with up to `digits` significant digits, like %g.
std::string general(double number, int digits = 6);

// Text in quotation marks, in which control characters and quotation marks are escaped.
std::string quoted(std::string_view text);

// Whether bytes are UTF-8.
bool is_utf8(std::string_view bytes);

// End of a message about an unknown name: "did you mean 'x'? known: …".
std::string suggest(std::string_view name, const std::vector<std::string>& known);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_WIRE_TEXT_H_
