#include "database_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/rate_limiter.h>
#include <rocksdb/table.h>

#include <sstream>

#include "status.h"

namespace sparring::flash {
namespace {

rocksdb::CompressionType compression_of(const std::string& name) {
  if (name == "none") return rocksdb::kNoCompression;
  if (name == "snappy") return rocksdb::kSnappyCompression;
  if (name == "lz4") return rocksdb::kLZ4Compression;
  if (name == "zstd") return rocksdb::kZSTD;
  throw StatusError(SPARRING_INVALID_ARGUMENT,
                    "compression must be none, snappy, lz4 or zstd; found " + name);
}

rocksdb::WALRecoveryMode recovery_of(const std::string& name) {
  // A crash leaves a log that ends in an incomplete record. Damage before the end has other causes, and
  // ignoring it loses acknowledged writes, so it must be requested.
  if (name == "strict") return rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  if (name == "point_in_time") return rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  throw StatusError(SPARRING_INVALID_ARGUMENT,
                    "recovery must be strict or point_in_time; found " + name);
}

}  // namespace

std::string DatabaseOptions::difference(const DatabaseOptions& other) const {
  std::ostringstream text;
  const auto compare = [&](const char* name, const auto& mine, const auto& theirs) {
    if (mine == theirs) return;
    text << (text.tellp() > 0 ? ", " : "") << name << ' ' << mine << " and " << theirs;
  };
  compare("block_cache_bytes", block_cache_bytes, other.block_cache_bytes);
  compare("write_buffer_bytes", write_buffer_bytes, other.write_buffer_bytes);
  compare("block_bytes", block_bytes, other.block_bytes);
  compare("bloom_bits_per_key", bloom_bits_per_key, other.bloom_bits_per_key);
  compare("compression", compression, other.compression);
  compare("direct_io", direct_io, other.direct_io);
  compare("rate_limit_bytes_per_second", rate_limit_bytes_per_second,
          other.rate_limit_bytes_per_second);
  compare("max_open_files", max_open_files, other.max_open_files);
  compare("background_threads", background_threads, other.background_threads);
  compare("recovery", recovery, other.recovery);
  return text.str();
}

rocksdb::DBOptions database_options(const DatabaseOptions& options) {
  rocksdb::DBOptions made;
  made.create_if_missing = !options.secondary;
  made.create_missing_column_families = !options.secondary;
  // A secondary keeps all files open, so files that the other process removes stay readable.
  made.max_open_files = options.secondary ? -1 : options.max_open_files;
  made.max_background_jobs = options.background_threads;
  made.use_direct_reads = options.direct_io;
  made.use_direct_io_for_flush_and_compaction = options.direct_io;
  made.wal_recovery_mode = recovery_of(options.recovery);
  // Detects missing log files instead of losing their writes.
  made.track_and_verify_wals_in_manifest = true;
  // Writes in small steps in the background, to avoid bursts during a flush.
  made.bytes_per_sync = 1 << 20;
  made.wal_bytes_per_sync = 1 << 20;
  if (options.rate_limit_bytes_per_second > 0) {
    made.rate_limiter.reset(rocksdb::NewGenericRateLimiter(
        static_cast<int64_t>(options.rate_limit_bytes_per_second)));
  }
  return made;
}

rocksdb::ColumnFamilyOptions family_options(const DatabaseOptions& options,
                                            const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions made;
  made.write_buffer_size = options.write_buffer_bytes;
  made.compression = compression_of(options.compression);
  made.level_compaction_dynamic_level_bytes = true;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = options.block_bytes;
  // Indexes and filters are part of the cache, so its size is the configured one.
  table.cache_index_and_filter_blocks = true;
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.format_version = 5;
  if (options.bloom_bits_per_key > 0) {
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(options.bloom_bits_per_key));
    // New keys are looked up in the write buffer too.
    made.memtable_prefix_bloom_size_ratio = 0.02;
    made.memtable_whole_key_filtering = true;
  }
  made.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return made;
}

}  // namespace sparring::flash
