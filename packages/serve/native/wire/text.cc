#include "wire/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "wire/status_error.h"

namespace sparring::serve {

namespace {

constexpr size_t kMostShown = 20;
constexpr size_t kMostCompared = 200;
constexpr double kClose = 0.6;

std::string lower(std::string_view text) {
  std::string found(text.substr(0, kMostCompared));
  for (char& each : found) each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  return found;
}

// Number of characters in the matching blocks of Ratcliff and Obershelp, as in Python's difflib.
size_t num_matching(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return 0;
  size_t longest = 0;
  size_t in_a = 0;
  size_t in_b = 0;
  std::vector<size_t> lengths(b.size() + 1);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = b.size(); j-- > 0;) {
      lengths[j + 1] = a[i] == b[j] ? lengths[j] + 1 : 0;
    }
    for (size_t j = 0; j < b.size(); ++j) {
      if (lengths[j + 1] > longest) {
        longest = lengths[j + 1];
        in_a = i + 1 - longest;
        in_b = j + 1 - longest;
      }
    }
  }
  if (longest == 0) return 0;
  return num_matching(a.substr(0, in_a), b.substr(0, in_b)) + longest +
         num_matching(a.substr(in_a + longest), b.substr(in_b + longest));
}

}  // namespace

std::string_view name_of(StatusCode code) {
  switch (code) {
    case StatusCode::OK: return "OK";
    case StatusCode::CANCELLED: return "CANCELLED";
    case StatusCode::INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case StatusCode::DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case StatusCode::NOT_FOUND: return "NOT_FOUND";
    case StatusCode::PERMISSION_DENIED: return "PERMISSION_DENIED";
    case StatusCode::RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case StatusCode::FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case StatusCode::UNIMPLEMENTED: return "UNIMPLEMENTED";
    case StatusCode::UNAVAILABLE: return "UNAVAILABLE";
    case StatusCode::UNAUTHENTICATED: return "UNAUTHENTICATED";
    default: return "INTERNAL";
  }
}

std::string grouped(const std::string& digits) {
  const size_t first = digits.starts_with('-') ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string general(double number, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, number);
  return text;
}

std::string quoted(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char mark = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string found(1, mark);
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (each == mark || each == '\\') {
      found += '\\';
      found += each;
    } else if (byte == '\n' || byte == '\r' || byte == '\t') {
      found += byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      found += escaped;
    } else {
      found += each;
    }
  }
  return found + mark;
}

bool is_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[at]);
    if (first < 0x80) {
      ++at;
      continue;
    }
    const size_t length = first >> 5 == 0x6 ? 2 : first >> 4 == 0xe ? 3 : first >> 3 == 0x1e ? 4 : 0;
    if (length == 0 || length > bytes.size() - at) return false;
    uint32_t point = first & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      const auto next = static_cast<unsigned char>(bytes[at + i]);
      if (next >> 6 != 2) return false;
      point = point << 6 | (next & 0x3fu);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kLeast[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    at += length;
  }
  return true;
}

std::string suggest(std::string_view name, const std::vector<std::string>& known) {
  const std::string wanted = lower(name);
  std::string_view closest;
  double best = kClose;
  std::string listed;
  for (size_t i = 0; i < known.size(); ++i) {
    const std::string candidate = lower(known[i]);
    const auto total = static_cast<double>(candidate.size() + wanted.size());
    const double ratio =
        total == 0 ? 1.0 : 2.0 * static_cast<double>(num_matching(candidate, wanted)) / total;
    if (ratio > best || (closest.empty() && ratio >= best)) {
      best = ratio;
      closest = known[i];
    }
    if (i < kMostShown) listed += (i == 0 ? "" : ", ") + quoted(known[i]);
  }
  if (known.empty()) listed = "none";
  if (known.size() > kMostShown) listed += ", … (" + std::to_string(known.size()) + " in all)";
  const std::string meant = closest.empty() ? "" : "did you mean " + quoted(closest) + "? ";
  return meant + "known: " + listed;
}

}  // namespace sparring::serve
