// All that the C++ tests need of a test framework. A test program is a main()
// that calls test functions; the first CHECK that fails ends it.
#ifndef SPARRING_ROCKSDB_TESTING_CHECK_H_
#define SPARRING_ROCKSDB_TESTING_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);  \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

#define RUN(test)                     \
  do {                                \
    std::printf("%s\n", #test);       \
    std::fflush(stdout);              \
    test();                           \
  } while (false)

#endif  // SPARRING_ROCKSDB_TESTING_CHECK_H_
