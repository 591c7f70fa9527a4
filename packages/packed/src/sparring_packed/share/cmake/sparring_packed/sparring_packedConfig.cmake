# find_package(sparring_packed CONFIG) defines `sparring::packed`: libsparring_packed.so and its
# header. A program requires nothing else, not even Python.
get_filename_component(_sparring_packed_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET sparring::packed)
  add_library(sparring::packed SHARED IMPORTED)
  set_target_properties(sparring::packed PROPERTIES
    IMPORTED_LOCATION "${_sparring_packed_root}/libsparring_packed.so"
    IMPORTED_NO_SONAME TRUE
    INTERFACE_INCLUDE_DIRECTORIES "${_sparring_packed_root}/include")
endif()
set(sparring_packed_FOUND TRUE)
unset(_sparring_packed_root)
