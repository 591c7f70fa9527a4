// Work of emulated streams that is deferred, for tests: nothing is done until somebody waits, and
// then a seed determines the order, as far as streams and events permit.
//
//   stream a   kernel │ record e │ copy            enqueue: append to the queue
//   stream b   kernel │ after e  │ kernel          wait: run the first work of random streams until
//                                                  the stream is empty
//
// So if one stream reads data that another writes, without an event between them, it reads the old
// data with some seeds; a read of results without waiting always does.
#ifndef SPARRING_HKV_DEVICE_LATE_WORK_H_
#define SPARRING_HKV_DEVICE_LATE_WORK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "memory.h"

namespace sparring::device {

// Threads: all functions are thread-safe. Work must not call them.
class LateWork {
 public:
  using Work = std::function<void()>;

  explicit LateWork(uint64_t seed) : random_(seed) {}

  void put(Stream stream, Work work);
  void record(Event event, Stream stream);
  void order_after(Event event, Stream stream);
  // The stream was destroyed: its work is still done, and its address may be reused.
  void forget_stream(Stream stream);
  void forget_event(Event event);

  // Throw the exceptions of work, and std::logic_error if streams wait for each other.
  void wait(Stream stream);
  void wait_event(Event event);
  // May run some work.
  bool is_done(Event event);
  void finish();

 private:
  struct Point {
    bool is_reached = false;
  };
  struct Piece {
    Work work;
    std::shared_ptr<Point> after;    // may be NULL
    std::shared_ptr<Point> reaches;  // may be NULL
  };
  using Line = std::deque<Piece>;

  void put_locked(Stream stream, Piece piece);
  // Runs the first work of a random queue; returns false if there is none.
  bool step();

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::map<Stream, std::shared_ptr<Line>> lines_;
  std::vector<std::shared_ptr<Line>> all_;  // of existing and destroyed streams; none is empty
  std::map<Event, std::shared_ptr<Point>> points_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LATE_WORK_H_
