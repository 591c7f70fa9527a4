// Tells ThreadSanitizer which accesses gRPC orders: it is not instrumented, so its synchronization is
// invisible. Without the sanitizer, nothing here has an effect.
#ifndef SPARRING_SERVE_SERVER_HANDOFF_H_
#define SPARRING_SERVE_SERVER_HANDOFF_H_

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace sparring::serve {

// While in scope, `object` is passed to gRPC, whose headers may still read it when another thread has
// received it, and deleted it.
class Handoff {
 public:
#ifdef __SANITIZE_THREAD__
  explicit Handoff(void* object) {
    __tsan_release(object);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~Handoff() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
  explicit Handoff(void*) {}
#endif
};

// gRPC has passed `object` to this thread.
inline void receive([[maybe_unused]] void* object) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(object);
#endif
}

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_HANDOFF_H_
