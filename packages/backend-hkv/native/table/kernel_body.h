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

// The keys of one block on their way through the stages.
struct Block {
  const int64_t* keys;
  int n;
  uint64_t hashes[kBlock];
  Bucket* buckets[kBlock];
  uint64_t masks[kBlock];
  uint32_t rows[kBlock];
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

// Stage 2: from digest lines to candidates.
SPARRING_HKV_INLINE void match_digests(Block& block) {
  for (int i = 0; i < block.n; ++i) {
    block.masks[i] = match(block.buckets[i], digest_of(block.hashes[i]));
    for (uint64_t mask = block.masks[i]; mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
      prefetch(&block.buckets[i]->lines[slot / kSlotsPerLine]);
    }
  }
}

// Stage 3: from candidates to the row, or kNoRow. Chains are followed here.
SPARRING_HKV_INLINE Place compare_keys(const IndexView& index, Block& block, int i) {
  Bucket* bucket = block.buckets[i];
  uint64_t mask = block.masks[i];
  for (;;) {
    for (; mask != 0; mask &= mask - 1) {
      const auto slot = static_cast<uint32_t>(__builtin_ctzll(mask));
      if (bucket->key(slot) == block.keys[i]) {
        block.rows[i] = bucket->row(slot);
        return {bucket, slot};
      }
    }
    if (bucket->overflow == 0) {
      block.rows[i] = kNoRow;
      return {};
    }
    bucket = bucket_at(index, bucket->overflow);
    mask = match(bucket, digest_of(block.hashes[i]));
  }
}

// Runs all keys through the stages. finish(block, before, at) then has the rows
// of a block whose keys begin at `at`, and those of the block before, or NULL; it
// is called once more at the end with an empty block.
template <bool kIsGrowing, class Resolve, class Finish>
SPARRING_HKV_INLINE void run_stages(const IndexView& index, const int64_t* keys, int64_t n,
                                    const Resolve& resolve, const Finish& finish) {
  Block blocks[4];
  const int64_t num_blocks = (n + kBlock - 1) / kBlock;
  for (int64_t step = 0; step < num_blocks + 3; ++step) {
    Block& first = blocks[step & 3];
    const int64_t left = n - step * kBlock;
    first.n = static_cast<int>(left <= 0 ? 0 : left < kBlock ? left : kBlock);
    first.keys = keys + step * kBlock;
    find_buckets<kIsGrowing>(index, first);
    if (step >= 1) match_digests(blocks[(step - 1) & 3]);
    if (step < 2) continue;
    Block& last = blocks[(step - 2) & 3];
    resolve(last, (step - 2) * kBlock);
    finish(last, step >= 3 ? &blocks[(step - 3) & 3] : nullptr, (step - 2) * kBlock);
  }
}

template <bool kIsGrowing>
static void locate_as(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                      Place* places) {
  run_stages<kIsGrowing>(
      index, keys, n,
      [&](Block& block, int64_t at) SPARRING_HKV_INLINE_LAMBDA {
        for (int i = 0; i < block.n; ++i) {
          const Place place = compare_keys(index, block, i);
          rows[at + i] = block.rows[i];
          if (places != nullptr) places[at + i] = place;
        }
      },
      [](const Block&, const Block*, int64_t) SPARRING_HKV_INLINE_LAMBDA {});
}

static void locate(const IndexView& index, const int64_t* keys, int64_t n, uint32_t* rows,
                   Place* places) {
  if (index.num_fixed_buckets == 0) {
    locate_as<true>(index, keys, n, rows, places);
  } else {
    locate_as<false>(index, keys, n, rows, places);
  }
}

SPARRING_HKV_INLINE void prefetch_wanted(const RowOutput& output, uint32_t number) {
  if (number == kNoRow) return;
  const char* row = output.rows.at(number);
  prefetch_row(row + output.begin, row + output.end);
}

template <bool kIsStreaming>
SPARRING_HKV_INLINE void copy_wanted(const RowOutput& output, uint32_t number, int64_t at) {
  const uint64_t bytes = output.end - output.begin;
  char* out = output.out + static_cast<uint64_t>(at) * output.stride;
  if (number == kNoRow) {
    __builtin_memset(out, 0, bytes);
  } else if (bytes < Vector::kBytes) {
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

template <bool kIsGrowing, bool kIsStreaming>
static void find_as(const IndexView& index, const RowOutput& output, const int64_t* keys,
                    int64_t n, uint8_t* found) {
  run_stages<kIsGrowing>(
      index, keys, n,
      [&](Block& block, int64_t at) SPARRING_HKV_INLINE_LAMBDA {
        for (int i = 0; i < block.n; ++i) {
          found[at + i] = compare_keys(index, block, i).bucket != nullptr;
        }
      },
      [&](const Block& block, const Block* before, int64_t at) SPARRING_HKV_INLINE_LAMBDA {
        // In turns, so that never more lines are asked for than the processor
        // can keep track of.
        for (int i = 0; i < kBlock; ++i) {
          if (i < block.n) prefetch_wanted(output, block.rows[i]);
          if (before != nullptr && i < before->n) {
            copy_wanted<kIsStreaming>(output, before->rows[i], at - kBlock + i);
          }
        }
      });
  if constexpr (kIsStreaming) Vector::fence();
}

static void find(const IndexView& index, const RowOutput& output, const int64_t* keys, int64_t n,
                 uint8_t* found) {
  const bool is_growing = index.num_fixed_buckets == 0;
  if (may_stream(output)) {
    (is_growing ? find_as<true, true> : find_as<false, true>)(index, output, keys, n, found);
  } else {
    (is_growing ? find_as<true, false> : find_as<false, false>)(index, output, keys, n, found);
  }
}

static void gather(const RowOutput& output, const uint32_t* numbers, int64_t n) {
  constexpr int64_t kAhead = 32;
  for (int64_t i = 0; i < n && i < kAhead; ++i) prefetch_wanted(output, numbers[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch_wanted(output, numbers[i + kAhead]);
    copy_wanted<false>(output, numbers[i], i);
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
