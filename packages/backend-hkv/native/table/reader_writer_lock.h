// Many readers or one writer, and a stream of readers cannot starve a writer:
// everybody passes a turnstile first, and a waiting writer stays in it.
// Meets the named requirements SharedMutex of std::shared_lock and
// std::unique_lock as far as those are used here.
#ifndef SPARRING_HKV_TABLE_READER_WRITER_LOCK_H_
#define SPARRING_HKV_TABLE_READER_WRITER_LOCK_H_

#include <mutex>
#include <shared_mutex>

namespace sparring::hkv {

class ReaderWriterLock {
 public:
  void lock_shared() {
    std::lock_guard<std::mutex> pass(turnstile_);
    room_.lock_shared();
  }
  void unlock_shared() { room_.unlock_shared(); }

  void lock() {
    std::lock_guard<std::mutex> pass(turnstile_);
    room_.lock();
  }
  void unlock() { room_.unlock(); }

 private:
  std::mutex turnstile_;
  std::shared_mutex room_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_READER_WRITER_LOCK_H_
