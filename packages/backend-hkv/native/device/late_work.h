// The work of emulated streams, for tests that want it late: nothing happens before somebody
// waits, and then what streams and events leave open is decided by a seed.
//
//   stream a   kernel │ record e │ copy            put: behind what is there
//   stream b   kernel │ after e  │ kernel          wait: fronts of streams, drawn one by one, until
//                                                  the stream is empty
//
// So a read on one stream of data that another one writes, without an event between them, finds
// the old data for some seed; a read of results without waiting always does.
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

// Threads: everything from any thread. Work must not call this.
class LateWork {
 public:
  using Work = std::function<void()>;

  explicit LateWork(uint64_t seed) : random_(seed) {}

  void put(Stream stream, Work work);
  void record(Event event, Stream stream);
  void order_after(Event event, Stream stream);
  // The stream was given back: what is on it still happens, and its address may come again.
  void forget_stream(Stream stream);
  void forget_event(Event event);

  // Throw what work throws; std::logic_error where streams wait for one another.
  void wait(Stream stream);
  void wait_event(Event event);
  // Some work may happen.
  bool is_done(Event event);
  void finish();

 private:
  struct Point {
    bool is_reached = false;
  };
  struct Piece {
    Work work;
    std::shared_ptr<Point> after;    // NULL: nothing
    std::shared_ptr<Point> reaches;  // NULL: nothing
  };
  using Line = std::deque<Piece>;

  void put_locked(Stream stream, Piece piece);
  // Does the front of a line that is drawn; false if there is none.
  bool step();

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::map<Stream, std::shared_ptr<Line>> lines_;
  std::vector<std::shared_ptr<Line>> all_;  // given back or not; none is empty
  std::map<Event, std::shared_ptr<Point>> points_;
};

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_LATE_WORK_H_
