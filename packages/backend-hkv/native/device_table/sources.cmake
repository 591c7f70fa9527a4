# The device table. Each source is compiled by nvcc for GPUs, and by the host's
# compiler over the emulator.
set(device_table_sources
  native/device_table/device_erase.cc
  native/device_table/device_evict.cc
  native/device_table/device_index.cc
  native/device_table/device_insert.cc
  native/device_table/device_layout.cc
  native/device_table/device_order.cc
  native/device_table/device_rows.cc
  native/device_table/device_scan.cc
  native/device_table/device_state.cc
  native/device_table/device_storage.cc
  native/device_table/device_table.cc
  native/device_table/device_update.cc)
