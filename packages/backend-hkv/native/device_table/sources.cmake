# The device table. nvcc compiles each source for GPUs, and the host's compiler for the emulator.
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
  native/device_table/device_table.cc
  native/device_table/device_tables.cc
  native/device_table/device_update.cc)

# These sources launch no kernels and are compiled as C++.
set(device_border_sources
  native/device/read_back.cc
  native/device/stream_table.cc
  native/device_table/device_storage.cc)
if(TARGET sparring_hkv_emulator)
  add_library(sparring_hkv_emulated_table STATIC
    ${device_table_sources} ${device_border_sources})
  target_include_directories(sparring_hkv_emulated_table PUBLIC native native/device_table)
  target_link_libraries(sparring_hkv_emulated_table PUBLIC sparring_hkv_emulator sparring_hkv_table)
  # -O1 for the reason that native/device_kernels/sources.cmake states.
  target_compile_options(sparring_hkv_emulated_table PRIVATE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
  if(NOT SPARRING_SANITIZE)
    target_compile_options(sparring_hkv_emulated_table PRIVATE -O1)
  endif()
endif()
if(SPARRING_HKV_HAS_CUDA)
  sparring_hkv_add_cuda_library(sparring_hkv_cuda_table ${device_table_sources})
  target_sources(sparring_hkv_cuda_table PRIVATE ${device_border_sources})
  target_include_directories(sparring_hkv_cuda_table PUBLIC native/device_table)
  target_link_libraries(sparring_hkv_cuda_table PUBLIC sparring_hkv_table)
endif()
