// Converts status codes of RocksDB to the one exception type of this library. The C ABI
// converts it to a status and a message, and the Python module to an error of
// sparring.errors.
#ifndef SPARRING_ROCKSDB_TABLE_STATUS_H_
#define SPARRING_ROCKSDB_TABLE_STATUS_H_

#include <rocksdb/status.h>

#include <string>

#include "sparring/storage_border.h"

namespace sparring::flash {

using border::StatusError;

// Throws unless `status` is OK: SPARRING_CORRUPT, SPARRING_IO and so on, with the
// operation, RocksDB's error and a fix. `asked` is the operation, for example
// "find in table 'item' of /data/rows".
void check(const rocksdb::Status& status, const std::string& asked);

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_STATUS_H_
