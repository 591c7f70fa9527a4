// Converts the options of a database to options of RocksDB.
#ifndef SPARRING_ROCKSDB_TABLE_DATABASE_OPTIONS_H_
#define SPARRING_ROCKSDB_TABLE_DATABASE_OPTIONS_H_

#include <rocksdb/options.h>

#include <memory>

#include "database.h"

namespace sparring::flash {

// Throws StatusError (SPARRING_INVALID_ARGUMENT) for an unknown compression or
// recovery mode.
rocksdb::DBOptions database_options(const DatabaseOptions& options);
rocksdb::ColumnFamilyOptions family_options(const DatabaseOptions& options,
                                            const std::shared_ptr<rocksdb::Cache>& cache);

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_DATABASE_OPTIONS_H_
