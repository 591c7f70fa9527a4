// One mapped data file, whose header has been checked: rows, or erased keys.
#ifndef SPARRING_PACKED_READER_PACKED_FILE_H_
#define SPARRING_PACKED_READER_PACKED_FILE_H_

#include <cstdint>
#include <cstring>
#include <string>

#include "format/layout.h"
#include "format/manifest.h"
#include "format/mapped_file.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sparring::packed {

class PackedFile {
 public:
  // Maps the file, and checks all that its header says against its manifest and its length.
  // Throws StatusError: SPARRING_CORRUPT naming the file, SPARRING_IO.
  PackedFile(const Folder& folder, const FileEntry& entry, const TableEntry& table);

  // Hashes all bytes. Throws StatusError(SPARRING_CORRUPT) where they are others.
  void verify() const;

  uint64_t num_keys() const { return header_.num_keys; }
  uint64_t size() const { return file_.size(); }
  const std::string& path() const { return path_; }

  // ---- finding a key, in steps that a caller does for many keys, one step after the other,
  // so that memory is read for all of them at once. `Search` is what a key needs meanwhile.

  struct Search {
    uint64_t hash;
    uint64_t at;    // of the next candidate, or num_keys
    uint64_t end;   // of its bucket
    uint64_t group; // first of the 16 digests that `matches` is about
    uint32_t matches;
  };

  void prefetch_directory(int64_t key, Search& search) const {
    search.hash = mix64(static_cast<uint64_t>(key) ^ header_.salt);
    __builtin_prefetch(directory_ + bucket_of(search.hash, header_.num_buckets));
  }

  void prefetch_digests(Search& search) const {
    const uint64_t bucket = bucket_of(search.hash, header_.num_buckets);
    search.group = directory_[bucket];
    search.end = directory_[bucket + 1];
    if (search.group > search.end || search.end > header_.num_keys ||
        search.end - search.group > header_.max_bucket) [[unlikely]] {
      refuse_bucket(bucket);
    }
    __builtin_prefetch(digests_ + search.group);
  }

  // Finds the first candidate, and asks for `bytes` of its record.
  void prefetch_record(Search& search, int64_t bytes) const {
    search.matches = matches_of(search);
    next_candidate(search);
    if (search.at == header_.num_keys) return;
    const uint8_t* const record = records_ + search.at * header_.record_bytes;
    for (int64_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(record + offset);
    __builtin_prefetch(record + bytes - 1);
  }

  // The record of the key, or NULL.
  const uint8_t* record_of(int64_t key, Search& search) const {
    while (search.at != header_.num_keys) {
      const uint8_t* const record = records_ + search.at * header_.record_bytes;
      if (key_of(record) == key) return record;
      next_candidate(search);
    }
    return nullptr;
  }

  // All steps at once.
  const uint8_t* find(int64_t key) const {
    Search search;
    prefetch_directory(key, search);
    prefetch_digests(search);
    search.matches = matches_of(search);
    next_candidate(search);
    return record_of(key, search);
  }

  const uint8_t* record(uint64_t at) const { return records_ + at * header_.record_bytes; }

  static int64_t key_of(const uint8_t* record) {
    int64_t key;
    std::memcpy(&key, record, 8);
    return key;
  }

  static const uint8_t* row_of(const uint8_t* record) { return record + 8; }

 private:
  [[noreturn]] void refuse_bucket(uint64_t bucket) const;
  void check(const FileEntry& entry, const TableEntry& table) const;

  // Bit i: digest `group` + i is in the bucket and is that of the hash.
  uint32_t matches_of(const Search& search) const {
    const uint64_t count = search.end - search.group;
    const uint8_t* const from = digests_ + search.group;
    const auto digest = static_cast<uint8_t>(search.hash);
    uint32_t matches = 0;
#if defined(__SSE2__)
    const __m128i found = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    matches = static_cast<uint32_t>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_set1_epi8(static_cast<char>(digest)))));
#else
    for (int i = 0; i < 16; ++i) matches |= static_cast<uint32_t>(from[i] == digest) << i;
#endif
    return count < 16 ? matches & ((1u << count) - 1) : matches;
  }

  void next_candidate(Search& search) const {
    while (search.matches == 0) {
      if (search.end - search.group <= 16) {
        search.at = header_.num_keys;
        return;
      }
      search.group += 16;
      search.matches = matches_of(search);
    }
    search.at = search.group + static_cast<uint64_t>(__builtin_ctz(search.matches));
    search.matches &= search.matches - 1;
  }

  MappedFile file_;
  std::string path_;
  std::string hash_;
  Header header_;
  const uint32_t* directory_ = nullptr;
  const uint8_t* digests_ = nullptr;
  const uint8_t* records_ = nullptr;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_PACKED_FILE_H_
