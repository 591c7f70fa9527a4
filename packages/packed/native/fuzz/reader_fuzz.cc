// A libFuzzer target for the reader: malicious bytes with valid hashes.
//
//   first byte, lowest two bits   0: the text of a manifest     1: a file of rows
//                                 2: a file of erased keys      3: a file of rows of a delta
//   the next two bits             the SIMD level
//   the next bit                  whether a delta is loaded by a refresh of the folder
//   remaining bytes               the text, or the file
//
// Hashes and checksums are valid, because an attacker can set them; so are magic, version
// and the table's name. All other bytes are unchanged. The target looks up, pools and scans opened files.
// For any input, calls must return; sanitizers and the kernel detect reads outside of a file. They do
// not detect a read beyond the end of a file within its last page.
// `python -m fuzz` builds and runs it, starting from seeds that it writes.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"
#include "format/manifest.h"
#include "format/xxh3.h"
#include "sparring/storage_border.h"
#include "sparring_packed.h"

using sparring::packed::Header;

namespace {

constexpr const char* kDtypes[] = {"fp32", "fp16", "bf16", "int8", "int4"};
constexpr uint32_t kMostFuzzedDim = 64;
constexpr char kTable[] = "item";

template <class Arguments>
Arguments new_arguments() {
  Arguments arguments{};
  arguments.call.struct_bytes = sizeof(Arguments);
  arguments.call.device.type = 1;
  return arguments;
}

template <class Arguments>
bool is_ok(SparringStatus status, Arguments& arguments) {
  if (status == SPARRING_OK) return true;
  if (arguments.call.error.release != nullptr) arguments.call.error.release(&arguments.call.error);
  return false;
}

void put(const std::string& path, std::string_view bytes) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size()) std::abort();
  std::fclose(file);
}

std::string sealed(std::string body, std::string* hash = nullptr) {
  body.resize(std::max<size_t>(body.size(), sparring::packed::kLeastHashedBytes), ' ');
  const std::string digest = sparring::packed::xxh3_128(body.data(), body.size());
  if (hash != nullptr) *hash = digest;
  return body + "\n \"hash\": \"" + digest + "\"\n}\n";
}

// A folder in memory with the snapshots "base", a full one, and "next", a full one or a delta.
class Served {
 public:
  Served() : path_("/dev/shm/sparring-fuzz-" + std::to_string(getpid())) {
    for (const char* name : {"", "/base", "/next"}) mkdir((path_ + name).c_str(), 0700);
  }
  ~Served() {
    for (const char* name : {"/base", "/next"}) {
      for (const char* file : {"/data.packed", "/manifest.json"}) unlink((path_ + name + file).c_str());
      rmdir((path_ + name).c_str());
    }
    rmdir(path_.c_str());
  }

  std::string path(const char* name) const { return path_ + "/" + name; }

  // Writes a snapshot with one file, and returns the hash of its manifest.
  std::string write(const char* name, const char* kind, const Header& header, std::string_view data,
                    const std::string& base) {
    const uint64_t num_keys = std::min(header.num_keys, sparring::packed::kMostKeys);
    std::string body =
        "{\"format\": \"sparring serving snapshot\", \"version\": 1, \"step\": " +
        std::to_string(base.empty() ? 1 : 2) + ", \"published\": 1.5, \"base\": " +
        (base.empty() ? "null" : "{\"name\": \"base\", \"hash\": \"" + base + "\"}") +
        ", \"tables\": [{\"name\": \"item\", \"dim\": " + std::to_string(header.dim) +
        ", \"dtype\": \"" + kDtypes[header.dtype] +
        "\", \"trained_dtype\": \"fp32\", \"seed\": 1, \"initializer\": {\"kind\": \"normal\", "
        "\"first\": 0.5, \"second\": 1}}], \"files\": [{\"name\": \"data.packed\", \"kind\": \"" +
        kind + "\", \"table\": \"item\", \"partitions\": [" + std::to_string(header.partition_begin) +
        ", " + std::to_string(header.partition_end) + "], \"num_keys\": " + std::to_string(num_keys) +
        ", \"size_bytes\": " + std::to_string(data.size()) + ", \"hash\": \"" +
        sparring::packed::xxh3_128(data.data(), data.size()) + "\"}],";
    put(path(name) + "/data.packed", data);
    std::string hash;
    put(path(name) + "/manifest.json", sealed(body, &hash));
    return hash;
  }

 private:
  std::string path_;
};

// Writes a full snapshot with the shape of `header` as the base of a delta.
std::string write_base(Served& served, const Header& header) {
  std::vector<int64_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) - 5;
  const std::vector<float> rows(ids.size() * header.dim, 0.25f);
  auto pack = new_arguments<SparringPackedPack>();
  pack.table = kTable;
  pack.count = static_cast<int64_t>(ids.size());
  pack.ids = ids.data();
  pack.embeddings = rows.data();
  pack.source_stride = header.dim * sizeof(float);
  pack.dtype = static_cast<int32_t>(header.dtype);
  pack.dim = static_cast<int32_t>(header.dim);
  pack.partition_end = sparring::kNumPartitions;
  if (!is_ok(sparring_packed_pack(&pack), pack)) std::abort();
  std::string data(pack.file_bytes, '\0');
  pack.file = data.data();
  if (!is_ok(sparring_packed_pack(&pack), pack)) std::abort();
  Header base;
  std::memcpy(&base, data.data(), sizeof base);
  return served.write("base", "rows", base, data, "");
}

// Calls all functions of the opened tables.
void ask(SparringPacked* packed, const std::vector<int64_t>& ids) {
  auto verify = new_arguments<SparringPackedVerify>();
  is_ok(sparring_packed_verify(packed, &verify), verify);
  auto table = new_arguments<SparringPackedTable>();
  if (!is_ok(sparring_packed_table(packed, &table), table)) return;
  const auto row_bytes = std::max<size_t>(static_cast<size_t>(table.row_bytes),
                                          static_cast<size_t>(table.dim) * sizeof(float));
  std::vector<char> rows(ids.size() * row_bytes);
  std::vector<uint8_t> found(ids.size());
  const std::vector<int64_t> offsets = {0, static_cast<int64_t>(ids.size() / 2),
                                        static_cast<int64_t>(ids.size())};
  SparringPackedRequest request{};
  request.count = static_cast<int64_t>(ids.size());
  request.ids = ids.data();
  request.rows = rows.data();
  request.found = found.data();
  request.num_bags = 2;
  request.offsets = offsets.data();
  for (const int32_t dtype : {SPARRING_PACKED_FLOAT32, SPARRING_PACKED_STORED}) {
    auto lookup = new_arguments<SparringPackedLookup>();
    lookup.num_requests = 1;
    lookup.requests = &request;
    lookup.dtype = dtype;
    lookup.missing = dtype == SPARRING_PACKED_STORED ? SPARRING_PACKED_ZEROS : SPARRING_PACKED_INITIAL;
    is_ok(sparring_packed_lookup(packed, &lookup), lookup);
  }
  for (request.is_mean = 0; request.is_mean < 2; ++request.is_mean) {
    auto pool = new_arguments<SparringPackedLookup>();
    pool.num_requests = 1;
    pool.requests = &request;
    is_ok(sparring_packed_pool(packed, &pool), pool);
  }
  std::vector<int64_t> keys(7);
  auto scan = new_arguments<SparringPackedScan>();
  scan.capacity = static_cast<int64_t>(keys.size());
  scan.ids = keys.data();
  std::vector<char> scanned(keys.size() * row_bytes);
  scan.rows = scanned.data();
  while (scan.is_done == 0 && is_ok(sparring_packed_scan(packed, &scan), scan)) {
  }
}

void try_manifest(std::string_view text) {
  for (const std::string& whole : {std::string(text), sealed(std::string(text))}) {
    try {
      sparring::packed::parse_manifest(whole);
    } catch (const sparring::border::StatusError&) {
    }
  }
}

void try_file(bool is_erased, bool is_delta, bool refreshes, std::string data) {
  static Served served;
  Header header;
  if (data.size() < sizeof header) return;
  std::memcpy(&header, data.data(), sizeof header);
  std::memcpy(header.magic, sparring::packed::kMagic, sizeof header.magic);
  header.version = sparring::packed::kFileVersion;
  header.kind = is_erased ? sparring::packed::kErased : sparring::packed::kRows;
  header.dim = 1 + (header.dim - 1) % kMostFuzzedDim;
  header.dtype %= 5;
  header.table_hash = sparring::fnv1a(std::string_view(kTable));
  std::memset(header.zeros, 0, sizeof header.zeros);
  header.checksum =
      sparring::fnv1a(std::string_view(reinterpret_cast<const char*>(&header), sizeof header - 8));
  std::memcpy(data.data(), &header, sizeof header);

  std::vector<int64_t> ids = {-5, 0, 1, 34, 35, INT64_MIN, INT64_MAX};
  // Numbers in the file that may be its keys.
  for (size_t at = sizeof header; at + 8 <= data.size() && ids.size() < 64; at += 4) {
    int64_t id;
    std::memcpy(&id, data.data() + at, sizeof id);
    ids.push_back(id);
  }
  // Usually the version of the previous call.
  static std::string base_hash;
  static uint32_t base_dim = 0, base_dtype = 0;
  if (is_delta && (base_dim != header.dim || base_dtype != header.dtype)) {
    base_hash = write_base(served, header);
    base_dim = header.dim;
    base_dtype = header.dtype;
  }
  const std::string base = is_delta ? base_hash : "";
  served.write("next", is_erased ? "erased" : "rows", header, data, base);
  auto open = new_arguments<SparringPackedOpen>();
  const std::string first = served.path(is_delta && refreshes ? "base" : "next");
  const std::string path = served.path("next");
  open.path = first.c_str();
  open.verify = SPARRING_PACKED_VERIFY_OPEN;
  if (!is_ok(sparring_packed_open(&open), open)) return;
  if (first != path) {
    auto refresh = new_arguments<SparringPackedRefresh>();
    // The folder of both snapshots, in which the newest is searched.
    const std::string folder = served.path("");
    refresh.path = folder.c_str();
    refresh.verify = SPARRING_PACKED_VERIFY_OPEN;
    is_ok(sparring_packed_refresh(open.packed, &refresh), refresh);
  }
  ask(open.packed, ids);
  sparring_packed_close(open.packed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr const char* kLevels[] = {"portable", "avx2", "avx512", "portable"};
  sparring_packed_set_simd_level(kLevels[data[0] >> 2 & 3]);
  const bool refreshes = (data[0] & 16) != 0;
  switch (data[0] & 3) {
    case 0: try_manifest(rest); break;
    case 1: try_file(false, false, false, std::string(rest)); break;
    case 2: try_file(true, true, refreshes, std::string(rest)); break;
    default: try_file(false, true, refreshes, std::string(rest));
  }
  return 0;
}
