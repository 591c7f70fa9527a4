// The body of the kernels; see kernels.h. Each kernels_*.cc includes it once in
// its own namespace, after it has defined
//   uint64_t match(const Bucket*, uint8_t)      the digest scan
//   struct Vector                               the widest registers: copy, stream
//
// A lookup is four dependent memory reads: directory word, digest line, entry
// line, row. Processed key by key, their latencies would add up. Therefore keys
// pass through the stages in blocks, and each stage prefetches for the next.
//

constexpr int kBlock = SPARRING_HKV_BLOCK;
// Number of keys that are located before their rows are copied: small enough for
// the L1 cache, large enough to make refilling the pipeline negligible.
constexpr int64_t kChunk = 1024;
// Number of rows that are prefetched ahead of the copied one.
constexpr int64_t kRowsAhead = 32;
// Beyond this many bytes of a row, the hardware prefetcher takes over.
constexpr uint64_t kPrefetchBytes = 1024;
// The compiler may remove calls of a function that only prefetches, because it
// has no effect, unless the function is inlined first.
SPARRING_HKV_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }

template <bool kIsStreaming>
SPARRING_HKV_INLINE void copy_row(char* to, const char* from, uint64_t bytes) {
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

// Rows of at most 16 elements of 4 bytes are common; calling memcpy for each
// would cost more than the copy.
SPARRING_HKV_INLINE void copy_short(char* to, const char* from, uint64_t bytes) {
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) __builtin_memcpy(to + at, from + at, 8);
  if (at + 4 <= bytes) {
    __builtin_memcpy(to + at, from + at, 4);
    at += 4;
  }
  for (; at < bytes; ++at) to[at] = from[at];
}

// The keys of one block as they pass through the stages.
struct Block {
  const int64_t* keys;
  int n;
  uint64_t hashes[kBlock];
  Bucket* buckets[kBlock];
  uint64_t masks[kBlock];
};

SPARRING_HKV_INLINE Bucket* bucket_at(const IndexView& index, uint32_t number) {
  return reinterpret_cast<Bucket*>(index.buckets.at(number));
}

// Stage 1: from keys to buckets.
template <bool kIsGrowing>
SPARRING_HKV_INLINE void find_buckets(const IndexView& index, Block& block) {
  for (int i = 0; i < block.n; ++i) block.hashes[i] = hash_key(block.keys[i], index.seed);
  if constexpr (kIsGrowing) {
    const uint32_t* words[kBlock];
    for (int i = 0; i < block.n; ++i) {
      words[i] = word_of(index.segments, block.hashes[i]);
      prefetch(words[i]);
    }
    for (int i = 0; i < block.n; ++i) {
      block.buckets[i] = bucket_at(index, *words[i]);
      prefetch(block.buckets[i]);
    }
  } else {
    for (int i = 0; i < block.n; ++i) {
      const uint64_t number = fixed_bucket_of(block.hashes[i], index.num_fixed_buckets);
      block.buckets[i] = bucket_at(index, static_cast<uint32_t>(number));
      prefetch(block.buckets[i]);
    }
  }
}

// If only some keys exist, their branch is unpredictable, and a misprediction
// costs as much as a read from the L1 cache. In that case (kIsMixed) the first
// candidate is compared without a branch; if there is none, the digest line is.
SPARRING_HKV_INLINE uint32_t first_slot(uint64_t mask) {
  return static_cast<uint32_t>(__builtin_ctzll(mask | uint64_t{1} << kSlots));
}

SPARRING_HKV_INLINE const char* first_line(const Bucket* bucket, uint64_t mask) {
  const uint64_t line = (1 + first_slot(mask) / kSlotsPerLine) & (uint64_t{0} - (mask != 0));
  return reinterpret_cast<const char*>(bucket) + sizeof(EntryLine) * line;
}

// Stage 2: from digest lines to candidates.
template <bool kIsMixed>
SPARRING_HKV_INLINE void match_digests(Block& block) {
  for (int i = 0; i < block.n; ++i) {
    const uint64_t all = match(block.buckets[i], digest_of(block.hashes[i]));
    block.masks[i] = all;
    if constexpr (kIsMixed) prefetch(first_line(block.buckets[i], all));
    for (uint64_t mask = kIsMixed ? all & (all - 1) : all; mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
      prefetch(&block.buckets[i]->lines[slot / kSlotsPerLine]);
    }
  }
}

// Stage 3: from candidates to the row, or kNoRow. Follows chains.
SPARRING_HKV_INLINE Place compare_keys(const IndexView& index, const Block& block, int i,
                                       uint32_t& row) {
  Bucket* bucket = block.buckets[i];
  uint64_t mask = block.masks[i];
  for (;;) {
    for (; mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
      if (bucket->key(slot) == block.keys[i]) {
        row = bucket->row(slot);
        return {bucket, slot};
      }
    }
    if (bucket->overflow == 0) {
      row = kNoRow;
      return {};
    }
    bucket = bucket_at(index, bucket->overflow);
    mask = match(bucket, digest_of(block.hashes[i]));
  }
}

// Stage 3 without a branch, if a bucket has at most one candidate and no chain.
SPARRING_HKV_INLINE bool compare_first(const Block& block, int i, uint32_t& row) {
  const Bucket* const bucket = block.buckets[i];
  const uint64_t mask = block.masks[i];
  const char* const line = first_line(bucket, mask);
  const uint64_t at = first_slot(mask) % kSlotsPerLine;
  int64_t key;
  uint32_t number;
  __builtin_memcpy(&key, line + offsetof(EntryLine, keys) + at * sizeof key, sizeof key);
  __builtin_memcpy(&number, line + offsetof(EntryLine, rows) + at * sizeof number, sizeof number);
  const bool is_found = (mask != 0) & (key == block.keys[i]);
  row = number | (uint32_t{0} - !is_found);  // kNoRow has all bits
  return is_found | (((mask & (mask - 1)) == 0) & (bucket->overflow == 0));
}

template <bool kIsGrowing, bool kIsMixed>
static void locate_as(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                      Place* places) {
  Block blocks[4];  // three of them are in progress
  const int64_t num_blocks = (n + kBlock - 1) / kBlock;
  for (int64_t step = 0; step < num_blocks + 2; ++step) {
    if (step < num_blocks) {
      Block& block = blocks[step & 3];
      const int64_t left = n - step * kBlock;
      block.n = static_cast<int>(left < kBlock ? left : kBlock);
      block.keys = keys + step * kBlock;
      find_buckets<kIsGrowing>(index, block);
    }
    if (step >= 1 && step - 1 < num_blocks) match_digests<kIsMixed>(blocks[(step - 1) & 3]);
    if (step < 2) continue;
    const Block& block = blocks[(step - 2) & 3];
    const int64_t at = (step - 2) * kBlock;
    for (int i = 0; i < block.n; ++i) {
      if constexpr (kIsMixed) {
        if (__builtin_expect(compare_first(block, i, rows[at + i]), 1)) continue;
      }
      const Place place = compare_keys(index, block, i, rows[at + i]);
      if (places != nullptr) places[at + i] = place;
    }
  }
}

static void locate(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                   Place* places) {
  if (index.num_fixed_buckets == 0) {
    locate_as<true, false>(index, keys, n, rows, places);
  } else {
    locate_as<false, false>(index, keys, n, rows, places);
  }
}

// For calls in which only some keys exist.
static void locate_mixed(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows) {
  if (index.num_fixed_buckets == 0) {
    locate_as<true, true>(index, keys, n, rows, nullptr);
  } else {
    locate_as<false, true>(index, keys, n, rows, nullptr);
  }
}

// Prefetches the lines of a row. kBytes: the number of bytes if it is known at
// compile time, else 0.
SPARRING_HKV_INLINE void prefetch_bytes(const char* row, uint64_t bytes) {
  for (uint64_t byte = 0; byte < bytes && byte < kPrefetchBytes; byte += 64) prefetch(row + byte);
  // A row that does not start at a line boundary extends into one more line.
  if (reinterpret_cast<uintptr_t>(row) % 64 != 0) prefetch(row + bytes - 1);
}

template <uint64_t kBytes>
SPARRING_HKV_INLINE void prefetch_row(const RowOutput& output, uint32_t number) {
  if (number == kNoRow) return;
  const uint64_t bytes = kBytes != 0 ? kBytes : output.end - output.begin;
  prefetch_bytes(output.rows.at(number) + output.begin, bytes);
}

template <uint64_t kBytes, bool kIsStreaming>
SPARRING_HKV_INLINE void copy_row_out(const RowOutput& output, uint32_t number, int64_t at) {
  const uint64_t bytes = kBytes != 0 ? kBytes : output.end - output.begin;
  char* out = output.out + static_cast<uint64_t>(at) * output.stride;
  if (number == kNoRow) {
    __builtin_memset(out, 0, bytes);
  } else if (kBytes == 0 && bytes < Vector::kBytes) {
    copy_short(out, output.rows.at(number) + output.begin, bytes);
  } else {
    copy_row<kIsStreaming>(out, output.rows.at(number) + output.begin, bytes);
  }
}

static inline bool may_stream(const RowOutput& output) {
  const uint64_t bytes = output.end - output.begin;
  return output.is_large && bytes == output.stride && bytes % Vector::kBytes == 0 &&
         reinterpret_cast<uintptr_t>(output.out) % Vector::kStreamAlignment == 0;
}

// Copies rows by number, and prefetches the rows that follow.
template <uint64_t kBytes, bool kIsStreaming>
static void copy_rows(const RowOutput& shared, const uint32_t* numbers, int64_t n, int64_t at) {
  // A copy: the compiler must assume that written rows alias `shared`, and would
  // read it again for each row.
  const RowOutput output = shared;
  for (int64_t i = 0; i < n && i < kRowsAhead; ++i) prefetch_row<kBytes>(output, numbers[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) prefetch_row<kBytes>(output, numbers[i + kRowsAhead]);
    copy_row_out<kBytes, kIsStreaming>(output, numbers[i], at + i);
  }
}

using CopyRows = void (*)(const RowOutput&, const uint32_t*, int64_t, int64_t);

// Embeddings of 16 to 128 float32 have specialized loops.
template <bool kIsStreaming>
static CopyRows copy_rows_for(uint64_t bytes) {
  switch (bytes) {
    case 64:
      return copy_rows<64, kIsStreaming>;
    case 128:
      return copy_rows<128, kIsStreaming>;
    case 256:
      return copy_rows<256, kIsStreaming>;
    case 512:
      return copy_rows<512, kIsStreaming>;
    default:
      return copy_rows<0, kIsStreaming>;
  }
}

static void find(const IndexView& index, const RowOutput& output, const int64_t* keys, int64_t n,
                 uint8_t* found) {
  const bool is_streaming = may_stream(output);
  const uint64_t bytes = output.end - output.begin;
  const CopyRows copy = is_streaming ? copy_rows_for<true>(bytes) : copy_rows_for<false>(bytes);
  uint32_t numbers[kChunk];
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t size = n - at < kChunk ? n - at : kChunk;
    if (output.is_mixed) {
      locate_mixed(index, keys + at, size, numbers);
    } else {
      locate(index, keys + at, size, numbers, nullptr);
    }
    copy(output, numbers, size, at);
    for (int64_t i = 0; i < size; ++i) found[at + i] = numbers[i] != kNoRow;
  }
  if (is_streaming) Vector::fence();
}

// Shows the rows of located keys block by block, one block after prefetching them.
static int32_t show_rows(const RowVisitor& visitor, const uint32_t* numbers, int64_t n,
                         int64_t begin) {
  const void* rows[2][kBlock];
  const auto size_at = [n](int64_t at) { return n - at < kBlock ? n - at : kBlock; };
  const auto ask = [&](int64_t at, const void** block) __attribute__((always_inline)) {
    for (int64_t i = 0; i < size_at(at); ++i) {
      const uint32_t number = numbers[at + i];
      const char* row = number == kNoRow ? nullptr : visitor.rows.at(number) + visitor.begin;
      if (row != nullptr && visitor.end != visitor.begin) {
        prefetch_bytes(row, visitor.end - visitor.begin);
      }
      block[i] = row;
    }
  };
  ask(0, rows[0]);
  for (int64_t at = 0, side = 0; at < n; at += kBlock, side ^= 1) {
    if (at + kBlock < n) ask(at + kBlock, rows[side ^ 1]);
    const int32_t answer = visitor.show(visitor.context, begin + at, size_at(at), rows[side]);
    if (answer != 0) return answer;
  }
  return 0;
}

static int32_t visit(const IndexView& index, const RowVisitor& visitor, const int64_t* keys,
                     int64_t n) {
  uint32_t numbers[kChunk];
  for (int64_t at = 0; at < n; at += kChunk) {
    const int64_t size = n - at < kChunk ? n - at : kChunk;
    locate(index, keys + at, size, numbers, nullptr);
    const int32_t answer = show_rows(visitor, numbers, size, at);
    if (answer != 0) return answer;
  }
  return 0;
}

static void gather(const RowOutput& output, const uint32_t* numbers, int64_t n) {
  copy_rows_for<false>(output.end - output.begin)(output, numbers, n, 0);
}

static void scatter(const RowInput& input, int64_t n) {
  const uint64_t bytes = input.row_bytes;
  const uint64_t prefetched = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int size = static_cast<int>(n - at < kBlock ? n - at : kBlock);
    char* const* const rows = input.rows + at;
    for (int i = 0; i < size; ++i) {
      if (rows[i] == nullptr) continue;
      for (uint64_t byte = 0; byte < prefetched; byte += 64) {
        __builtin_prefetch(rows[i] + byte, 1, 3);
      }
    }
    for (int i = 0; i < size; ++i) {
      if (rows[i] == nullptr) continue;
      const char* from = input.in + static_cast<uint64_t>(at + i) * input.stride;
      if (bytes < Vector::kBytes) {
        copy_short(rows[i], from, bytes);
      } else {
        copy_row<false>(rows[i], from, bytes);
      }
    }
  }
}
