#include "device_scope.h"

#include <set>
#include <utility>

#include "check.h"

using namespace sparring::device;

namespace {

// Like the CUDA runtime: selecting a GPU creates a context on it, and the current GPU of a thread
// that
// has selected none is GPU 0.
struct FakeRuntime {
  inline static thread_local int chosen = 0;
  inline static thread_local int capture_mode = 0;
  inline static std::set<int> contexts;

  static int current() { return chosen; }
  static void choose(int number) {
    chosen = number;
    contexts.insert(number);
  }
  static bool has_context(int number) { return contexts.count(number) != 0; }
  static int exchange_capture_mode(int number) {
    contexts.insert(chosen);
    return std::exchange(capture_mode, number);
  }
};

using Scope = DeviceScope<FakeRuntime>;

void a_gpu_that_nobody_chose_gets_no_context() {
  FakeRuntime::chosen = 0;
  FakeRuntime::contexts = {};
  {
    const Scope outer(3);
    { const Scope inner(3); }
    CHECK(FakeRuntime::current() == 3);
  }
  CHECK(FakeRuntime::contexts == std::set<int>{3});
  { const Scope again(3); }
  CHECK(FakeRuntime::contexts == std::set<int>{3} && FakeRuntime::current() == 3);
}

void a_gpu_that_was_chosen_is_restored() {
  FakeRuntime::contexts = {};
  FakeRuntime::choose(1);
  { const Scope scope(3); }
  CHECK(FakeRuntime::current() == 1);
  CHECK((FakeRuntime::contexts == std::set<int>{1, 3}));
  // Also if another thread created its context.
  FakeRuntime::chosen = 0;
  FakeRuntime::contexts = {0};
  { const Scope scope(3); }
  CHECK(FakeRuntime::current() == 0);
}

void no_gpu_is_chosen_twice() {
  FakeRuntime::contexts = {};
  FakeRuntime::chosen = 0;
  // The calls above created a context on it.
  { const Scope scope(0); }
  CHECK(FakeRuntime::contexts == std::set<int>{0});
}

void captures_of_other_threads_stay_valid_within_it() {
  FakeRuntime::capture_mode = 1;
  {
    const Scope outer(3);
    CHECK(FakeRuntime::capture_mode == kRelaxedCapture);
    { const Scope inner(2); }
    CHECK(FakeRuntime::capture_mode == kRelaxedCapture);
  }
  CHECK(FakeRuntime::capture_mode == 1);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"a GPU that was not chosen gets no context", a_gpu_that_nobody_chose_gets_no_context},
      {"a GPU that was chosen is restored", a_gpu_that_was_chosen_is_restored},
      {"no GPU is chosen twice", no_gpu_is_chosen_twice},
      {"captures of other threads stay valid within it", captures_of_other_threads_stay_valid_within_it},
  });
}
