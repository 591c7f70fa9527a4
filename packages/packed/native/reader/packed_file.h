// One mapped data file of rows or erased keys, whose header has been checked.
#ifndef SPARRING_PACKED_READER_PACKED_FILE_H_
#define SPARRING_PACKED_READER_PACKED_FILE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "format/layout.h"
#include "format/manifest.h"
#include "format/mapped_file.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sparring::packed {

inline int64_t key_of(const uint8_t* record) {
  int64_t key;
  std::memcpy(&key, record, 8);
  return key;
}

// The values that a search reads. A local copy of it stays in registers while memory is written.
struct FileView {
  const Bucket* buckets;
  const uint8_t* records;
  uint64_t num_buckets;
  uint64_t salt;
  uint64_t num_keys;
  uint64_t max_bucket;
  uint64_t record_bytes;

  uint64_t hash_of(int64_t key) const { return mix64(static_cast<uint64_t>(key) ^ salt); }

  // Whether the bucket is in range.
  bool has(const Bucket& bucket) const {
    return bucket.count <= max_bucket && uint64_t{bucket.start} + bucket.count <= num_keys;
  }

  const uint8_t* record(uint64_t at) const { return records + at * record_bytes; }

  // Bit i is set if digest i of the bucket is equal to the digest of the hash.
  static uint32_t matches(const Bucket& bucket, uint64_t hash) {
    const auto digest = static_cast<uint16_t>(hash);
    uint32_t found = 0;
#if defined(__SSE2__)
    // Compares the whole cache line, in which the digests follow the first three words.
    const auto* line = reinterpret_cast<const __m128i*>(&bucket);
    const __m128i wanted = _mm_set1_epi16(static_cast<int16_t>(digest));
    const auto equal = [&](int i) { return _mm_cmpeq_epi16(_mm_load_si128(line + i), wanted); };
    const auto low = static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(equal(0), equal(1))));
    const auto high = static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(equal(2), equal(3))));
    found = (low | high << 16) >> (32 - kBucketDigests);
#else
    for (int i = 0; i < kBucketDigests; ++i) {
      found |= static_cast<uint32_t>(bucket.digests[i] == digest) << i;
    }
#endif
    return bucket.count < kBucketDigests ? found & ((1u << bucket.count) - 1) : found;
  }

  // Returns the record of the key in a bucket, or NULL.
  const uint8_t* find(const Bucket& bucket, int64_t key, uint64_t hash) const {
    for (uint32_t found = matches(bucket, hash); found != 0; found &= found - 1) {
      const uint8_t* const candidate =
          record(bucket.start + static_cast<uint64_t>(__builtin_ctz(found)));
      if (key_of(candidate) == key) return candidate;
    }
    for (uint64_t i = kBucketDigests; i < bucket.count; ++i) {
      if (key_of(record(bucket.start + i)) == key) return record(bucket.start + i);
    }
    return nullptr;
  }
};

class PackedFile {
 public:
  // Compares all fields of the header with the manifest and the length of the file.
  // Throws StatusError(SPARRING_CORRUPT) with the name of the file, which is at `path`.
  PackedFile(std::unique_ptr<const MappedFile> file, const std::string& path,
             const FileEntry& entry, const TableEntry& table);

  // See MappedFile.
  void read_ahead() const { file_->read_ahead(); }

  // Hashes all bytes. Throws StatusError(SPARRING_CORRUPT) if the hash differs.
  void verify() const;

  uint64_t num_keys() const { return header_.num_keys; }
  uint64_t size() const { return file_->size(); }
  const std::string& path() const { return path_; }

  const FileView& view() const { return view_; }

  // Throws StatusError(SPARRING_CORRUPT), because the bucket is out of range.
  [[noreturn]] void refuse_bucket(uint64_t bucket) const;

  // Returns the record of a key, or NULL. `search.h` searches for many keys at once.
  const uint8_t* find(int64_t key) const {
    const uint64_t hash = view_.hash_of(key);
    const uint64_t at = bucket_of(hash, view_.num_buckets);
    const Bucket& bucket = view_.buckets[at];
    if (!view_.has(bucket)) [[unlikely]] refuse_bucket(at);
    return view_.find(bucket, key, hash);
  }

  const uint8_t* record(uint64_t at) const { return view_.record(at); }

  static const uint8_t* row_of(const uint8_t* record) { return record + 8; }

 private:
  void check(const FileEntry& entry, const TableEntry& table) const;

  std::unique_ptr<const MappedFile> file_;
  std::string path_;
  std::string hash_;
  Header header_;
  FileView view_;
};

}  // namespace sparring::packed

#endif  // SPARRING_PACKED_READER_PACKED_FILE_H_
