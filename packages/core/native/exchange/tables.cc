#include "exchange/tables.h"

#include <cstring>

#include "exchange/place.h"
#include "kernels/parallel.h"

namespace sparring::exchange {
namespace {

// Number of keys per visit.
constexpr int64_t kVisitedKeys = 4096;

// Copies visited rows to their places.
struct Placer {
  const FindPart& part;
  size_t row_bytes;

  static int32_t show(void* context, int64_t begin, int64_t count, const void* const* rows) {
    const auto& self = *static_cast<const Placer*>(context);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t place = self.part.places[begin + i];
      std::byte* const to = self.part.rows + static_cast<size_t>(place) * self.row_bytes;
      self.part.found[place] = rows[i] != nullptr;
      if (rows[i] != nullptr) {
        std::memcpy(to, rows[i], self.row_bytes);
      } else {
        std::memset(to, 0, self.row_bytes);
      }
    }
    return 0;
  }
};

void find(const FindPart& part) {
  const uint64_t row_bytes = part.columns.end - part.columns.begin;
  if (part.count == 0) return;
  if (part.storage == nullptr) {
    const void* const none = nullptr;
    Placer placer{part, row_bytes};
    for (int64_t i = 0; part.places != nullptr && i < part.count; ++i) {
      Placer::show(&placer, i, 1, &none);
    }
    if (part.places == nullptr) {
      std::memset(part.rows, 0, static_cast<size_t>(part.count) * row_bytes);
      std::memset(part.found, 0, static_cast<size_t>(part.count));
    }
  } else if (part.places == nullptr) {
    SparringFind arguments{};
    arguments.count = part.count;
    arguments.keys = part.keys;
    arguments.columns = part.columns;
    arguments.rows = part.rows;
    arguments.row_stride = row_bytes;
    arguments.found = part.found;
    part.storage->find(arguments);
  } else {
    Placer placer{part, row_bytes};
    SparringVisit visit{};
    visit.count = part.count;
    visit.keys = part.keys;
    visit.columns = part.columns;
    visit.show = &Placer::show;
    visit.context = &placer;
    part.storage->visit(visit);
  }
}

}  // namespace

void find_rows(const SparringExecutor* executor, const std::vector<FindPart>& parts) {
  std::vector<FindPart> pieces;
  for (FindPart part : parts) {
    // A find uses several threads, but a visit does not.
    for (; part.places != nullptr && part.count > kVisitedKeys; part.count -= kVisitedKeys) {
      pieces.push_back(part);
      pieces.back().count = kVisitedKeys;
      part.keys += kVisitedKeys;
      part.places += kVisitedKeys;
    }
    pieces.push_back(part);
  }
  const auto row_bytes = [](const FindPart& part) {
    return static_cast<int64_t>(part.columns.end - part.columns.begin);
  };
  for_each_part(executor, pieces, row_bytes, find);
}

void place_rows(const SparringExecutor* executor, const std::vector<PlacePart>& parts) {
  const auto row_bytes = [](const PlacePart& part) { return part.row_bytes; };
  for_each_part(executor, parts, row_bytes, [&](const PlacePart& part) {
    place_rows(executor, part.rows, part.places, part.count, part.row_bytes, part.out);
    for (int64_t i = 0; i < part.count; ++i) part.found[part.places[i]] = part.flags[i];
  });
}

void pack_rows(const SparringExecutor* executor, const std::vector<PackPart>& parts) {
  const auto row_bytes = [](const PackPart& part) { return part.row_bytes; };
  for_each_part(executor, parts, row_bytes, [&](const PackPart& part) {
    const auto size = static_cast<size_t>(part.row_bytes);
    kernels::parallel_for(executor, part.count, kernels::grain_for(2 * part.row_bytes),
                          [&](int64_t begin, int64_t end) {
                            for (int64_t i = begin; i < end; ++i) {
                              std::memcpy(part.out + static_cast<size_t>(i) * size,
                                          part.gradients +
                                              static_cast<size_t>(part.places[i]) * size,
                                          size);
                            }
                          });
  });
}

}  // namespace sparring::exchange
