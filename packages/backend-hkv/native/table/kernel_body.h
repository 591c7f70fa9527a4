// The body of the kernels; see kernels.h. Included once by each kernels_*.cc,
// inside a namespace of its own, after it has defined
//   uint64_t match(const Bucket*, uint8_t)      the digest scan
//   struct Vector                               the widest registers: copy, stream
//
// A lookup is four dependent memory reads: directory word, digest line, entry
// line, row. Done key by key they would follow one another. So a block of keys
// goes through each stage together, and each stage prefetches for the next; the
// rows of one block are copied while those of the next are on their way.

constexpr int kBlock = 32;
// More of a long row than this the processor fetches ahead by itself.
constexpr uint64_t kPrefetchBytes = 1024;
// A function that does nothing but prefetch has no effect in the eyes of the
// compiler, which may then drop calls of it; unless it is inlined before that.
SPARRING_HKV_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

SPARRING_HKV_INLINE void prefetch_row(const char* begin, const char* end) {
  if (end > begin + kPrefetchBytes) end = begin + kPrefetchBytes;
  const auto mask = ~uintptr_t{63};
  auto line = reinterpret_cast<uintptr_t>(begin) & mask;
  for (; line < reinterpret_cast<uintptr_t>(end); line += 64) {
    prefetch(reinterpret_cast<const void*>(line));
  }
}

template <bool kIsStreaming>
static inline void copy_row(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + Vector::kBytes <= bytes; at += Vector::kBytes) {
    if constexpr (kIsStreaming) {
      Vector::stream(to + at, from + at);
    } else {
      Vector::copy(to + at, from + at);
    }
  }
  if (at < bytes) __builtin_memcpy(to + at, from + at, bytes - at);
}

// Rows of at most 16 elements of 4 bytes are common; a call of memcpy for each
// costs more than the copy.
static inline void copy_short(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) __builtin_memcpy(to + at, from + at, 8);
  if (at + 4 <= bytes) {
    __builtin_memcpy(to + at, from + at, 4);
    at += 4;
  }
  for (; at < bytes; ++at) to[at] = from[at];
}

static inline void locate_block(const IndexView& index, const int64_t* keys, int n,
                                uint32_t* rows, Place* places) {
  uint64_t hashes[kBlock];
  const uint32_t* words[kBlock];
  Bucket* buckets[kBlock];
  uint64_t masks[kBlock];
  const bool is_growing = index.num_fixed_buckets == 0;
  for (int i = 0; i < n; ++i) hashes[i] = hash_key(keys[i], index.seed);
  if (is_growing) {
    for (int i = 0; i < n; ++i) {
      words[i] = word_of(index.segments, hashes[i]);
      prefetch(words[i]);
    }
    for (int i = 0; i < n; ++i) {
      buckets[i] = reinterpret_cast<Bucket*>(index.buckets.at(*words[i]));
      prefetch(buckets[i]);
    }
  } else {
    for (int i = 0; i < n; ++i) {
      buckets[i] = reinterpret_cast<Bucket*>(index.buckets.at(
          static_cast<uint32_t>(fixed_bucket_of(hashes[i], index.num_fixed_buckets))));
      prefetch(buckets[i]);
    }
  }
  for (int i = 0; i < n; ++i) {
    masks[i] = match(buckets[i], digest_of(hashes[i]));
    for (uint64_t mask = masks[i]; mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
      prefetch(&buckets[i]->lines[slot / kSlotsPerLine]);
    }
  }
  for (int i = 0; i < n; ++i) {
    Bucket* bucket = buckets[i];
    uint64_t mask = masks[i];
    uint32_t row = kNoRow;
    Place place;
    for (;;) {
      for (; mask != 0; mask &= mask - 1) {
        const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
        if (bucket->key(slot) == keys[i]) {
          row = bucket->row(slot);
          place.bucket = bucket;
          place.slot = slot;
          break;
        }
      }
      if (place.bucket != nullptr || bucket->overflow == 0) break;
      bucket = reinterpret_cast<Bucket*>(index.buckets.at(bucket->overflow));
      mask = match(bucket, digest_of(hashes[i]));
    }
    rows[i] = row;
    if (places != nullptr) places[i] = place;
  }
}

static void locate(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                   Place* places) {
  for (int64_t at = 0; at < n; at += kBlock) {
    const int size = static_cast<int>(n - at < kBlock ? n - at : kBlock);
    locate_block(index, keys + at, size, rows + at, places == nullptr ? nullptr : places + at);
  }
}

SPARRING_HKV_INLINE void prefetch_rows(const RowOutput& output, const uint32_t* numbers, int n) {
  for (int i = 0; i < n; ++i) {
    if (numbers[i] == kNoRow) continue;
    const char* row = output.rows.at(numbers[i]);
    prefetch_row(row + output.begin, row + output.end);
  }
}

template <bool kIsStreaming>
static inline void copy_rows(const RowOutput& output, const uint32_t* numbers, int n, char* out) {
  const uint64_t bytes = output.end - output.begin;
  for (int i = 0; i < n; ++i, out += output.stride) {
    if (numbers[i] == kNoRow) {
      __builtin_memset(out, 0, bytes);
    } else if (bytes < Vector::kBytes) {
      copy_short(out, output.rows.at(numbers[i]) + output.begin, bytes);
    } else {
      copy_row<kIsStreaming>(out, output.rows.at(numbers[i]) + output.begin, bytes);
    }
  }
}

static inline bool may_stream(const RowOutput& output) {
  const uint64_t bytes = output.end - output.begin;
  return output.is_large && bytes == output.stride &&
         bytes % Vector::kBytes == 0 &&
         reinterpret_cast<uintptr_t>(output.out) % Vector::kStreamAlignment == 0;
}

template <bool kIsStreaming>
static void find_as(const IndexView& index, const RowOutput& output, const int64_t* keys,
                    int64_t n, uint8_t* found) {
  uint32_t numbers[2][kBlock];
  int previous = 0;  // rows of the block before, located and prefetched
  for (int64_t at = 0;; at += kBlock) {
    const int64_t left = n - at;
    const int size = static_cast<int>(left <= 0 ? 0 : left < kBlock ? left : kBlock);
    const int now = static_cast<int>((at / kBlock) & 1);
    if (size > 0) {
      locate_block(index, keys + at, size, numbers[now], nullptr);
      prefetch_rows(output, numbers[now], size);
      for (int i = 0; i < size; ++i) found[at + i] = numbers[now][i] != kNoRow;
    }
    if (previous > 0) {
      char* out = output.out + static_cast<uint64_t>(at - kBlock) * output.stride;
      copy_rows<kIsStreaming>(output, numbers[1 - now], previous, out);
    }
    if (size == 0) break;
    previous = size;
  }
  if constexpr (kIsStreaming) Vector::fence();
}

static void find(const IndexView& index, const RowOutput& output, const int64_t* keys, int64_t n,
                 uint8_t* found) {
  if (may_stream(output)) {
    find_as<true>(index, output, keys, n, found);
  } else {
    find_as<false>(index, output, keys, n, found);
  }
}

static void gather(const RowOutput& output, const uint32_t* numbers, int64_t n) {
  int64_t ahead = n < kBlock ? n : kBlock;
  prefetch_rows(output, numbers, static_cast<int>(ahead));
  for (int64_t at = 0; at < n; at += kBlock) {
    const int size = static_cast<int>(n - at < kBlock ? n - at : kBlock);
    const int64_t left = n - ahead;
    const int next = static_cast<int>(left < kBlock ? left : kBlock);
    prefetch_rows(output, numbers + ahead, next);
    ahead += next;
    copy_rows<false>(output, numbers + at, size,
                     output.out + static_cast<uint64_t>(at) * output.stride);
  }
}

static void scatter(const RowInput& input, const uint32_t* numbers, int64_t n) {
  const uint64_t bytes = input.row_bytes;
  const uint64_t prefetched = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int size = static_cast<int>(n - at < kBlock ? n - at : kBlock);
    for (int i = 0; i < size; ++i) {
      if (numbers[at + i] == kNoRow) continue;
      const char* row = input.rows.at(numbers[at + i]);
      for (uint64_t byte = 0; byte < prefetched; byte += 64) __builtin_prefetch(row + byte, 1, 3);
    }
    for (int i = 0; i < size; ++i) {
      if (numbers[at + i] == kNoRow) continue;
      const char* from = input.in + static_cast<uint64_t>(at + i) * input.stride;
      char* row = input.rows.at(numbers[at + i]);
      if (bytes < Vector::kBytes) {
        copy_short(row, from, bytes);
      } else {
        copy_row<false>(row, from, bytes);
      }
    }
  }
}
