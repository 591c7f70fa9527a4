# Searches for nvcc and sets SPARRING_HKV_HAS_CUDA. If it is ON, defines the library sparring_hkv_cuda
# and sparring_hkv_add_cuda_library, which adds a library of CUDA sources.
set(SPARRING_HKV_HAS_CUDA OFF)
function(sparring_hkv_leave_out_cuda reason)
  if(SPARRING_HKV_CUDA STREQUAL "REQUIRED")
    message(FATAL_ERROR "sparring_hkv: ${reason}, and SPARRING_HKV_CUDA is REQUIRED: install nvcc of "
                        "CUDA 12.4 to 13.x, or set CUDACXX to its path (packages/backend-hkv/find_nvcc.py "
                        "installs one from PyPI)")
  endif()
  message(STATUS "sparring_hkv: ${reason}; building without support for GPUs")
endfunction()
if(SPARRING_HKV_CUDA AND NOT SPARRING_SANITIZE)
  include(CheckLanguage)
  # Machine code for GPUs like A100 and H100, and PTX of the latter for newer GPUs.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  # In an existing build folder, search again: nvcc may have been installed since the last time.
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

  # Adds a library of sources that run kernels. The emulator's library compiles the same sources. Here,
  # a generated .cu file includes each of them, so that nvcc compiles it as CUDA.
  function(sparring_hkv_add_cuda_library name)
    set(cuda_sources)
    set(all_of_them)
    foreach(source ${ARGN})
      string(REGEX REPLACE "\\.cc$" ".cu" cuda_source ${CMAKE_CURRENT_BINARY_DIR}/cuda/${source})
      set(content "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      file(CONFIGURE OUTPUT ${cuda_source} CONTENT "${content}")
      list(APPEND cuda_sources ${cuda_source})
      string(APPEND all_of_them "${content}")
    endforeach()
    if(SPARRING_HKV_CUDA_UNITY)
      set(cuda_sources ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.cu)
      file(CONFIGURE OUTPUT ${cuda_sources} CONTENT "${all_of_them}")
    endif()
    add_library(${name} STATIC ${cuda_sources})
    target_include_directories(${name} PUBLIC native)
    target_link_libraries(${name} PUBLIC sparring_hkv_cuda)
    # A multiplication and an addition round separately, as in the kernels of the CPU, so that results
    # are identical.
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
