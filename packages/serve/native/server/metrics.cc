#include "server/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace sparring::serve {

namespace {

constexpr char kPrefix[] = "sparring_serving_";

// The shortest text that has this value, with a fraction or an exponent, as Python writes it.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string found(text, end);
  if (found.find_first_of(".e") == std::string::npos) found += ".0";
  return found;
}

std::string escaped(const std::string& text) {
  std::string found;
  for (const char each : text) {
    if (each == '\n') {
      found += "\\n";
    } else {
      if (each == '\\' || each == '"') found += '\\';
      found += each;
    }
  }
  return found;
}

void sample(const std::string& name, const std::string& labels, double value, std::string& out) {
  out += kPrefix + name + (labels.empty() ? "" : "{" + labels + "}") + " " + number_text(value) + "\n";
}

std::string label(const char* name, const std::string& value) {
  return std::string(name) + "=\"" + escaped(value) + "\"";
}

}  // namespace

Histogram::Histogram(const std::vector<std::string>& bounds)
    : labels_(bounds), counts_(bounds.size() + 1) {
  for (const std::string& each : bounds) bounds_.push_back(std::strtod(each.c_str(), nullptr));
}

void Histogram::observe(double seconds) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(seconds, std::memory_order_relaxed);
}

void Histogram::write(const std::string& name, std::string& out) const {
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    const std::string bound = i < labels_.size() ? labels_[i] : "+Inf";
    sample(name + "_bucket", label("le", bound), static_cast<double>(total), out);
  }
  sample(name + "_count", "", static_cast<double>(total), out);
  sample(name + "_sum", "", sum_.load(std::memory_order_relaxed), out);
}

CallCounts::CallCounts(const std::vector<std::string>& tables, const std::vector<std::string>& bounds)
    : tables_(tables), counts_(tables.size() + 1), seconds_(bounds) {}

void CallCounts::write_counts(const std::string& name, std::string& out) const {
  for (size_t table = 0; table < counts_.size(); ++table) {
    for (size_t code = 0; code < kCodes; ++code) {
      const int64_t count = counts_[table][code].load(std::memory_order_relaxed);
      if (count == 0) continue;
      const std::string code_name(name_of(static_cast<StatusCode>(code)));
      sample(name,
             label("code", code_name) + "," + label("table", table == 0 ? "" : tables_[table - 1]),
             static_cast<double>(count), out);
    }
  }
}

void LabelledCounts::write(const std::string& name, const std::string& label_name,
                           std::string& out) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [value, count] : counts_) {
    sample(name, label(label_name.c_str(), value), static_cast<double>(count), out);
  }
}

Metrics::Metrics(std::map<std::string, std::string> help, const std::vector<std::string>& bounds,
                 const std::vector<std::string>& tables)
    : pulls(tables, bounds), recommends(tables, bounds), help_(std::move(help)) {}

void Metrics::head(const std::string& name, const char* kind, std::string& out) const {
  const auto help = help_.find(name);
  const std::string full = kPrefix + name;
  out += "# HELP " + full + " " + (help == help_.end() ? "" : help->second) + "\n";
  out += "# TYPE " + full + " " + kind + "\n";
}

void Metrics::total(const std::string& name, int64_t value, std::string& out) const {
  head(name, "counter", out);
  sample(name, "", static_cast<double>(value), out);
}

std::string Metrics::text() const {
  std::string out;
  head("pulls_total", "counter", out);
  pulls.write_counts("pulls_total", out);
  head("pull_seconds", "histogram", out);
  pulls.write_seconds("pull_seconds", out);
  head("recommends_total", "counter", out);
  recommends.write_counts("recommends_total", out);
  head("recommend_seconds", "histogram", out);
  recommends.write_seconds("recommend_seconds", out);
  total("queries_total", queries, out);
  total("ids_total", ids, out);
  total("found_total", found, out);
  head("refreshes_total", "counter", out);
  refreshes.write("refreshes_total", "result", out);
  head("rejected_total", "counter", out);
  rejected.write("rejected_total", "reason", out);
  const auto clients = read_clients_();
  head("client_calls_total", "counter", out);
  for (const ClientUse& each : clients) {
    const std::string client = label("client", each.client) + ",";
    sample("client_calls_total", client + label("result", "admitted"), static_cast<double>(each.admitted), out);
    sample("client_calls_total", client + label("result", "rejected"), static_cast<double>(each.rejected), out);
  }
  head("client_ids_total", "counter", out);
  for (const ClientUse& each : clients) {
    sample("client_ids_total", label("client", each.client), static_cast<double>(each.ids), out);
  }
  head("logged_total", "counter", out);
  logged.write("logged_total", "result", out);
  // This server has no backend that could fail, and no replicas to switch to.
  head("degraded_rows_total", "counter", out);
  total("failovers_total", 0, out);
  head("saves_total", "counter", out);
  for (const auto& [name, value] : read_gauges_()) {
    head(name, "gauge", out);
    sample(name, "", value, out);
  }
  return out;
}

}  // namespace sparring::serve
