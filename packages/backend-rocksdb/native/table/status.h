// What RocksDB answers as the one exception type inside this library; the C border
// turns it into a status and a message, the Python module into an error of
// sparring.errors.
#ifndef SPARRING_ROCKSDB_TABLE_STATUS_H_
#define SPARRING_ROCKSDB_TABLE_STATUS_H_

#include <rocksdb/status.h>

#include <string>

#include "sparring/storage_border.h"

namespace sparring::flash {

using border::StatusError;

// Throws unless `status` is OK: SPARRING_CORRUPT, SPARRING_IO and so on, with
// what was asked, what RocksDB found and what to do. `asked` is like
// "find in table 'item' of /data/rows".
void check(const rocksdb::Status& status, const std::string& asked);

}  // namespace sparring::flash

#endif  // SPARRING_ROCKSDB_TABLE_STATUS_H_
