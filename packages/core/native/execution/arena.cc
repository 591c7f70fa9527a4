#include "execution/arena.h"

// Headers before 2023.2 offer leave_policy only under this name.
#define TBB_PREVIEW_PARALLEL_PHASE 1
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/task_arena.h>

#include <new>
#include <optional>

// libtbb is not built with ThreadSanitizer, which therefore does not know that `enqueue`
// happens before `on_worker`. These annotations declare it. They also suppress reports about
// oneTBB's own objects, in its inline functions or through memmove and similar functions.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "race_top:oneapi/tbb/\ncalled_from_lib:libtbb.so\n";
}
#define SPARRING_HAPPENS_BEFORE(object) __tsan_release(object)
#define SPARRING_HAPPENS_AFTER(object) __tsan_acquire(object)
#else
#define SPARRING_HAPPENS_BEFORE(object)
#define SPARRING_HAPPENS_AFTER(object)
#endif

namespace sparring::execution {
namespace {

// oneTBB counts the calling thread as one of the allowed threads. But a thread that
// submits work and then waits for the network does no work of the pool, so all `threads`
// must be workers. The limit applies to the whole process, so it is only raised if it is
// too low.
std::optional<tbb::global_control> allow(int threads) {
  constexpr auto limit = tbb::global_control::max_allowed_parallelism;
  const auto wanted = static_cast<size_t>(threads) + 1;
  if (tbb::global_control::active_value(limit) >= wanted) return std::nullopt;
  return std::optional<tbb::global_control>(std::in_place, limit, wanted);
}

struct Enqueued {
  // Reads members of a task object of oneTBB: see the note on ThreadSanitizer.
  __attribute__((no_sanitize("thread"))) void operator()() const {
    SPARRING_HAPPENS_AFTER(task);
    on_worker(*task);
  }
  PoolTask* task;
  void (*on_worker)(PoolTask&);
};

}  // namespace

struct Arena::Parts {
  explicit Parts(int threads)
      : limit(allow(threads)),
        // No slot is reserved for callers, because they work outside of the arena; see
        // parallel_for.h. Workers that leave early free their core for the threads of
        // the framework.
        arena(threads, 0, tbb::task_arena::priority::normal,
              tbb::task_arena::leave_policy::fast) {}

  std::optional<tbb::global_control> limit;
  tbb::task_arena arena;
};

Arena::Arena(int threads) : parts_(std::make_unique<Parts>(threads)) {
  parts_->arena.initialize();
}

Arena::~Arena() = default;

void Arena::enqueue(PoolTask& task, void (*on_worker)(PoolTask&)) {
  SPARRING_HAPPENS_BEFORE(&task);
  parts_->arena.enqueue(Enqueued{&task, on_worker});
}

bool Arena::end_scheduler() {
  // Attaching starts oneTBB if it is not running, and finalize then ends only that instance. This
  // is the only way to detect whether other code is using oneTBB.
  tbb::task_scheduler_handle scheduler{tbb::attach{}};
  return tbb::finalize(scheduler, std::nothrow);
}

}  // namespace sparring::execution
