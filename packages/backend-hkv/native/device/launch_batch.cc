#include "launch_batch.h"

#include <utility>

namespace sparring::device {
namespace {

constexpr size_t argument_alignment = 16;
size_t aligned(size_t num_bytes) {
  return (num_bytes + argument_alignment - 1) / argument_alignment * argument_alignment;
}

// Restores the batch, even if a launch throws.
class Suspended {
 public:
  explicit Suspended(LaunchBatch*& current) : current_(current), before_(std::exchange(current, nullptr)) {}
  ~Suspended() { current_ = before_; }
  Suspended(const Suspended&) = delete;
  Suspended& operator=(const Suspended&) = delete;

 private:
  LaunchBatch*& current_;
  LaunchBatch* before_;
};

}  // namespace

thread_local LaunchBatch* LaunchBatch::current_ = nullptr;

LaunchBatch::LaunchBatch(Device& device, Stream stream) : device_(device), stream_(stream) {
  current_ = this;
}

LaunchBatch::~LaunchBatch() {
  current_ = nullptr;
  free_all();
}

LaunchBatch* LaunchBatch::current(const Device& device, Stream stream) {
  const bool is_its = current_ != nullptr && &current_->device_ == &device &&
                      current_->stream_ == stream && !current_->lines_.empty();
  return is_its ? current_ : nullptr;
}

void LaunchBatch::flush_current() {
  if (current_ != nullptr) current_->flush();
}

bool LaunchBatch::takes_free(Device& device, void* memory, size_t num_bytes, Stream stream,
                             Lifetime lifetime) {
  if (current_ == nullptr || &current_->device_ != &device) return false;
  current_->freed_.push_back({memory, num_bytes, stream, lifetime});
  return true;
}

void LaunchBatch::add(const Kind& kind, const Shape& shape, const void* kernel) {
  const auto* const bytes = static_cast<const std::byte*>(kernel);
  lines_.back().push_back({&kind, shape, {bytes, bytes + kind.kernel_bytes}});
}

void LaunchBatch::flush() {
  const Suspended suspended(current_);
  const std::vector<Group> groups = take_groups();
  try {
    launch_groups(groups);
  } catch (...) {
    free_all();
    throw;
  }
  free_all();
}

auto LaunchBatch::take_groups() -> std::vector<Group> {
  std::vector<Group> groups;
  for (;;) {
    const Kind* kind = nullptr;
    Group group;
    for (std::deque<Entry>& line : lines_) {
      if (line.empty()) continue;
      if (kind == nullptr) kind = line.front().kind;
      if (line.front().kind != kind) continue;
      group.push_back(std::move(line.front()));
      line.pop_front();
    }
    if (group.empty()) return groups;
    groups.push_back(std::move(group));
  }
}

void LaunchBatch::launch_groups(const std::vector<Group>& groups) {
  // The kernels of all groups and their first blocks, in one copy.
  std::vector<std::byte> arguments;
  const auto append = [&](const void* from, size_t num_bytes) {
    const size_t at = arguments.size();
    arguments.resize(at + num_bytes);
    std::memcpy(arguments.data() + at, from, num_bytes);
  };
  struct Places {
    size_t kernels;
    size_t first_blocks;
    uint32_t num_blocks;
  };
  std::vector<Places> places;
  for (const Group& group : groups) {
    Places at{arguments.size(), 0, 0};
    if (group.size() > 1) {
      std::vector<uint32_t> first_blocks;
      for (const Entry& entry : group) {
        append(entry.kernel.data(), entry.kernel.size());
        first_blocks.push_back(at.num_blocks);
        at.num_blocks += entry.shape.num_blocks;
      }
      first_blocks.push_back(at.num_blocks);
      at.first_blocks = aligned(arguments.size());
      arguments.resize(at.first_blocks);
      append(first_blocks.data(), first_blocks.size() * sizeof(uint32_t));
      arguments.resize(aligned(arguments.size()));
    }
    places.push_back(at);
  }
  const Buffer memory(device_, arguments.size(), stream_);
  if (!arguments.empty())
    device_.write(memory.as<void>(), arguments.data(), arguments.size(), stream_);
  for (size_t i = 0; i < groups.size(); ++i) {
    const Group& group = groups[i];
    if (group.size() == 1) {
      group[0].kind->launch_one(device_, stream_, group[0].shape, group[0].kernel.data());
    } else {
      const char* const base = memory.as<char>();
      group[0].kind->launch_all(
          device_, stream_, places[i].num_blocks, base + places[i].kernels,
          reinterpret_cast<const uint32_t*>(base + places[i].first_blocks),
          static_cast<uint32_t>(group.size()));
    }
  }
}

void LaunchBatch::free_all() {
  const Suspended suspended(current_);
  for (const Freed& each : std::exchange(freed_, {}))
    device_.free(each.memory, each.num_bytes, each.stream, each.lifetime);
}

}  // namespace sparring::device
