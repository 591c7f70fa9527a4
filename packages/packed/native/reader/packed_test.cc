// Tests the C functions, from packing to lookups, with an executor; Python's tests cover the rest.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "format/xxh3.h"
#include "sparring/hash_string.h"
#include "sparring/initial_value.h"
#include "sparring_packed.h"
#include "sparring_program.h"
#include "thread_executor.h"

namespace {

constexpr int kDim = 20;
constexpr int64_t kNumRows = 5000;

template <class Arguments>
Arguments new_arguments() {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device.type = 1;
  return arguments;
}

template <class Arguments>
std::string message_of(Arguments& arguments) {
  const std::string message = arguments.call.error.message;
  if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
  return message;
}

float value_of(int64_t id, int64_t column, int64_t step) {
  return static_cast<float>(id * 100 + column + step * 1'000'000);
}

// A folder with serving snapshots, which is removed at the end.
class Served {
 public:
  Served() {
    char name[] = "/tmp/sparring-packed-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Served() { static_cast<void>(std::system(("rm -r " + path_).c_str())); }

  const std::string& path() const { return path_; }

  // Writes rows of ids [0, num_rows) at a step; a delta if there is a base.
  std::string write(int64_t step, int64_t num_rows, const std::string& base_hash) {
    const std::string folder = path_ + "/step-" + std::to_string(step);
    mkdir(folder.c_str(), 0700);
    std::vector<int64_t> ids;
    std::vector<float> rows;
    for (int64_t id = 0; id < num_rows; ++id) {
      ids.push_back(id);
      for (int64_t column = 0; column < kDim; ++column) rows.push_back(value_of(id, column, step));
    }
    auto pack = new_arguments<SparringPackedPack>();
    pack.table = "item";
    pack.count = num_rows;
    pack.ids = ids.data();
    pack.embeddings = rows.data();
    pack.source_stride = kDim * sizeof(float);
    pack.dim = kDim;
    pack.partition_end = 4096;
    CHECK(sparring_packed_pack(&pack) == SPARRING_OK);
    std::vector<char> file(pack.file_bytes);
    pack.file = file.data();
    CHECK(sparring_packed_pack(&pack) == SPARRING_OK);
    std::ofstream(folder + "/rows.packed", std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
    std::string text =
        "{\"format\": \"sparring serving snapshot\", \"version\": 1, \"step\": " +
        std::to_string(step) + ", \"published\": 1.5, \"base\": " +
        (base_hash.empty() ? "null"
                           : "{\"name\": \"step-" + std::to_string(step - 1) + "\", \"hash\": \"" +
                                 base_hash + "\"}") +
        ", \"tables\": [{\"name\": \"item\", \"dim\": 20, \"dtype\": \"fp32\", \"trained_dtype\": "
        "\"fp32\", \"seed\": 1, \"initializer\": {\"kind\": \"constant\", \"first\": 0.5, "
        "\"second\": 0}}], \"files\": [{\"name\": \"rows.packed\", \"kind\": \"rows\", \"table\": "
        "\"item\", \"partitions\": [0, 4096], \"num_keys\": " +
        std::to_string(num_rows) + ", \"size_bytes\": " + std::to_string(file.size()) +
        ", \"hash\": \"" + sparring::packed::xxh3_128(file.data(), file.size()) + "\"}],";
    const std::string hash = sparring::packed::xxh3_128(text.data(), text.size());
    std::ofstream(folder + "/manifest.json") << text << "\n \"hash\": \"" << hash << "\"\n}\n";
    return hash;
  }

 private:
  std::string path_;
};

void rows_are_looked_up_and_pooled_on_the_threads_of_an_executor() {
  Served served;
  const std::string hash = served.write(1, kNumRows, "");
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.path().c_str();
  CHECK(sparring_packed_open(&open) == SPARRING_OK);

  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 3 * kNumRows; ++i) ids.push_back((i * 7919) % (kNumRows + 500));
  std::vector<float> rows(ids.size() * kDim);
  std::vector<uint8_t> found(ids.size());
  SparringPackedRequest request{};
  request.count = static_cast<int64_t>(ids.size());
  request.ids = ids.data();
  request.rows = rows.data();
  request.found = found.data();
  auto lookup = new_arguments<SparringPackedLookup>();
  sparring::testing::ThreadExecutor threads(3);
  lookup.call.executor = threads.get();
  lookup.num_requests = 1;
  lookup.requests = &request;
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_OK);
  CHECK(lookup.hash == hash && lookup.step == 1 && lookup.published == 1.5);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool has_row = ids[i] < kNumRows;
    CHECK(found[i] == has_row);
    CHECK(rows[i * kDim + 3] == (has_row ? value_of(ids[i], 3, 1) : 0.5f));
  }

  const auto num_bags = static_cast<int64_t>(ids.size() / 3);
  std::vector<int64_t> offsets;
  for (int64_t bag = 0; bag <= num_bags; ++bag) offsets.push_back(3 * bag);
  std::vector<float> sums(static_cast<size_t>(num_bags) * kDim);
  request.rows = sums.data();
  request.num_bags = num_bags;
  request.offsets = offsets.data();
  CHECK(sparring_packed_pool(open.packed, &lookup) == SPARRING_OK);
  for (size_t bag = 0; bag < static_cast<size_t>(num_bags); ++bag) {
    float sum = 0;
    for (size_t i = 3 * bag; i < 3 * bag + 3; ++i) sum += rows[i * kDim + 5];
    CHECK(sums[bag * kDim + 5] == sum);
  }
  sparring_packed_close(open.packed);
}

void a_matching_delta_is_loaded_and_another_one_rejected() {
  Served served;
  const std::string first = served.write(1, 100, "");
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.path().c_str();
  CHECK(sparring_packed_open(&open) == SPARRING_OK);
  served.write(2, 10, first);
  auto refresh = new_arguments<SparringPackedRefresh>();
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && refresh.is_changed == 1);
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && refresh.is_changed == 0);
  served.write(3, 10, std::string(32, '0'));
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_INVALID_ARGUMENT);
  CHECK(message_of(refresh).find("use a full one") != std::string::npos);

  const int64_t ids[] = {5, 50};
  float rows[2 * kDim];
  SparringPackedRequest request{};
  request.count = 2;
  request.ids = ids;
  request.rows = rows;
  auto lookup = new_arguments<SparringPackedLookup>();
  lookup.num_requests = 1;
  lookup.requests = &request;
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_OK && lookup.step == 2);
  CHECK(rows[0] == value_of(5, 0, 2) && rows[kDim] == value_of(50, 0, 1));
  lookup.version = first.c_str();
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_OK && lookup.step == 1);
  CHECK(rows[0] == value_of(5, 0, 1));
  sparring_packed_close(open.packed);
}

void a_pinned_version_is_served_until_the_pin_is_removed() {
  Served served;
  const std::string first = served.write(1, 10, "");
  served.write(2, 10, first);
  const std::string gate = served.path() + "/gate.json";
  const auto pin = [&](const std::string& name, const std::string& by = "\"gate\"") {
    std::ofstream(gate) << "{\"format\": 1, \"state\": \"closed\", \"reason\": \"worse\", \"since\": 2.5, "
                           "\"pin\": " << name << ", \"pinned_by\": " << by << "}";
  };
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.path().c_str();
  CHECK(sparring_packed_open(&open) == SPARRING_OK);
  const auto step = [&] {
    auto version = new_arguments<SparringPackedVersion>();
    CHECK(sparring_packed_version(open.packed, &version) == SPARRING_OK);
    return version.step;
  };
  auto refresh = new_arguments<SparringPackedRefresh>();
  CHECK(step() == 2);
  // The layers of step 1 are mapped as the base of step 2, so its files are not needed.
  CHECK(std::system(("rm " + served.path() + "/step-1/rows.packed").c_str()) == 0);
  pin("\"step-1\"");
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK);
  CHECK(refresh.is_changed == 1 && step() == 1);
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && refresh.is_changed == 0);
  auto found = new_arguments<SparringPackedGate>();
  found.path = served.path().c_str();
  CHECK(sparring_packed_gate(&found) == SPARRING_OK);
  CHECK(found.exists == 1 && found.is_closed == 1 && found.since == 2.5);
  CHECK(std::string(found.pin) == "step-1" && std::string(found.pinned_by) == "gate" &&
        std::string(found.reason) == "worse");
  // A pin that cannot be served leaves the current version.
  pin("\"step-9\"");
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_IO);
  CHECK(message_of(refresh).find("gate.json pins step-9, which cannot be used") != std::string::npos);
  CHECK(step() == 1);
  // A damaged file has no effect, but is reported.
  const std::pair<const char*, const char*> wrong[] = {{"\"../x\"", "\"gate\""}, {"\".x\"", "\"gate\""},
                                                       {"\"step 1\"", "\"gate\""}, {"7", "\"gate\""},
                                                       {"\"step-1\"", "null"}, {"null", "\"gate\""}};
  for (const auto& [name, by] : wrong) {
    pin("null", "null");
    CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && step() == 2);
    pin("\"step-1\"");
    CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && step() == 1);
    pin(name, by);
    CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && step() == 2);
    CHECK(sparring_packed_gate(&found) == SPARRING_CORRUPT);
    CHECK(message_of(found).find("write it again with sparring publish") != std::string::npos);
  }
  // While the file cannot be read, a version that it withholds is not used.
  pin("\"step-1\"");
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_OK && step() == 1);
  CHECK(std::remove(gate.c_str()) == 0 && symlink("gate.json", gate.c_str()) == 0);
  CHECK(sparring_packed_refresh(open.packed, &refresh) == SPARRING_IO && step() == 1);
  message_of(refresh);
  sparring_packed_close(open.packed);
}

void a_caller_may_not_know_the_generation_of_a_version() {
  Served served;
  served.write(1, 10, "");
  auto open = new_arguments<SparringPackedOpen>();
  open.path = served.path().c_str();
  CHECK(sparring_packed_open(&open) == SPARRING_OK);
  auto version = new_arguments<SparringPackedVersion>();
  version.generation = 7;
  version.call.struct_bytes = offsetof(SparringPackedVersion, generation);
  CHECK(sparring_packed_version(open.packed, &version) == SPARRING_OK);
  CHECK(version.step == 1 && version.generation == 7);
  version.call.struct_bytes = sizeof version;
  CHECK(sparring_packed_version(open.packed, &version) == SPARRING_OK);
  CHECK(version.generation == 0);
  version.call.struct_bytes = offsetof(SparringPackedVersion, generation) - 1;
  CHECK(sparring_packed_version(open.packed, &version) == SPARRING_INVALID_ARGUMENT);
  message_of(version);
  sparring_packed_close(open.packed);
}

void wrong_arguments_are_rejected_with_a_message() {
  Served served;
  served.write(1, 10, "");
  auto open = new_arguments<SparringPackedOpen>();
  CHECK(sparring_packed_open(&open) == SPARRING_INVALID_ARGUMENT);
  CHECK(message_of(open).find("path") != std::string::npos);
  CHECK(sparring_packed_open(nullptr) == SPARRING_INVALID_ARGUMENT);
  open.path = served.path().c_str();
  open.call.struct_bytes = 8;
  CHECK(sparring_packed_open(&open) == SPARRING_INVALID_ARGUMENT);
  message_of(open);
  open.call.struct_bytes = sizeof open;
  CHECK(sparring_packed_open(&open) == SPARRING_OK);

  auto lookup = new_arguments<SparringPackedLookup>();
  CHECK(sparring_packed_lookup(nullptr, &lookup) == SPARRING_INVALID_ARGUMENT);
  message_of(lookup);
  const int64_t id = 1;
  float row[kDim];
  SparringPackedRequest request{};
  request.table = 1;
  request.count = 1;
  request.ids = &id;
  request.rows = row;
  lookup.num_requests = 1;
  lookup.requests = &request;
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_INVALID_ARGUMENT);
  CHECK(message_of(lookup) == "table must be from 0 to 0; found 1");
  request.table = 0;
  request.row_stride = 4 * kDim - 1;
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_INVALID_ARGUMENT);
  message_of(lookup);
  lookup.call.device.type = 2;
  CHECK(sparring_packed_lookup(open.packed, &lookup) == SPARRING_UNSUPPORTED);
  message_of(lookup);
  sparring_packed_close(open.packed);
  sparring_packed_close(nullptr);
}

// Reads a number in a file's header.
template <class Number>
Number number_at(const std::vector<char>& file, int64_t offset) {
  Number number;
  std::copy_n(file.begin() + offset, sizeof number, reinterpret_cast<char*>(&number));
  return number;
}

constexpr int64_t kSaltAt = 48;
constexpr int64_t kMostInBucketAt = 56;

// Writes a file of erased ids in partitions [0, partition_end).
std::vector<char> packed_ids(const std::vector<int64_t>& ids, int32_t partition_end) {
  auto pack = new_arguments<SparringPackedPack>();
  pack.table = "item";
  pack.count = static_cast<int64_t>(ids.size());
  pack.ids = ids.data();
  pack.dim = kDim;
  pack.partition_end = partition_end;
  CHECK(sparring_packed_pack(&pack) == SPARRING_OK);
  std::vector<char> file(pack.file_bytes);
  pack.file = file.data();
  CHECK(sparring_packed_pack(&pack) == SPARRING_OK);
  return file;
}

void ids_of_some_partitions_are_spread_over_all_buckets() {
  std::vector<int64_t> ids;
  for (int64_t id = 0; ids.size() < 4096; ++id) {
    if (sparring::partition_of(id) < 1024) ids.push_back(id);
  }
  // 16 on average.
  CHECK(number_at<uint32_t>(packed_ids(ids, 1024), kMostInBucketAt) < 45);
}

void ids_that_were_chosen_to_collide_are_packed() {
  // With the first salt all hashes are equal except for the last bits: inverted mix64 of 1, 2, …
  const auto salt = number_at<uint64_t>(packed_ids({1, 2}, 4096), kSaltAt);
  std::vector<int64_t> ids;
  for (uint64_t i = 1; i <= 300; ++i) {
    uint64_t bits = i;
    bits ^= bits >> 33;
    bits *= 0x9cb4b2f8129337dbu;
    bits ^= bits >> 33;
    bits *= 0x4f74430c22a54005u;
    bits ^= bits >> 33;
    ids.push_back(static_cast<int64_t>(bits ^ salt));
  }
  std::vector<char> file = packed_ids(ids, 4096);
  CHECK(number_at<uint64_t>(file, kSaltAt) != salt);
  CHECK(number_at<uint32_t>(file, kMostInBucketAt) < 100);
  ids[299] = ids[7];
  auto pack = new_arguments<SparringPackedPack>();
  pack.table = "item";
  pack.count = 300;
  pack.ids = ids.data();
  pack.dim = kDim;
  pack.partition_end = 4096;
  pack.file_bytes = file.size();
  pack.file = file.data();
  CHECK(sparring_packed_pack(&pack) == SPARRING_INVALID_ARGUMENT);
  CHECK(message_of(pack).find("occurs twice") != std::string::npos);
}

std::string hex_hash(const std::string& content) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(
                    sparring::hash_string(content.data(), content.size())));
  return digits;
}

// A folder with the binding of a program to a serving snapshot.
std::string bundle_of(const Served& served, const std::string& handle, int dim) {
  const std::string folder = served.path() + "/" + handle.substr(0, handle.find(':'));
  mkdir(folder.c_str(), 0700);
  const std::string binding = handle + "\n" + std::to_string(dim) + " item\n";
  std::ofstream(folder + "/binding.txt") << binding;
  const std::string list = hex_hash(binding) + " binding.txt\n" + hex_hash("") + " empty\n";
  std::ofstream(folder + "/empty") << "";
  std::ofstream(folder + "/files.txt")
      << "sparring-program-files/1 " << hex_hash(list) << "\n" << list;
  return folder;
}

void damaged_bundles_are_rejected() {
  Served served, bundles;
  const std::string hash = served.write(1, kNumRows, "");
  const std::string bundle = bundle_of(bundles, "follow:" + hash + ":damaged", kDim);
  const char* const path = served.path().c_str();
  CHECK(sparring_program_bind(bundle.c_str(), path) == 0);
  CHECK(sparring_program_release(bundle.c_str()) == 0);
  for (const std::string name : {"binding.txt", "files.txt", "empty"}) {
    const std::string file = bundle + "/" + name;
    std::ifstream from(file, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(from), {}};
    for (size_t place = 0; place < content.size(); ++place) {
      std::string damaged = content;
      damaged[place] = static_cast<char>(damaged[place] ^ 1);
      std::ofstream(file, std::ios::binary) << damaged;
      CHECK(sparring_program_bind(bundle.c_str(), path) == 1);
      CHECK(std::string(sparring_program_error()).find("export the program again") !=
            std::string::npos);
    }
    for (const std::string& other : {content.substr(0, content.size() / 2), content + "\n"}) {
      if (other == content) continue;
      std::ofstream(file, std::ios::binary) << other;
      CHECK(sparring_program_bind(bundle.c_str(), path) == 1);
    }
    std::remove(file.c_str());
    CHECK(sparring_program_bind(bundle.c_str(), path) == 1);
    CHECK(std::string(sparring_program_error()).find(name + " is missing") != std::string::npos);
    std::ofstream(file, std::ios::binary) << content;
  }
  CHECK(sparring_program_bind(bundle.c_str(), path) == 0);
  CHECK(sparring_program_release(bundle.c_str()) == 0);
}

void programs_read_what_they_are_bound_to_while_it_is_refreshed() {
  Served served, bundles;
  std::string hash = served.write(1, kNumRows, "");
  const std::string handle = "follow:" + hash + ":test";
  const std::string bundle = bundle_of(bundles, handle, kDim);
  const std::string exact = bundle_of(bundles, "exact:" + hash + ":test", kDim);
  const char* const path = served.path().c_str();
  const char* const tables[] = {"item", "item"};
  const int64_t dims[] = {kDim, kDim};
  const std::vector<int64_t> ids{3, 17};
  const auto read = [&](std::vector<float>& first, std::vector<float>& second) {
    SparringPackedRequest requests[2] = {};
    for (SparringPackedRequest& each : requests) {
      each.count = 2;
      each.ids = ids.data();
    }
    requests[0].rows = first.data();
    requests[1].rows = second.data();
    return sparring_program_lookup(handle.c_str(), 2, tables, dims, requests, sizeof *requests);
  };
  const auto is_told = [](const char* what) {
    return std::string(sparring_program_error()).find(what) != std::string::npos;
  };
  std::vector<float> rows(2 * kDim), again(2 * kDim);
  CHECK(read(rows, again) == 1 && is_told("call sparring_program_bind"));
  CHECK(sparring_program_bind(bundle.c_str(), path) == 0);
  CHECK(sparring_program_bind(exact.c_str(), path) == 0);
  CHECK(read(rows, again) == 0);
  CHECK(rows[kDim + 2] == value_of(17, 2, 1) && rows == again);

  std::atomic<bool> is_done = false;
  std::atomic<int> num_mixed = 0;
  std::thread reader([&] {
    std::vector<float> mine(2 * kDim), other(2 * kDim);
    while (!is_done) num_mixed += read(mine, other) != 0 || mine != other;
  });
  int32_t is_changed = 0;
  for (int64_t step = 2; step < 12; ++step) {
    hash = served.write(step, kNumRows, "");
    CHECK(sparring_program_refresh(bundle.c_str(), &is_changed) == 0 && is_changed == 1);
  }
  is_done = true;
  reader.join();
  CHECK(num_mixed == 0);
  char found[33];
  int64_t step = 0;
  CHECK(sparring_program_version(bundle.c_str(), found, &step) == 0);
  CHECK(found == hash && step == 11);

  CHECK(sparring_program_refresh(exact.c_str(), &is_changed) == 1 && is_told("follow=True"));
  CHECK(sparring_program_version(exact.c_str(), found, &step) == 0 && step == 1);
  CHECK(sparring_program_bind(exact.c_str(), path) == 1 && is_told("is bound to version"));
  SparringPackedRequest small{};
  CHECK(sparring_program_pool(handle.c_str(), 1, tables, dims, &small, sizeof small - 8) == 1);
  CHECK(is_told("different releases"));
  const std::string wide = bundle_of(bundles, handle, kDim + 1);
  CHECK(sparring_program_bind(wide.c_str(), path) == 1 && is_told("the program needs 21"));
  CHECK(sparring_program_release(wide.c_str()) == 0);
  CHECK(sparring_program_release(exact.c_str()) == 0);
  CHECK(read(rows, again) == 1);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"rows are looked up and pooled on the threads of an executor",
       rows_are_looked_up_and_pooled_on_the_threads_of_an_executor},
      {"a matching delta is loaded and another one rejected",
       a_matching_delta_is_loaded_and_another_one_rejected},
      {"a pinned version is served until the pin is removed",
       a_pinned_version_is_served_until_the_pin_is_removed},
      {"a caller may not know the generation of a version",
       a_caller_may_not_know_the_generation_of_a_version},
      {"wrong arguments are rejected with a message", wrong_arguments_are_rejected_with_a_message},
      {"ids of some partitions are spread over all buckets",
       ids_of_some_partitions_are_spread_over_all_buckets},
      {"ids that were chosen to collide are packed", ids_that_were_chosen_to_collide_are_packed},
      {"damaged bundles are rejected", damaged_bundles_are_rejected},
      {"programs read what they are bound to while it is refreshed",
       programs_read_what_they_are_bound_to_while_it_is_refreshed},
  });
}
