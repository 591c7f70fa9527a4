# Looks for nvcc. Sets SPARRING_HKV_HAS_CUDA, and where it is ON defines
# sparring_hkv_cuda: what CUDA sources are compiled and linked with.
set(SPARRING_HKV_HAS_CUDA OFF)
function(sparring_hkv_leave_out_cuda reason)
  if(SPARRING_HKV_CUDA STREQUAL "REQUIRED")
    message(FATAL_ERROR "sparring_hkv: ${reason}, and SPARRING_HKV_CUDA is REQUIRED: install nvcc of "
                        "CUDA 12.4 to 13.x, or name it by CUDACXX (packages/backend-hkv/find_nvcc.py "
                        "brings one from PyPI)")
  endif()
  message(STATUS "sparring_hkv: ${reason}; GPUs are left out")
endfunction()
if(SPARRING_HKV_CUDA AND NOT SPARRING_SANITIZE)
  include(CheckLanguage)
  # Real code for A100 and H100 class GPUs; PTX of the latter for what comes.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  # A build folder that is kept asks again: there may be one now.
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    sparring_hkv_leave_out_cuda("no nvcc was found")
  else()
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4 OR CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 14)
      sparring_hkv_leave_out_cuda("nvcc ${CMAKE_CUDA_COMPILER_VERSION} is outside 12.4 to 13.x")
    else()
      set(SPARRING_HKV_HAS_CUDA ON)
    endif()
  endif()
endif()

if(SPARRING_HKV_HAS_CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)

  # A library of sources that run kernels. They are the sources that the emulator's
  # library compiles too, here included by a file of a line that nvcc takes for CUDA.
  function(sparring_hkv_add_cuda_library name)
    set(cuda_sources)
    foreach(source ${ARGN})
      string(REGEX REPLACE "\\.cc$" ".cu" cuda_source ${CMAKE_CURRENT_BINARY_DIR}/cuda/${source})
      file(CONFIGURE OUTPUT ${cuda_source}
           CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      list(APPEND cuda_sources ${cuda_source})
    endforeach()
    add_library(${name} STATIC ${cuda_sources})
    target_include_directories(${name} PUBLIC native)
    target_link_libraries(${name} PUBLIC sparring_hkv_cuda)
    # A product and a sum stay two roundings, as in the CPU's kernels: results
    # that must be equal are.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
      -fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off -Wno-deprecated-gpu-targets>)
  endfunction()

  add_library(sparring_hkv_cuda STATIC
    native/device/cuda_device.cc native/device/cuda_stream.cc native/device/host_writes.cc
    native/device/launch_batch.cc)
  target_include_directories(sparring_hkv_cuda PUBLIC native native/device)
  target_link_libraries(sparring_hkv_cuda PUBLIC CUDA::cudart_static Threads::Threads)
  target_compile_options(sparring_hkv_cuda PRIVATE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
endif()
