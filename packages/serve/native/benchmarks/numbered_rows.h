// Requests of random ids, and checks of their rows. Each row contains numbers from which its id and the
// version that wrote it follow, so that torn rows and mixed versions are detected.
//
// The row of `key` that step s wrote is: s, s + m, s + 2 m, ..., where m is key mod 1009. Step 1 wrote all
// rows, and step s > 1 those whose key mod `share` is s - 1.
#ifndef SPARRING_SERVE_BENCHMARKS_NUMBERED_ROWS_H_
#define SPARRING_SERVE_BENCHMARKS_NUMBERED_ROWS_H_

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "wire/fields.h"

namespace sparring::serve {

class NumberedRows {
 public:
  enum class Result { kIntact, kTorn, kMixed };

  // `text` is NUM_ROWS:DIM:NUM_IDS:SHARE.
  explicit NumberedRows(const std::string& text) {
    if (std::sscanf(text.c_str(), "%ld:%ld:%ld:%ld", &num_rows_, &dim_, &num_ids_, &share_) != 4) {
      throw std::invalid_argument("expected NUM_ROWS:DIM:NUM_IDS:SHARE, found " + text);
    }
  }

  std::string make_request(std::mt19937_64& random, std::vector<int64_t>& keys) const {
    keys.resize(static_cast<size_t>(num_ids_));
    for (int64_t& each : keys) each = static_cast<int64_t>(random() % static_cast<uint64_t>(num_rows_));
    std::string table, request;
    FieldWriter fields(table);
    fields.text(1, "item");
    fields.text(2, {reinterpret_cast<const char*>(keys.data()), 8 * keys.size()});
    FieldWriter(request).message(1, table);
    return request;
  }

  // Also sets the step of the version in the reply.
  Result check(std::string_view reply, const std::vector<int64_t>& keys, int64_t& step) const {
    std::string_view rows;
    for (FieldReader reader("PullReply", reply); reader.next();) {
      if (reader.number() == 1) {
        for (FieldReader table("TableRows", reader.bytes("tables")); table.next();) {
          if (table.number() == 3) rows = table.bytes("rows");
        }
      } else if (reader.number() == 2) {
        for (FieldReader version("Version", reader.bytes("version")); version.next();) {
          if (version.number() == 2) step = version.whole("step");
        }
      }
    }
    if (rows.size() != keys.size() * static_cast<size_t>(dim_) * sizeof(float)) return Result::kTorn;
    std::vector<float> row(static_cast<size_t>(dim_));
    Result result = Result::kIntact;
    for (size_t i = 0; i < keys.size(); ++i) {
      std::memcpy(row.data(), rows.data() + i * row.size() * sizeof(float), row.size() * sizeof(float));
      const int64_t part = keys[i] % share_;
      if (row[0] != static_cast<float>(part >= 1 && part < step ? part + 1 : 1)) result = Result::kMixed;
      for (size_t j = 1; j < row.size(); ++j) {
        if (row[j] != row[0] + static_cast<float>(static_cast<int64_t>(j) * (keys[i] % 1009))) {
          return Result::kTorn;
        }
      }
    }
    return result;
  }

 private:
  long num_rows_ = 0;
  long dim_ = 0;
  long num_ids_ = 0;
  long share_ = 1;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_BENCHMARKS_NUMBERED_ROWS_H_
