# find_package(sparring CONFIG) defines `sparring::storage_abi`: the include directory of storage_abi.h
# and, for C++20, storage_border.h. A native backend requires only these headers and links no library of core.
get_filename_component(_sparring_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET sparring::storage_abi)
  add_library(sparring::storage_abi INTERFACE IMPORTED)
  set_target_properties(sparring::storage_abi PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_sparring_root}/include")
endif()
set(sparring_FOUND TRUE)
unset(_sparring_root)
