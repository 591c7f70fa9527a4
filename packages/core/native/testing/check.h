// The test framework of the native tests: a test is an executable whose main() returns
// sparring::testing::run({...}), and whose tests use CHECK.
#pragma once

#include <cstdio>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace sparring::testing {

struct Test {
  const char* promise;
  void (*function)();
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

// Runs all tests, prints the names of failed ones, and returns the exit status of main.
inline int run(std::initializer_list<Test> tests) {
  int num_failed = 0;
  for (const Test& test : tests) {
    std::string reason;
    try {
      test.function();
    } catch (const std::exception& error) {
      reason = error.what();
    } catch (...) {
      reason = "threw something that is no std::exception";
    }
    num_failed += !reason.empty();
    std::printf("%s %s%s%s\n", reason.empty() ? "ok  " : "FAIL", test.promise,
                reason.empty() ? "" : ": ", reason.c_str());
    std::fflush(stdout);
  }
  return num_failed == 0 ? 0 : 1;
}

}  // namespace sparring::testing

// May only be used on the thread that runs the test, because it throws.
#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) sparring::testing::fail(__FILE__, __LINE__, #condition); \
  } while (false)

// The statement must throw an `Error`.
#define CHECK_THROWS(statement, Error)                                                    \
  do {                                                                                    \
    bool has_thrown = false;                                                              \
    try {                                                                                 \
      statement;                                                                          \
    } catch (const Error&) {                                                              \
      has_thrown = true;                                                                  \
    }                                                                                     \
    if (!has_thrown) sparring::testing::fail(__FILE__, __LINE__, "no " #Error " by " #statement); \
  } while (false)
