# The kernels of a device. nvcc compiles each source for GPUs, and the host's compiler for the emulator.
set(device_kernel_sources
  native/device_kernels/dedup.cc
  native/device_kernels/encode.cc
  native/device_kernels/finite.cc
  native/device_kernels/initialize.cc
  native/device_kernels/route.cc
  native/device_kernels/rows.cc
  native/device_kernels/sums.cc
  native/device_kernels/update.cc)

if(TARGET sparring_hkv_emulator)
  add_library(sparring_hkv_emulated_kernels STATIC ${device_kernel_sources})
  target_include_directories(sparring_hkv_emulated_kernels PUBLIC native)
  target_link_libraries(sparring_hkv_emulated_kernels PUBLIC sparring_hkv_emulator sparring::storage_abi)
  # native/device/cuda.cmake explains -ffp-contract. -O1 halves the compile time of -O3, and -O0 is even
  # faster with sanitizers. Only tests run these kernels.
  target_compile_options(sparring_hkv_emulated_kernels PRIVATE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -ffp-contract=off)
  if(SPARRING_SANITIZE)
    target_compile_options(sparring_hkv_emulated_kernels PRIVATE -O0)
  else()
    target_compile_options(sparring_hkv_emulated_kernels PRIVATE -O1)
  endif()
endif()
if(SPARRING_HKV_HAS_CUDA)
  sparring_hkv_add_cuda_library(sparring_hkv_cuda_kernels ${device_kernel_sources})
  target_link_libraries(sparring_hkv_cuda_kernels PUBLIC sparring::storage_abi)
endif()
