// Answers one PullRequest.
//
// The ids are read from the request, and the library writes the rows into the reply:
//
//   header 1 | rows 1, at a multiple of 64 bytes | found 1 | gap | header 2 | rows 2 | found 2 | ... | tail
//
// A header is the beginning of a TableRows; the tail is the rest of the PullReply. Gaps are not sent.
// float16, int8 of other tables, and ONLY_FOUND pass through a buffer of float32 rows.
#ifndef SPARRING_SERVE_SERVER_PULL_H_
#define SPARRING_SERVE_SERVER_PULL_H_

#include <string_view>
#include <vector>

#include "server/lookup_service.h"

namespace sparring::serve {

class Pull {
 public:
  explicit Pull(LookupService& service) : service_(service) {}

  // Also counts the call in the metrics. Throws StatusError, or PackedError for damaged files.
  Reply answer(std::string_view content, double remaining_seconds,
               LookupService::Clock::time_point begin);

 private:
  Reply answer(std::string_view content, double remaining_seconds);
  void parse(std::string_view content);
  void check_choice(int64_t value, const char* name, const std::vector<const char*>& known) const;
  SparringPackedLookup look_up(const Served& served, std::vector<SparringPackedRequest>& requests,
                               int32_t dtype);
  void count(StatusCode code, LookupService::Clock::time_point begin);

  LookupService& service_;
  std::vector<TableIds> asked_;
  int64_t row_dtype_ = 0;
  int64_t missing_ = 0;
  std::string_view version_;
  double max_staleness_seconds_ = 0;
  bool is_parsed_ = false;
  int64_t num_ids_ = 0;
  int64_t num_found_ = 0;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_PULL_H_
