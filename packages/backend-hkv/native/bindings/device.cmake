# The device modules: the same bindings for CUDA and for the emulator.
function(sparring_hkv_add_device_module name)
  pybind11_add_module(${name} NO_EXTRAS
    native/bindings/device_arrays.cc
    native/bindings/device_callbacks.cc
    native/bindings/device_fused.cc
    native/bindings/device_kernels.cc
    native/bindings/device_module.cc
    native/bindings/device_table.cc
    native/bindings/reclaimers.cc)
  # Compiled as one file, because most of the compile time is spent on pybind11's headers.
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_include_directories(${name} PRIVATE native)
  target_compile_options(${name} PRIVATE -Wall -Wextra -O1)
  target_link_options(${name} PRIVATE $<$<CONFIG:Release>:-s>)
  target_compile_definitions(${name} PRIVATE
    SPARRING_HKV_VERSION="${SKBUILD_PROJECT_VERSION}" SPARRING_HKV_MODULE=${name})
  target_link_libraries(${name} PRIVATE ${ARGN})
  install(TARGETS ${name} DESTINATION sparring_hkv)
endfunction()

if(SPARRING_HKV_EMULATED)
  sparring_hkv_add_device_module(_emulated
    sparring_hkv_emulated_kernels sparring_hkv_emulated_table)
  target_compile_definitions(_emulated PRIVATE SPARRING_HKV_IS_EMULATED=1)
endif()
if(SPARRING_HKV_HAS_CUDA)
  sparring_hkv_add_device_module(_cuda sparring_hkv_cuda_kernels sparring_hkv_cuda_table)
  target_compile_definitions(_cuda PRIVATE SPARRING_HKV_IS_EMULATED=0)
endif()
