// The wire format of protobuf, without copies: readers return views into the message.
// https://protobuf.dev/programming-guides/encoding/
#ifndef SPARRING_SERVE_WIRE_FIELDS_H_
#define SPARRING_SERVE_WIRE_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace sparring::serve {

constexpr size_t kMaxItems = 8192;  // items of a repeated field, and fields of a message
constexpr size_t kMaxText = 4096;   // bytes of a string

// Reads the fields of one message in their order. Any bytes cause at most a StatusError
// (INVALID_ARGUMENT) that contains the name of the message.
class FieldReader {
 public:
  // `message` is the name of the message in error messages.
  FieldReader(const char* message, std::string_view content)
      : message_(message), content_(content) {}

  // Reads the next field; returns whether there is one.
  bool next();

  uint32_t number() const { return number_; }

  // Return the value of the current field. They check its wire type; `name` is its name in errors.
  std::string_view bytes(const char* name) const;
  std::string_view text(const char* name) const;
  int64_t whole(const char* name) const;
  double real(const char* name) const;
  bool flag(const char* name) const { return whole(name) != 0; }

  // Whether the current field has a length, as packed numbers have.
  bool is_delimited() const { return wire_type_ == 2; }

  // Rejects more than kMaxItems items of a repeated field.
  void check_items(size_t count, const char* name) const;

  [[noreturn]] void refuse(const std::string& found) const;

 private:
  uint64_t varint();

  const char* message_;
  std::string_view content_;
  size_t at_ = 0;
  size_t num_fields_ = 0;
  uint32_t number_ = 0;
  uint32_t wire_type_ = 0;
  uint64_t value_ = 0;
  std::string_view bytes_;
};

// Appends fields to a message. Fields with default values are omitted, as in proto3.
class FieldWriter {
 public:
  explicit FieldWriter(std::string& out) : out_(out) {}

  void text(uint32_t number, std::string_view value);   // string, bytes
  void whole(uint32_t number, uint64_t value);           // integers, enumerations, bool
  void real(uint32_t number, double value);              // double
  void message(uint32_t number, std::string_view value); // also if it is empty
  void begin_bytes(uint32_t number, uint64_t size);      // tag and length; the caller adds the bytes

 private:
  void varint(uint64_t value);

  std::string& out_;
};

// Number of bytes of a varint.
constexpr size_t varint_bytes(uint64_t value) {
  size_t count = 1;
  for (; value >= 0x80; value >>= 7) ++count;
  return count;
}

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_WIRE_FIELDS_H_
