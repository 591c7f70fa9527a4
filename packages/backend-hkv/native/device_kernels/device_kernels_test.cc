// Compares the key operations on the emulator, in several orders of lanes, warps and blocks, with
// plain loops. Python tests compare the bits with core's. Here the sanitizers detect races
// and
// out-of-bounds accesses.
#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "check.h"
#include "device/emulated_device.h"
#include "device/emulator.h"
#include "device_kernels/dedup.h"
#include "device_kernels/finite.h"
#include "device_kernels/initialize.h"
#include "device_kernels/route.h"
#include "device_kernels/rows.h"
#include "device_kernels/sums.h"
#include "device_kernels/update.h"

using namespace sparring::device_kernels;
namespace device = sparring::device;

namespace {

// Calls body(device) with several schedules.
template <class Body>
void in_several_orders(const Body& body) {
  for (uint64_t seed = 0; seed < (device::emulator::kIsSlow ? 2 : 4); ++seed) {
    device::emulator::set_schedule({.seed = seed, .num_threads = 3});
    device::EmulatedDevice emulated;
    body(emulated);
    CHECK(emulated.num_waits() == 0);
  }
}

std::vector<int64_t> some_ids(size_t count, uint64_t distinct) {
  std::vector<int64_t> ids(count);
  uint64_t state = 7;
  for (int64_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int64_t>((state >> 33) % distinct * 0x9e3779b97f4a7c15u);
  }
  return ids;
}

void dedup_numbers_keys_by_first_occurrence() {
  for (const uint64_t distinct : {1, 40, 100000}) {
    const std::vector<int64_t> ids = some_ids(3000, distinct);
    std::vector<int64_t> expected_keys;
    std::map<int64_t, int64_t> number_of;
    for (const int64_t id : ids) {
      if (number_of.try_emplace(id, static_cast<int64_t>(expected_keys.size())).second)
        expected_keys.push_back(id);
    }
    in_several_orders([&](device::Device& emulated) {
      std::vector<int64_t> keys(ids.size());
      std::vector<int64_t> inverse(ids.size());
      int64_t num_keys = -1;
      dedup(emulated, nullptr,
            {ids.data(), static_cast<int64_t>(ids.size()), keys.data(), inverse.data(), &num_keys});
      CHECK(num_keys == static_cast<int64_t>(expected_keys.size()));
      keys.resize(expected_keys.size());
      CHECK(keys == expected_keys);
      for (size_t i = 0; i < ids.size(); ++i) CHECK(inverse[i] == number_of.at(ids[i]));
    });
  }
}

void route_groups_keys_by_owner() {
  const std::vector<int64_t> keys = some_ids(2000, 1u << 30);
  const auto count = static_cast<int64_t>(keys.size());
  std::vector<int32_t> owners(4096);
  for (size_t i = 0; i < owners.size(); ++i) owners[i] = static_cast<int32_t>(i % 7 % 5);
  in_several_orders([&](device::Device& emulated) {
    std::vector<uint16_t> partitions(keys.size());
    std::vector<int64_t> order(keys.size());
    std::vector<int64_t> offsets(7, -1);
    partition(emulated, nullptr, {keys.data(), count, partitions.data()});
    route(emulated, nullptr,
          {keys.data(), count, owners.data(), 6, order.data(), offsets.data()});
    CHECK(offsets[0] == 0 && offsets[5] == count && offsets[6] == count);
    for (int32_t rank = 0; rank < 6; ++rank) {
      for (auto i = static_cast<size_t>(offsets[static_cast<size_t>(rank)]);
           i < static_cast<size_t>(offsets[static_cast<size_t>(rank) + 1]); ++i) {
        CHECK(owners[partitions[static_cast<size_t>(order[i])]] == rank);
        CHECK(i == static_cast<size_t>(offsets[static_cast<size_t>(rank)]) ||
              order[i - 1] < order[i]);
      }
    }
  });
}

// Integers, so that sums are exact in any order.
void sums_of_segments_of_any_length_lose_nothing() {
  const int64_t count = 6000;
  const int64_t num_rows = 300;
  const int64_t dim = 37;
  std::vector<float> source(static_cast<size_t>(count * dim));
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<float>(i % 11);
  std::vector<int64_t> targets(static_cast<size_t>(count));
  for (size_t i = 0; i < targets.size(); ++i)
    targets[i] = i % 2 == 0 ? 5 : static_cast<int64_t>(i * 7 % 290);
  std::vector<float> expected(static_cast<size_t>(num_rows * dim));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t column = 0; column < dim; ++column) {
      expected[static_cast<size_t>(targets[static_cast<size_t>(i)] * dim + column)] +=
          source[static_cast<size_t>(i * dim + column)];
    }
  }
  in_several_orders([&](device::Device& emulated) {
    std::vector<float> out(expected.size(), -1);
    scatter<float>(emulated, nullptr,
                   {source.data(), targets.data(), nullptr, nullptr, out.data(), count, count,
                    num_rows, dim, false});
    CHECK(out == expected);
  });
}

// The order of sums.h for a target with many occurrences: parts by pieces of the sorted order, eight
// ranges of parts, and then those in order.
float sum_of_long(const std::vector<float>& values, size_t begin) {
  std::vector<float> parts;
  for (size_t at = 0; at < values.size();) {
    const size_t end = std::min(values.size(), ((begin + at) / kPiece + 1) * kPiece - begin);
    parts.push_back(std::accumulate(values.begin() + static_cast<int64_t>(at),
                                    values.begin() + static_cast<int64_t>(end), 0.0f));
    at = end;
  }
  float sum = 0;
  for (size_t warp = 0; warp < 8; ++warp) {
    sum += std::accumulate(parts.begin() + static_cast<int64_t>(parts.size() * warp / 8),
                           parts.begin() + static_cast<int64_t>(parts.size() * (warp + 1) / 8), 0.0f);
  }
  return sum;
}

// The sum of a hot key is divided among many blocks, in the documented order; short sums are
// computed
// row by row.
void frequent_keys_are_summed_in_the_documented_order() {
  const std::vector<size_t> lengths = {1000, 7000, 3, 1024, 1025, 5000, 512, 0, 30, 1100};
  for (const int64_t dim : {8, 5}) {
    std::vector<int64_t> targets;
    for (size_t t = 0; t < lengths.size(); ++t)
      targets.insert(targets.end(), lengths[t], static_cast<int64_t>(t));
    const auto count = static_cast<int64_t>(targets.size());
    std::vector<float> source(static_cast<size_t>(count * dim));
    uint64_t state = 3;
    for (float& value : source) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(state >> 40) * 0x1p-20f - 8;
    }
    in_several_orders([&](device::Device& emulated) {
      std::vector<float> out(lengths.size() * static_cast<size_t>(dim), -1);
      scatter<float>(emulated, nullptr,
                     {source.data(), targets.data(), nullptr, nullptr, out.data(), count, count,
                      static_cast<int64_t>(lengths.size()), dim, false});
      size_t begin = 0;
      for (size_t t = 0; t < lengths.size(); begin += lengths[t++]) {
        std::vector<float> column;
        for (size_t i = 0; i < lengths[t]; ++i)
          column.push_back(source[(begin + i) * static_cast<size_t>(dim) + 2]);
        const float expected = lengths[t] > kLongSegment
                                   ? sum_of_long(column, begin)
                                   : std::accumulate(column.begin(), column.end(), 0.0f);
        CHECK(out[t * static_cast<size_t>(dim) + 2] == expected);
      }
    });
  }
}

void pooling_adds_the_rows_of_bags() {
  const int64_t dim = 24;
  std::vector<float> rows(static_cast<size_t>(50 * dim));
  std::iota(rows.begin(), rows.end(), 0.0f);
  std::vector<int64_t> inverse(600);
  for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = static_cast<int64_t>(i * 13 % 50);
  std::vector<int64_t> offsets;
  for (int64_t at = 0; at <= 600; at += 12) offsets.push_back(at);
  const auto num_bags = static_cast<int64_t>(offsets.size()) - 1;
  in_several_orders([&](device::Device& emulated) {
    std::vector<float> out(static_cast<size_t>(num_bags * dim));
    std::vector<float> products(inverse.size());
    pool<float>(emulated, nullptr,
                {rows.data(), inverse.data(), offsets.data(), nullptr, out.data(), num_bags, dim,
                 true});
    pool_weight_gradient<float>(emulated, nullptr,
                                {out.data(), rows.data(), inverse.data(), offsets.data(),
                                 products.data(), 600, num_bags, dim, false});
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      float sum = 0;
      for (int64_t i = 12 * bag; i < 12 * bag + 12; ++i)
        sum += rows[static_cast<size_t>(inverse[static_cast<size_t>(i)] * dim)];
      CHECK(out[static_cast<size_t>(bag * dim)] == sum / 12);
    }
    CHECK(products[0] > 0 && products[599] > 0);
  });
}

// Every other row is created, then all are updated; all schedules give the same bytes.
void rows_are_created_and_changed_in_place() {
  for (const RowType type : {RowType::float32, RowType::float64, RowType::bfloat16}) {
    const int64_t dim = 21;
    const int64_t count = 90;
    const RowLayout layout = make_row_layout(type, dim, 2 * dim);
    std::vector<int64_t> keys(static_cast<size_t>(count));
    std::iota(keys.begin(), keys.end(), int64_t{-7});
    std::vector<uint8_t> is_new(static_cast<size_t>(count));
    for (size_t i = 0; i < is_new.size(); ++i) is_new[i] = i % 2;
    std::vector<unsigned char> first_result;
    in_several_orders([&](device::Device& emulated) {
      std::vector<unsigned char> rows(static_cast<size_t>(count * layout.row_bytes), 0);
      std::vector<void*> pointers;
      for (int64_t i = 0; i < count; ++i) pointers.push_back(rows.data() + i * layout.row_bytes);
      std::vector<double> gradients(static_cast<size_t>(count * dim), 0.0);
      initialize(emulated, nullptr,
                 {prepare({sparring::InitialKind::normal, 0, 1, 99}, type), layout, keys.data(),
                  nullptr, is_new.data(), true, count, nullptr, {pointers.data(), nullptr, 0}});
      Update arguments{};
      arguments.method = UpdateMethod::lamb;
      arguments.layout = layout;
      arguments.hyper = {.lr = 0.1, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8,
                         .clip_norm = 1.0};
      arguments.step = 1;
      arguments.keys = keys.data();
      arguments.rows = {pointers.data(), nullptr, 0};
      arguments.gradients = gradients.data();
      arguments.count = count;
      const device::Buffer decoded = device::make_buffer<float>(
          emulated, static_cast<size_t>(num_decoded(type, count, dim)), nullptr);
      arguments.decoded = decoded.as<float>();
      // The update of rows must not allocate memory, because it must not fail.
      static_cast<device::EmulatedDevice&>(emulated).fail_from(0);
      update(emulated, nullptr, arguments);
      static_cast<device::EmulatedDevice&>(emulated).fail_from(-1);
      if (first_result.empty()) first_result = rows;
      CHECK(rows == first_result);
      // Zero rows without a gradient stay zero; only new rows were created.
      for (size_t at = 0; at < rows.size(); ++at) {
        const bool is_made = is_new[at / static_cast<size_t>(layout.row_bytes)] != 0;
        CHECK(is_made || rows[at] == 0);
      }
      CHECK(std::any_of(rows.begin(), rows.end(), [](unsigned char byte) { return byte != 0; }));
    });
  }
}

void out_of_memory_is_reported_and_leaks_nothing() {
  const std::vector<int64_t> ids = some_ids(5000, 100);
  std::vector<int64_t> keys(ids.size());
  std::vector<int64_t> inverse(ids.size());
  int64_t num_keys = 0;
  for (int64_t nth = 0; nth < 3; ++nth) {
    device::EmulatedDevice emulated;
    emulated.fail_from(nth);
    const Dedup arguments{ids.data(), static_cast<int64_t>(ids.size()), keys.data(),
                          inverse.data(), &num_keys};
    CHECK_THROWS(dedup(emulated, nullptr, arguments), device::OutOfDeviceMemory);
  }
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"dedup numbers keys by first occurrence", dedup_numbers_keys_by_first_occurrence},
      {"route groups keys by owner", route_groups_keys_by_owner},
      {"sums of segments of any length lose nothing",
       sums_of_segments_of_any_length_lose_nothing},
      {"frequent keys are summed in the documented order", frequent_keys_are_summed_in_the_documented_order},
      {"pooling adds the rows of bags", pooling_adds_the_rows_of_bags},
      {"rows are created and changed in place", rows_are_created_and_changed_in_place},
      {"out of memory is reported and leaks nothing",
       out_of_memory_is_reported_and_leaks_nothing},
  });
}
