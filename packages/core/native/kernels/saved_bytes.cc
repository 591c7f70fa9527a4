#include "kernels/saved_bytes.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "sparring/initial_value.h"

namespace sparring::kernels {
namespace {

constexpr size_t kMagicBytes = 8;

std::string_view magic_of(SavedKind kind) {
  return kind == SavedKind::key_filter ? "SPRBLOOM" : "SPRADMIT";
}

constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kWord = 8;

// REQUIRES: whole words.
uint64_t checksum(std::string_view bytes) {
  uint64_t sum = bytes.size();
  for (size_t at = 0; at < bytes.size(); at += kWord) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, kWord);
    // Adding the constant keeps words of zeros from leaving a sum of zero as it is.
    sum = mix64((sum ^ word) + 0x9e3779b97f4a7c15u);
  }
  return sum;
}

const char* kind_name(uint32_t kind) {
  switch (static_cast<SavedKind>(kind)) {
    case SavedKind::frequency:
      return "frequency";
    case SavedKind::probability:
      return "probability";
    case SavedKind::bloom:
      return "bloom";
    case SavedKind::key_filter:
      return "key filter";
  }
  return "unknown";
}

}  // namespace

SavedWriter::SavedWriter(SavedKind kind, size_t bytes) {
  bytes_.reserve(kHeaderBytes + bytes + 2 * kWord);
  bytes_.append(magic_of(kind));
  const uint32_t header[2] = {kVersion, static_cast<uint32_t>(kind)};
  add(header, 2);
}

std::string SavedWriter::finish() {
  bytes_.resize((bytes_.size() + kWord - 1) / kWord * kWord);
  add(checksum(bytes_));
  return std::move(bytes_);
}

SavedReader::SavedReader(std::string_view saved, SavedKind kind) {
  if (saved.substr(0, kMagicBytes) != magic_of(kind)) {
    throw std::invalid_argument("they do not begin with " + std::string(magic_of(kind)));
  }
  if (saved.size() < kHeaderBytes + kWord) refuse_short();
  uint32_t header[2];
  std::memcpy(header, saved.data() + kMagicBytes, sizeof header);
  if (header[0] != kVersion) {
    throw std::invalid_argument("they have format version " + std::to_string(header[0]) +
                                ", but this release reads version " + std::to_string(kVersion));
  }
  if (header[1] != static_cast<uint32_t>(kind)) {
    throw std::invalid_argument(std::string("their kind is ") + kind_name(header[1]) + ", expected " +
                                kind_name(static_cast<uint32_t>(kind)));
  }
  const std::string_view summed = saved.substr(0, saved.size() - kWord);
  uint64_t sum;
  std::memcpy(&sum, saved.data() + summed.size(), kWord);
  if (summed.size() % kWord != 0 || checksum(summed) != sum) {
    throw std::invalid_argument("they are damaged or truncated, because their checksum does not match");
  }
  payload_ = summed.substr(kHeaderBytes);
}

void SavedReader::expect(uint64_t wanted, const char* what) {
  const uint64_t found = take();
  if (found != wanted) {
    throw std::invalid_argument("they were saved by another filter: " + std::string(what) + " is " +
                                std::to_string(found) + ", expected " + std::to_string(wanted));
  }
}

void SavedReader::expect_end() const {
  if (payload_.size() >= kWord ||
      std::any_of(payload_.begin(), payload_.end(), [](char byte) { return byte != 0; })) {
    throw std::invalid_argument("there are more bytes than the counters need");
  }
}

void SavedReader::refuse_short() { throw std::invalid_argument("they end too early"); }

void SavedReader::copy_front(void* to, size_t size) {
  if (size > 0) std::memcpy(to, payload_.data(), size);
  payload_.remove_prefix(size);
}

}  // namespace sparring::kernels
