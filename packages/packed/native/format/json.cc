#include "format/json.h"

#include <charconv>

#include "sparring/storage_border.h"

namespace sparring::packed {

using border::StatusError;

namespace {

constexpr int kMostDepth = 32;

[[noreturn]] void refuse(const std::string& message) {
  throw StatusError(SPARRING_CORRUPT, message);
}

}  // namespace

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json whole_text() {
    Json value = parse(0);
    skip_space();
    if (at_ != text_.size()) fail("there is text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* why) const {
    refuse("byte " + std::to_string(at_) + " is not valid JSON of a manifest: " + why);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \n\r\t").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  char peek() {
    skip_space();
    if (at_ == text_.size()) fail("it ends early");
    return text_[at_];
  }

  bool take(char expected) {
    if (peek() != expected) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json parse(int depth) {
    if (depth > kMostDepth) fail("it is nested too deeply");
    Json result;
    const char first = peek();
    if (first == '{') {
      result.value_ = parse_object(depth);
    } else if (first == '[') {
      result.value_ = parse_array(depth);
    } else if (first == '"') {
      result.value_ = parse_string();
    } else if (take_word("true")) {
      result.value_ = true;
    } else if (take_word("false")) {
      result.value_ = false;
    } else if (!take_word("null")) {
      parse_number(result);
    }
    return result;
  }

  Json::Object parse_object(int depth) {
    Json::Object members;
    take('{');
    if (take('}')) return members;
    do {
      if (peek() != '"') fail("a name was expected");
      std::string name = parse_string();
      if (!take(':')) fail("':' was expected");
      if (!members.emplace(std::move(name), parse(depth + 1)).second) fail("a name occurs twice");
    } while (take(','));
    if (!take('}')) fail("'}' was expected");
    return members;
  }

  Json::Array parse_array(int depth) {
    Json::Array values;
    take('[');
    if (take(']')) return values;
    do {
      values.push_back(parse(depth + 1));
    } while (take(','));
    if (!take(']')) fail("']' was expected");
    return values;
  }

  // Names are ASCII, and no other text is used, so other escaped characters stay as they are,
  // except for one-letter escapes.
  std::string parse_string() {
    std::string value;
    take('"');
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a string contains a control character");
      if (text_[at_] == '\\') {
        if (++at_ == text_.size()) break;
        if (text_[at_] != '"' && text_[at_] != '\\' && text_[at_] != '/') value += '\\';
      }
      value += text_[at_++];
    }
    if (at_ == text_.size()) fail("a string has no end");
    ++at_;
    return value;
  }

  void parse_number(Json& result) {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view("+-.0123456789eE").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
    const char* const first = text_.data() + begin;
    const char* const last = text_.data() + at_;
    int64_t whole = 0;
    double number = 0;
    if (auto read = std::from_chars(first, last, whole); read.ec == std::errc() && read.ptr == last) {
      result.value_ = whole;
    } else if (auto again = std::from_chars(first, last, number);
               again.ec == std::errc() && again.ptr == last) {
      result.value_ = number;
    } else {
      at_ = begin;
      fail("a value was expected");
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).whole_text(); }

const Json::Object& Json::object(const char* what) const {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  refuse(std::string(what) + " must be an object");
}

const Json::Array& Json::array(const char* what) const {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  refuse(std::string(what) + " must be a list");
}

const std::string& Json::text(const char* what) const {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  refuse(std::string(what) + " must be a string");
}

int64_t Json::whole(const char* what, int64_t least, int64_t most) const {
  const auto* value = std::get_if<int64_t>(&value_);
  if (value == nullptr || *value < least || *value > most) {
    refuse(std::string(what) + " must be a whole number from " + std::to_string(least) + " to " +
           std::to_string(most));
  }
  return *value;
}

double Json::number(const char* what) const {
  if (const auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<double>(&value_)) return *value;
  refuse(std::string(what) + " must be a number");
}

const Json& Json::at(const char* name) const {
  const Object& members = object("the value");
  const auto found = members.find(name);
  if (found == members.end()) refuse(std::string("it has no ") + name);
  return found->second;
}

}  // namespace sparring::packed
