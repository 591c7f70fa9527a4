#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace sparring::hkv {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kChunkTarget = uint64_t{64} << 20;

uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The largest power of two of elements that fits into the target size, at least one.
uint32_t shift_for(uint64_t element_bytes) {
  uint32_t shift = 0;
  while (shift < 24 && (element_bytes << (shift + 1)) <= kChunkTarget) ++shift;
  return shift;
}

uint64_t bytes_of_chunk(uint64_t element_bytes, uint64_t limit, uint32_t shift, uint64_t chunk) {
  const uint64_t first = chunk << shift;
  const uint64_t elements = std::min(limit - first, uint64_t{1} << shift);
  return round_up(elements * element_bytes, kPage);
}

char* reserve(uint64_t bytes) {
  const uint64_t padded = bytes + kHugePage;
  void* start = mmap(nullptr, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(start);
  const uint64_t skipped = round_up(address, kHugePage) - address;
  char* base = static_cast<char*>(start) + skipped;
  if (skipped > 0) munmap(start, skipped);
  if (kHugePage > skipped) munmap(base + bytes, kHugePage - skipped);
  return base;
}

// Only a hint, so failure is ignored.
void advise_huge_pages([[maybe_unused]] char* base, [[maybe_unused]] uint64_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(base, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace

Arena::Arena(uint64_t element_bytes, uint64_t limit)
    : element_bytes_(element_bytes),
      limit_(limit),
      shift_(shift_for(element_bytes)),
      mask_((uint32_t{1} << shift_) - 1) {}

Arena::~Arena() {
  for (uint64_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    munmap(chunks_[chunk], chunk_bytes(chunk));
  }
}

uint64_t Arena::chunk_bytes(uint64_t chunk) const {
  return bytes_of_chunk(element_bytes_, limit_, shift_, chunk);
}

void Arena::add_chunk() {
  if (chunks_.size() == chunks_.capacity()) {
    const uint64_t most = (limit_ + mask_) >> shift_;
    chunks_.reserve(std::min<uint64_t>(most, std::max<uint64_t>(4, 2 * chunks_.size())));
  }
  const uint64_t bytes = chunk_bytes(chunks_.size());
  chunks_.push_back(reserve(bytes));
  committed_in_last_ = 0;
  if (committed_bytes_ >= kHugePage) advise_huge_pages(chunks_.back(), bytes);
}

void Arena::commit_last_chunk(uint64_t bytes) {
  if (bytes <= committed_in_last_) return;
  char* base = chunks_.back();
  const uint64_t whole = chunk_bytes(chunks_.size() - 1);
  uint64_t target = committed_bytes_ < kHugePage
                        ? std::max(round_up(bytes, kPage),
                                   std::min(committed_in_last_ * 2, kHugePage))
                        : round_up(bytes, kHugePage);
  target = std::min(target, whole);
  char* from = base + committed_in_last_;
  if (mprotect(from, target - committed_in_last_, PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  // A small arena used small pages so far, because it may not grow any further.
  const uint64_t grown = committed_bytes_ + (target - committed_in_last_);
  if (committed_bytes_ < kHugePage && grown >= kHugePage) advise_huge_pages(base, whole);
  committed_bytes_ = grown;
  committed_in_last_ = target;
}

void Arena::commit(uint64_t count) {
  if (count == 0) return;
  const uint64_t last = (count - 1) >> shift_;
  while (chunks_.size() <= last) {
    if (!chunks_.empty()) commit_last_chunk(chunk_bytes(chunks_.size() - 1));
    add_chunk();
  }
  if (last + 1 == chunks_.size()) {
    commit_last_chunk((((count - 1) & mask_) + 1) * element_bytes_);
  }
}

uint64_t Arena::memory_bytes() const {
  return committed_bytes_ + chunks_.capacity() * sizeof(char*);
}

uint64_t Arena::bytes_for(uint64_t element_bytes, uint64_t limit) {
  const uint32_t shift = shift_for(element_bytes);
  const uint64_t chunks = (limit + (uint64_t{1} << shift) - 1) >> shift;
  const uint64_t whole = bytes_of_chunk(element_bytes, limit, shift, 0);
  const uint64_t tail = bytes_of_chunk(element_bytes, limit, shift, chunks - 1);
  return (chunks - 1) * whole + tail + chunks * sizeof(char*);
}

}  // namespace sparring::hkv
