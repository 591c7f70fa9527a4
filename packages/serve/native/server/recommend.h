// Answers one RecommendRequest: compares each query with all rows of one version.
#ifndef SPARRING_SERVE_SERVER_RECOMMEND_H_
#define SPARRING_SERVE_SERVER_RECOMMEND_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/lookup_service.h"

namespace sparring::serve {

class Recommend {
 public:
  explicit Recommend(LookupService& service) : service_(service) {}

  // Also counts the call in the metrics. Throws StatusError, or PackedError for damaged files.
  std::string answer(std::string_view content, double remaining_seconds,
                     LookupService::Clock::time_point begin);

 private:
  std::string answer(std::string_view content, double remaining_seconds);
  void check_shard(int64_t shard, int64_t num_shards) const;
  void read_queries(std::string_view content, const TableShape& shape);
  void check_search() const;
  void read_excluded(std::string_view counts, std::string_view ids);
  void compare(const Served& served, const TableShape& shape, LookupService::Clock::time_point end);
  // Compares rows of a scan with all queries; without rows, sorts the result.
  void select(const SparringPackedScan* scan, int64_t dim);

  LookupService& service_;
  int table_ = -1;
  int64_t num_queries_ = 0;
  int64_t k_ = 0;
  int64_t capacity_ = 0;
  std::string version_;
  std::vector<float> queries_;              // (num_queries, dim)
  bool has_excluded_ = false;
  std::vector<int64_t> excluded_;           // ascending per query
  std::vector<int64_t> excluded_offsets_;   // (num_queries + 1)
  std::vector<SparringPackedBest> best_;    // (num_queries, capacity)
  std::vector<int64_t> counts_;             // (num_queries)
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_RECOMMEND_H_
