#include "late_work.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace sparring::device {

void LateWork::put_locked(Stream stream, Piece piece) {
  std::shared_ptr<Line>& line = lines_[stream];
  if (line == nullptr) line = std::make_shared<Line>();
  if (line->empty()) all_.push_back(line);
  line->push_back(std::move(piece));
}

void LateWork::put(Stream stream, Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  put_locked(stream, {std::move(work), nullptr, nullptr});
}

void LateWork::record(Event event, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto point = std::make_shared<Point>();
  points_[event] = point;
  put_locked(stream, {{}, nullptr, point});
}

void LateWork::order_after(Event event, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = points_.find(event);
  if (found != points_.end()) put_locked(stream, {{}, found->second, nullptr});
}

void LateWork::forget_stream(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lines_.erase(stream);
}

void LateWork::forget_event(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  points_.erase(event);
}

bool LateWork::step() {
  std::vector<size_t> ready;
  for (size_t i = 0; i < all_.size(); ++i) {
    const Piece& front = all_[i]->front();
    if (front.after == nullptr || front.after->is_reached) ready.push_back(i);
  }
  if (ready.empty()) return false;
  const size_t drawn = ready[random_() % ready.size()];
  const std::shared_ptr<Line> line = all_[drawn];
  const Piece piece = std::move(line->front());
  line->pop_front();
  if (line->empty()) all_.erase(all_.begin() + static_cast<ptrdiff_t>(drawn));
  if (piece.work) piece.work();
  if (piece.reaches != nullptr) piece.reaches->is_reached = true;
  return true;
}

void LateWork::wait(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = lines_.find(stream);
  if (found == lines_.end()) return;
  while (!found->second->empty()) {
    if (!step()) throw std::logic_error("late work: the streams wait for each other");
  }
}

void LateWork::wait_event(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = points_.find(event);
  while (found != points_.end() && !found->second->is_reached) {
    if (!step()) throw std::logic_error("late work: the streams wait for each other");
  }
}

bool LateWork::is_done(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step();
  const auto found = points_.find(event);
  return found == points_.end() || found->second->is_reached;
}

void LateWork::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (step()) {
  }
  if (!all_.empty()) throw std::logic_error("late work: the streams wait for each other");
}

}  // namespace sparring::device
