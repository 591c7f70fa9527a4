// Pulls rows from a lookup service with only gRPC's C++ library, and a few bytes of protobuf.
//
//   c++ -std=c++17 -O2 grpc_client.cc $(pkg-config --cflags --libs grpc++) -o grpc_client
//   ./grpc_client 127.0.0.1:7433 item 7 -1
//
// If a service has several shards, pass one address per shard, in the order of the shards, separated by
// commas. The environment variable TOKEN is sent as the token. Prints one line of JSON. A program with more
// methods should generate its messages from lookup.proto with protoc.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

constexpr uint64_t kNumPartitions = 4096;
constexpr std::chrono::seconds kDeadline{5};

// Returns the partition of an id. Shard partition * num_shards / 4096, rounded down, has its row.
uint64_t partition_of(int64_t id) {
  auto bits = static_cast<uint64_t>(id);
  bits = (bits ^ bits >> 33) * 0xff51afd7ed558ccdu;
  bits = (bits ^ bits >> 33) * 0xc4ceb9fe1a85ec53u;
  return (bits ^ bits >> 33) >> 52;
}

size_t shard_of(int64_t id, size_t num_shards) { return partition_of(id) * num_shards / kNumPartitions; }

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes += static_cast<char>(value);
}

// Encodes a field of bytes, text or a message.
std::string field(uint64_t number, std::string_view content) {
  return varint(number << 3 | 2) + varint(content.size()) + std::string(content);
}

// Encodes a PullRequest with one table; ids are int64, little-endian.
grpc::ByteBuffer pull_request(const std::string& table, const std::vector<int64_t>& ids) {
  const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int64_t));
  const grpc::Slice slice(field(1, field(1, table) + field(2, bytes)));
  return grpc::ByteBuffer(&slice, 1);
}

// The last field of each number: a number for varints, and bytes for all others.
struct Field {
  uint64_t number = 0;
  std::string_view bytes;
};

// Decodes a message, whose memory the fields use.
std::map<uint64_t, Field> fields_of(std::string_view message) {
  std::map<uint64_t, Field> fields;
  const auto take = [&](size_t size) {
    if (size > message.size()) throw std::runtime_error("the reply is truncated");
    const std::string_view taken = message.substr(0, size);
    message.remove_prefix(size);
    return taken;
  };
  const auto read_varint = [&] {
    uint64_t value = 0;
    for (int place = 0; place < 64; place += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << place;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (!message.empty()) {
    const uint64_t key = read_varint();
    Field& found = fields[key >> 3];
    switch (key & 7) {
      case 0: found.number = read_varint(); break;
      case 1: found.bytes = take(8); break;
      case 2: found.bytes = take(read_varint()); break;
      default: found.bytes = take(4); break;
    }
  }
  return fields;
}

// A call of one shard.
struct ShardCall {
  std::vector<size_t> places;  // of its ids in the arguments
  std::vector<int64_t> ids;
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericStub> stub;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer request, reply;
  grpc::Status status;
};

void print_list(const char* name, size_t count, const std::function<std::string(size_t)>& text) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < count; ++i) std::printf("%s%s", i == 0 ? "" : ", ", text(i).c_str());
  std::printf("]");
}

int run(const std::string& servers, const std::string& table, const std::vector<int64_t>& ids) {
  std::vector<std::string> addresses(1);
  for (const char each : servers) {
    if (each == ',') {
      addresses.emplace_back();
    } else {
      addresses.back() += each;
    }
  }
  std::vector<ShardCall> calls(addresses.size());
  for (size_t place = 0; place < ids.size(); ++place) {
    ShardCall& call = calls[shard_of(ids[place], calls.size())];
    call.places.push_back(place);
    call.ids.push_back(ids[place]);
  }
  grpc::CompletionQueue queue;
  const char* const token = std::getenv("TOKEN");
  size_t num_calls = 0;
  for (size_t shard = 0; shard < calls.size(); ++shard) {
    ShardCall& call = calls[shard];
    if (call.ids.empty()) continue;
    call.context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    if (token != nullptr && *token != '\0') {
      call.context.AddMetadata("authorization", "Bearer " + std::string(token));
    }
    call.request = pull_request(table, call.ids);
    call.stub = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel(addresses[shard], grpc::InsecureChannelCredentials()));
    call.reader = call.stub->PrepareUnaryCall(&call.context, "/sparring.serving.v1.Lookup/Pull",
                                              call.request, &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
    ++num_calls;
  }
  void* ended = nullptr;
  bool is_ok = false;
  for (size_t i = 0; i < num_calls; ++i) queue.Next(&ended, &is_ok);

  std::vector<std::vector<float>> rows(ids.size());
  std::vector<bool> found(ids.size());
  std::set<std::string> versions;
  for (const ShardCall& call : calls) {
    if (call.ids.empty()) continue;
    if (!call.status.ok()) {
      std::fprintf(stderr, "status %d: %s\n", static_cast<int>(call.status.error_code()),
                   call.status.error_message().c_str());
      return 1;
    }
    grpc::Slice content;
    if (!call.reply.DumpToSingleSlice(&content).ok()) throw std::runtime_error("the reply is damaged");
    auto reply = fields_of({reinterpret_cast<const char*>(content.begin()), content.size()});
    auto table_rows = fields_of(reply[1].bytes);
    const size_t dim = table_rows[2].number;
    const std::string_view elements = table_rows[3].bytes, bits = table_rows[4].bytes;
    if (elements.size() != call.ids.size() * dim * sizeof(float) || bits.size() < (call.ids.size() + 7) / 8) {
      throw std::runtime_error("the reply has another number of rows");
    }
    for (size_t i = 0; i < call.ids.size(); ++i) {
      std::vector<float>& row = rows[call.places[i]];
      row.resize(dim);
      std::memcpy(row.data(), elements.data() + i * dim * sizeof(float), dim * sizeof(float));
      found[call.places[i]] = (static_cast<unsigned char>(bits[i / 8]) >> (i % 8) & 1) != 0;
    }
    versions.insert(std::string(fields_of(reply[2].bytes)[3].bytes));
  }

  std::printf("{");
  print_list("rows", ids.size(), [&](size_t i) {
    std::string text;
    for (const float each : rows[i]) {
      char number[32];
      std::snprintf(number, sizeof number, "%.9g", static_cast<double>(each));
      text += (text.empty() ? "" : ", ") + std::string(number);
    }
    return "[" + text + "]";
  });
  std::printf(", ");
  print_list("found", ids.size(), [&](size_t i) { return std::string(found[i] ? "true" : "false"); });
  const std::vector<std::string> hashes(versions.begin(), versions.end());
  std::printf(", ");
  print_list("versions", hashes.size(), [&](size_t i) { return "\"" + hashes[i] + "\""; });
  std::printf(", ");
  print_list("partitions", ids.size(), [&](size_t i) { return std::to_string(partition_of(ids[i])); });
  std::printf(", ");
  print_list("shards", ids.size(), [&](size_t i) { return std::to_string(shard_of(ids[i], calls.size())); });
  std::printf("}\n");
  return 0;
}

// Returns the id in `text`, or ends the program: an id is a decimal number of 64 bits with a sign, and
// ids from 2^63 on, which were unsigned, are written as id - 2^64.
int64_t parse_id(std::string_view text) {
  int64_t id = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, id);
  if (error == std::errc{} && parsed == end) return id;
  std::fprintf(stderr, "found id \"%.*s\", expected an integer from -2^63 to 2^63 - 1\n",
               static_cast<int>(text.size()), text.data());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s ADDRESS[,ADDRESS]... TABLE [ID]...\n", argv[0]);
    return 2;
  }
  std::vector<int64_t> ids;
  for (int i = 3; i < argc; ++i) ids.push_back(parse_id(argv[i]));
  try {
    return run(argv[1], argv[2], ids);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
