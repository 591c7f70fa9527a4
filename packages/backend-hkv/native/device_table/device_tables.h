// Calls of several tables of one device in one set of launches, with one wait: see
// device/launch_batch.h. What a table does for new rows it may do alone.
//
// The tables are locked together, in the order of their addresses, and stay so until the last of
// them is done. Their calls have one stream.
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
// As DeviceTable::visit; a table may occur several times. Waits for nothing.
void visit_all(const std::vector<TableVisit>& visits);

struct TableUpdate {
  DeviceTable* table;
  SparringUpdate* call;
};
// As DeviceTable::update; each table once. Where *num_refused (1) uint64, device, is not 0 when the
// stream comes there, it changes nothing and returns false; NULL: nothing to look at.
//
// Tables are changed one after the other. What a call throws that could not be done leaves those
// before it changed, and that one and those behind it not: `num_done` is how many were.
bool update_all(device::ReadBack& read_back, const std::vector<TableUpdate>& updates,
                const uint64_t* num_refused, size_t* num_done);

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_DEVICE_TABLE_DEVICE_TABLES_H_
