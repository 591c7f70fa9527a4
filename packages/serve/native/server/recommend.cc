#include "server/recommend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

// Number of rows that are scanned at a time.
constexpr int64_t kBlockRows = 4096;
// Minimum number of candidates in addition to k.
constexpr int64_t kSpare = 32;

[[noreturn]] void refuse(const std::string& message, const char* reason = "message") {
  throw StatusError(StatusCode::INVALID_ARGUMENT, message, reason);
}

std::vector<int64_t> whole_numbers(std::string_view content) {
  check_ids(content);
  std::vector<int64_t> found(content.size() / sizeof(int64_t));
  if (!found.empty()) std::memcpy(found.data(), content.data(), content.size());
  return found;
}

}  // namespace

std::string Recommend::answer(std::string_view content, double remaining_seconds,
                              LookupService::Clock::time_point begin) {
  Metrics& metrics = service_.metrics();
  const auto count = [&](StatusCode code) {
    metrics.recommends.note(table_, code);
    metrics.queries += num_queries_;
    metrics.recommends.observe(
        std::chrono::duration<double>(LookupService::Clock::now() - begin).count());
  };
  return counted(metrics, [&] { return answer(content, remaining_seconds); }, count);
}

std::string Recommend::answer(std::string_view content, double remaining_seconds) {
  service_.check_deadline(remaining_seconds);
  const auto end = LookupService::Clock::now() +
                   std::chrono::duration_cast<LookupService::Clock::duration>(
                       std::chrono::duration<double>(remaining_seconds));
  service_.check_request_bytes(content);
  std::string_view table, queries, excluded, num_excluded;
  int64_t shard = 0;
  int64_t num_shards = 0;
  for (FieldReader reader("RecommendRequest", content); reader.next();) {
    switch (reader.number()) {
      case 1: table = reader.text("table"); break;
      case 2: version_ = reader.text("version"); break;
      case 3: queries = reader.bytes("queries"); break;
      case 4: k_ = reader.whole("k"); break;
      case 5: excluded = reader.bytes("excluded"); break;
      case 6: num_excluded = reader.bytes("num_excluded"); break;
      case 7: shard = reader.whole("shard"); break;
      case 8: num_shards = reader.whole("num_shards"); break;
      default: break;
    }
  }
  const auto served = service_.tables().served();
  const TableShape& shape = *service_.check_tables(*served, {{table, {}}})[0];
  check_shard(shard, num_shards);
  table_ = shape.number;
  read_queries(queries, shape);
  check_search();
  if (!num_excluded.empty()) read_excluded(num_excluded, excluded);
  capacity_ = k_ + std::max(k_, kSpare);
  const int64_t num_bytes = 4 * num_queries_ * shape.dim +
                            num_queries_ * capacity_ * static_cast<int64_t>(sizeof(SparringPackedBest));
  const Admission::Admitted admitted(service_.admission(),
                                     static_cast<int64_t>(content.size()) + num_bytes);
  best_.resize(static_cast<size_t>(num_queries_ * capacity_));
  counts_.resize(static_cast<size_t>(num_queries_));
  if (version_.empty()) version_ = served->versions.front().hash;
  compare(*served, shape, end);

  std::string ids, scores;
  for (int64_t query = 0; query < num_queries_; ++query) {
    for (int64_t i = 0; i < counts_[static_cast<size_t>(query)]; ++i) {
      const SparringPackedBest& each = best_[static_cast<size_t>(query * capacity_ + i)];
      ids.append(reinterpret_cast<const char*>(&each.id), sizeof each.id);
      scores.append(reinterpret_cast<const char*>(&each.score), sizeof each.score);
    }
  }
  std::string reply;
  FieldWriter writer(reply);
  writer.text(1, ids);
  writer.text(2, scores);
  writer.text(3, {reinterpret_cast<const char*>(counts_.data()), counts_.size() * sizeof(int64_t)});
  writer.message(4, service_.tables().find_version(*served, version_));
  writer.text(5, service_.tables().served()->versions.front().hash);
  return reply;
}

void Recommend::check_shard(int64_t shard, int64_t num_shards) const {
  const Settings& settings = service_.settings();
  if (num_shards == 0 || (shard == settings.shard && num_shards == settings.num_shards)) return;
  throw StatusError(StatusCode::FAILED_PRECONDITION,
                    "the call is for shard " + std::to_string(shard + 1) + " of " +
                        std::to_string(num_shards) + ", but this is shard " +
                        std::to_string(settings.shard + 1) + " of " +
                        std::to_string(settings.num_shards) + "; use the attached shard map",
                    "foreign_shard", settings.shard_map);
}

void Recommend::read_queries(std::string_view content, const TableShape& shape) {
  const auto bytes = static_cast<size_t>(4 * shape.dim);
  if (content.size() % bytes != 0) {
    refuse("queries: " + with_commas(content.size()) +
           " bytes are not a multiple of a vector of table " + quoted(shape.name) + "; send " +
           std::to_string(bytes) + " bytes per query, " + std::to_string(shape.dim) +
           " elements of float32");
  }
  const auto found = static_cast<int64_t>(content.size() / bytes);
  const auto check = [](int64_t number, int64_t most, const std::string& what) {
    if (number <= most) return;
    refuse(what + ": found " + with_commas(number) + " in one call, and the maximum is " +
               with_commas(most) + "; send fewer, or increase server.max_" + what,
           ("max_" + what).c_str());
  };
  check(found, service_.settings().max_queries, "queries");
  check(k_, service_.settings().max_k, "k");
  num_queries_ = found;
  queries_.resize(content.size() / sizeof(float));
  if (!queries_.empty()) std::memcpy(queries_.data(), content.data(), content.size());
}

void Recommend::check_search() const {
  if (!std::all_of(queries_.begin(), queries_.end(), [](float each) { return std::isfinite(each); })) {
    refuse("top_k: queries must be finite in float32, found NaN or infinity");
  }
  if (k_ < 1) refuse("top_k: k must be an integer of at least 1, found " + std::to_string(k_));
}

void Recommend::read_excluded(std::string_view counts, std::string_view ids) {
  const std::vector<int64_t> given = whole_numbers(counts);
  excluded_ = whole_numbers(ids);
  const auto total = static_cast<int64_t>(excluded_.size());
  excluded_offsets_ = {0};
  bool is_valid = static_cast<int64_t>(given.size()) == num_queries_;
  for (const int64_t each : given) {
    // A count beyond the ids ends the sum, so that it does not overflow.
    is_valid = is_valid && each >= 0 && each <= total - excluded_offsets_.back();
    excluded_offsets_.push_back(is_valid ? excluded_offsets_.back() + each : 0);
  }
  if (!is_valid || excluded_offsets_.back() != total) {
    refuse("top_k: exclude must be (n,) ids and " + std::to_string(num_queries_ + 1) +
           " non-decreasing offsets from 0 to n for " + std::to_string(num_queries_) +
           " queries; found int64 (" + std::to_string(total) + ",) and offsets int64 (" +
           std::to_string(given.size() + 1) + ",)");
  }
  for (size_t query = 0; query + 1 < excluded_offsets_.size(); ++query) {
    std::sort(excluded_.begin() + excluded_offsets_[query], excluded_.begin() + excluded_offsets_[query + 1]);
  }
  has_excluded_ = true;
}

void Recommend::compare(const Served& served, const TableShape& shape,
                        LookupService::Clock::time_point end) {
  std::vector<int64_t> ids(kBlockRows);
  std::vector<float> rows(static_cast<size_t>(kBlockRows * shape.dim));
  auto scan = arguments_of<SparringPackedScan>();
  scan.version = version_.c_str();
  scan.table = shape.number;
  scan.capacity = kBlockRows;
  scan.ids = ids.data();
  scan.rows = rows.data();
  int64_t num_rows = 0;
  while (true) {
    try {
      service_.tables().library().scan(served.packed.get(), scan);
    } catch (const PackedError& error) {
      service_.refuse(served, error, version_);
    }
    select(&scan, shape.dim);
    num_rows += scan.count;
    if (scan.is_done != 0) break;
    if (LookupService::Clock::now() > end) {
      throw StatusError(StatusCode::DEADLINE_EXCEEDED,
                        "the deadline passed after " + with_commas(num_rows) +
                            " rows were compared; send fewer queries per call, increase the deadline, "
                            "or use more shards",
                        "deadline_exceeded");
    }
  }
  select(nullptr, shape.dim);
}

void Recommend::select(const SparringPackedScan* scan, int64_t dim) {
  auto arguments = arguments_of<SparringPackedSelect>();
  arguments.num_queries = num_queries_;
  arguments.queries = queries_.data();
  arguments.dim = dim;
  if (scan != nullptr) {
    arguments.num_rows = scan->count;
    arguments.ids = scan->ids;
    arguments.rows = static_cast<const float*>(scan->rows);
  }
  if (has_excluded_) {
    arguments.excluded = excluded_.data();
    arguments.excluded_offsets = excluded_offsets_.data();
  }
  arguments.k = k_;
  arguments.capacity = capacity_;
  arguments.best = best_.data();
  arguments.counts = counts_.data();
  arguments.is_last = scan == nullptr ? 1 : 0;
  service_.tables().library().select(arguments);
}

}  // namespace sparring::serve
