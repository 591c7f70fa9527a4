#include "server/settings.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>

namespace sparring::serve {

namespace {

constexpr char kFix[] =
    "; this program and the Python package must be of one release: install sparring-serve again";

std::string decoded(std::string_view text) {
  std::string found;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '%' && at + 2 < text.size()) {
      found += static_cast<char>(std::stoi(std::string(text.substr(at + 1, 2)), nullptr, 16));
      at += 2;
    } else {
      found += text[at];
    }
  }
  return found;
}

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> words;
  while (true) {
    const size_t tab = line.find('\t');
    words.push_back(decoded(line.substr(0, tab)));
    if (tab == std::string_view::npos) return words;
    line.remove_prefix(tab + 1);
  }
}

}  // namespace

Settings parse_settings(std::string_view content) {
  Settings found;
  using Values = std::vector<std::string>;
  const auto text = [](std::string& member) {
    return [&member](const Values& values) { member = values.at(1); };
  };
  const auto whole = [](auto& member) {
    return [&member](const Values& values) {
      member = static_cast<std::remove_reference_t<decltype(member)>>(std::stoll(values.at(1)));
    };
  };
  const auto real = [](double& member) {
    return [&member](const Values& values) { member = std::stod(values.at(1)); };
  };
  const std::map<std::string, std::function<void(const Values&)>> readers = {
      {"library", text(found.library)},
      {"release", text(found.release)},
      {"core_release", text(found.core_release)},
      {"log_level", text(found.log_level)},
      {"snapshots", text(found.snapshots)},
      {"pin", text(found.pin)},
      {"verifies_all", whole(found.verifies_all)},
      {"keep_versions", whole(found.keep_versions)},
      {"poll_seconds", real(found.poll_seconds)},
      {"warm_up_seconds", real(found.warm_up_seconds)},
      {"host", text(found.host)},
      {"port", whole(found.port)},
      {"metrics_port", whole(found.metrics_port)},
      {"metrics_token_file", text(found.metrics_token_file)},
      {"metrics_tls", whole(found.metrics_tls)},
      {"calls_per_second", real(found.calls_per_second)},
      {"ids_per_second", real(found.ids_per_second)},
      {"health_port", whole(found.health_port)},
      {"threads", whole(found.threads)},
      {"drain_seconds", real(found.drain_seconds)},
      {"certificate_file", text(found.certificate_file)},
      {"key_file", text(found.key_file)},
      {"ca_file", text(found.ca_file)},
      {"token_file", text(found.token_file)},
      {"max_ids", whole(found.max_ids)},
      {"max_tables", whole(found.max_tables)},
      {"max_bytes", whole(found.max_bytes)},
      {"max_bytes_in_flight", whole(found.max_bytes_in_flight)},
      {"max_deadline_seconds", real(found.max_deadline_seconds)},
      {"max_queries", whole(found.max_queries)},
      {"max_k", whole(found.max_k)},
      {"log_fraction", real(found.log_fraction)},
      {"log_descriptor", whole(found.log_descriptor)},
      {"shard", whole(found.shard)},
      {"num_shards", whole(found.num_shards)},
      {"partition_begin", whole(found.partition_begin)},
      {"partition_end", whole(found.partition_end)},
      {"shard_map", text(found.shard_map)},
      {"initial_values",
       [&](const Values& values) { found.initial_values[values.at(1)] = values.at(2); }},
      {"metric_help", [&](const Values& values) { found.metric_help[values.at(1)] = values.at(2); }},
      {"bucket_bounds",
       [&](const Values& values) { found.bucket_bounds.assign(values.begin() + 1, values.end()); }},
      {"channel_option",
       [&](const Values& values) {
         found.channel_options.emplace_back(values.at(1), std::stoi(values.at(2)));
       }},
  };
  std::map<std::string, bool> seen;
  while (!content.empty()) {
    const size_t end = content.find('\n');
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
    if (line.empty()) continue;
    const Values values = split(line);
    const auto reader = readers.find(values[0]);
    if (reader == readers.end()) throw std::runtime_error("unknown setting " + values[0] + kFix);
    try {
      reader->second(values);
    } catch (const std::exception&) {
      throw std::runtime_error("setting " + values[0] + " is invalid: " + std::string(line) + kFix);
    }
    seen[values[0]] = true;
  }
  for (const auto& [key, reader] : readers) {
    const bool may_be_absent = key == "initial_values" || key == "channel_option";
    if (!may_be_absent && !seen[key]) throw std::runtime_error("setting " + key + " is missing" + kFix);
  }
  return found;
}

Settings read_settings(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read the settings " + path + kFix);
  const std::string content(std::istreambuf_iterator<char>(file), {});
  return parse_settings(content);
}

}  // namespace sparring::serve
