// Calls of several tables of one device in one set of launches, with one wait: see
// device/launch_batch.h. Work for new rows of a table may be launched separately.
//
// The tables are locked together, in the order of their addresses, until the last of them is done.
// Their calls use one stream.
#ifndef SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLES_H_
#define SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLES_H_

#include <vector>

#include "device/read_back.h"
#include "device_table.h"

namespace sparring::hkv {

struct TableVisit {
  DeviceTable* table;
  SparringVisit* call;
};
// Like DeviceTable::visit; a table may occur several times. Does not wait.
void visit_all(const std::vector<TableVisit>& visits);

struct TableUpdate {
  DeviceTable* table;
  SparringUpdate* call;
};
// Like DeviceTable::update; each table once. If *num_refused (1) uint64, device, is not 0 when the
// stream reaches it, it changes nothing and returns false; NULL: not checked.
//
// Tables are changed one after another. If a call throws, the tables before it are changed, and it
// and those after it are not: `num_done` is the number of changed tables.
bool update_all(device::ReadBack& read_back, const std::vector<TableUpdate>& updates,
                const uint64_t* num_refused, size_t* num_done);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLES_H_
