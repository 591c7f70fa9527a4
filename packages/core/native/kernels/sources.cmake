# Compiler flags of individual sources of native/kernels. The CMakeLists.txt that lists these sources
# includes this file, because source properties apply only to their directory scope.

set(_levels portable avx2 avx512)

# All levels must compute identical bits. By default, GCC fuses a multiplication and an addition if the
# CPU supports it, which rounds once instead of twice. Code that must round once calls multiply_add of
# level_vectors.inc explicitly on all levels.
set(_portable_options -ffp-contract=off)
set(_avx2_options -ffp-contract=off)
set(_avx512_options -ffp-contract=off)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND _avx2_options -mavx2 -mfma)
  list(APPEND _avx512_options -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl)
endif()

foreach(_level IN LISTS _levels)
  set_source_files_properties(
    "${CMAKE_CURRENT_LIST_DIR}/level_${_level}.cc"
    PROPERTIES COMPILE_OPTIONS "${_${_level}_options}")
  unset(_${_level}_options)
endforeach()
unset(_level)
unset(_levels)
