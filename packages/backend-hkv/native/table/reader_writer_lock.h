// Many readers or one writer. A stream of readers cannot starve a writer: all
// threads pass a turnstile first, and a waiting writer holds it.
// Implements the parts of the named requirements SharedMutex that std::shared_lock
// and std::unique_lock use here.
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
