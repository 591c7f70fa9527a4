#include "wire/fields.h"

#include <string>

#include "check.h"
#include "wire/status_error.h"
#include "wire/text.h"

using namespace sparring::serve;

namespace {

void fields_are_read_as_they_were_written() {
  std::string content;
  FieldWriter writer(content);
  writer.text(1, "item");
  writer.whole(2, 300);
  writer.real(3, 0.5);
  writer.text(4, "");
  writer.whole(5, static_cast<uint64_t>(-1));
  FieldReader reader("Message", content);
  CHECK(reader.next() && reader.number() == 1 && reader.text("text") == "item");
  CHECK(reader.next() && reader.number() == 2 && reader.whole("whole") == 300);
  CHECK(reader.next() && reader.number() == 3 && reader.real("real") == 0.5);
  CHECK(reader.next() && reader.number() == 5 && reader.whole("whole") == -1);
  CHECK(!reader.next());
}

void every_truncation_is_rejected_or_shorter() {
  std::string content;
  FieldWriter writer(content);
  writer.text(1, std::string(200, 'x'));
  writer.real(3, 0.5);
  for (size_t size = 0; size < content.size(); ++size) {
    FieldReader reader("Message", std::string_view(content).substr(0, size));
    try {
      int count = 0;
      while (reader.next()) ++count;
      CHECK(size == 0 || (count == 1 && size == content.size() - 9));
    } catch (const StatusError& error) {
      CHECK(error.code == StatusCode::INVALID_ARGUMENT);
    }
  }
}

void another_wire_type_is_rejected() {
  FieldReader reader("Message", std::string_view("\x08\x01", 2));
  CHECK(reader.next());
  CHECK_THROWS(reader.text("name"), StatusError);
  CHECK_THROWS(FieldReader("Message", std::string_view("\x0b", 1)).next(), StatusError);
}

void a_length_above_the_largest_int64_is_rejected_with_its_value() {
  const std::string content = "\x0a" + std::string(9, '\xff') + "\x01";
  try {
    FieldReader("Message", content).next();
    CHECK(false);
  } catch (const StatusError& error) {
    CHECK(std::string(error.what()).find("18,446,744,073,709,551,615 bytes, but only 0") != std::string::npos);
  }
}

void messages_have_the_format_of_python() {
  CHECK(with_commas(0) == "0" && with_commas(-999) == "-999");
  CHECK(with_commas(1234567) == "1,234,567" && with_commas(-1000) == "-1,000");
  CHECK(with_commas(uint64_t{1} << 63) == "9,223,372,036,854,775,808");
  CHECK(quoted("it's\n\x01") == "\"it's\\n\\x01\"");
  CHECK(general(0.123456789, 3) == "0.123");
  CHECK(suggest("itm", {"item", "user"}) == "did you mean 'item'? known: 'item', 'user'");
  CHECK(suggest("zzz", {"item"}) == "known: 'item'");
  CHECK(is_utf8("gr\xc3\xbc\xc3\x9f") && !is_utf8("\xc3") && !is_utf8("\xc0\x80") && !is_utf8("\xed\xa0\x80"));
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"fields are read as they were written", fields_are_read_as_they_were_written},
      {"every truncation is rejected or shorter", every_truncation_is_rejected_or_shorter},
      {"another wire type is rejected", another_wire_type_is_rejected},
      {"a length above the largest int64 is rejected with its value",
       a_length_above_the_largest_int64_is_rejected_with_its_value},
      {"messages have the format of Python", messages_have_the_format_of_python},
  });
}
