#include "wire/fields.h"

#include <cstring>

#include "wire/status_error.h"
#include "wire/text.h"

namespace sparring::serve {

void FieldReader::refuse(const std::string& found) const {
  throw StatusError(StatusCode::INVALID_ARGUMENT,
                    "invalid " + std::string(message_) + ": " + found +
                        "; send a message that conforms to the .proto files of sparring-serve",
                    "message");
}

uint64_t FieldReader::varint() {
  uint64_t value = 0;
  for (int position = 0; position < 10 && at_ < content_.size(); ++position) {
    const auto byte = static_cast<unsigned char>(content_[at_++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * position);
    if (byte < 0x80) return value;
  }
  refuse("an integer does not end at byte " + with_commas(at_));
}

bool FieldReader::next() {
  if (at_ >= content_.size()) return false;
  if (num_fields_++ >= kMaxItems) refuse("more than 8,192 fields");
  const uint64_t key = varint();
  if (key >> 3 == 0 || key >> 3 >= 1u << 29) refuse("a field has the number " + std::to_string(key >> 3));
  number_ = static_cast<uint32_t>(key >> 3);
  wire_type_ = static_cast<uint32_t>(key & 7);
  uint64_t length = 0;
  switch (wire_type_) {
    case 0:
      value_ = varint();
      return true;
    case 1: length = 8; break;
    case 2: length = varint(); break;
    case 5: length = 4; break;
    default:
      refuse("field " + std::to_string(number_) + " has the wire type " + std::to_string(wire_type_));
  }
  const size_t left = content_.size() - at_;
  if (length > left) {
    refuse("field " + std::to_string(number_) + " has " + with_commas(length) +
           " bytes, but only " + with_commas(left) + " are left");
  }
  bytes_ = content_.substr(at_, length);
  at_ += length;
  return true;
}

std::string_view FieldReader::bytes(const char* name) const {
  if (wire_type_ != 2) {
    refuse("field " + std::string(name) + " has the wire type " + std::to_string(wire_type_));
  }
  return bytes_;
}

std::string_view FieldReader::text(const char* name) const {
  const std::string_view found = bytes(name);
  if (found.size() > kMaxText) {
    refuse("field " + std::string(name) + " has " + with_commas(found.size()) +
           " bytes, more than 4,096");
  }
  if (!is_utf8(found)) refuse("field " + std::string(name) + " is not UTF-8");
  return found;
}

int64_t FieldReader::whole(const char* name) const {
  if (wire_type_ != 0) {
    refuse("field " + std::string(name) + " has the wire type " + std::to_string(wire_type_));
  }
  return static_cast<int64_t>(value_);
}

double FieldReader::real(const char* name) const {
  if (wire_type_ != 1) {
    refuse("field " + std::string(name) + " has the wire type " + std::to_string(wire_type_));
  }
  double found;
  std::memcpy(&found, bytes_.data(), sizeof found);
  return found;
}

void FieldReader::check_items(size_t count, const char* name) const {
  if (count > kMaxItems) refuse("more than 8,192 items of " + std::string(name));
}

void FieldWriter::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_ += static_cast<char>((value & 0x7f) | 0x80);
  out_ += static_cast<char>(value);
}

void FieldWriter::begin_bytes(uint32_t number, uint64_t size) {
  varint(static_cast<uint64_t>(number) << 3 | 2);
  varint(size);
}

void FieldWriter::message(uint32_t number, std::string_view value) {
  begin_bytes(number, value.size());
  out_ += value;
}

void FieldWriter::text(uint32_t number, std::string_view value) {
  if (!value.empty()) message(number, value);
}

void FieldWriter::whole(uint32_t number, uint64_t value) {
  if (value == 0) return;
  varint(static_cast<uint64_t>(number) << 3);
  varint(value);
}

void FieldWriter::real(uint32_t number, double value) {
  if (value == 0) return;
  varint(static_cast<uint64_t>(number) << 3 | 1);
  out_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace sparring::serve
