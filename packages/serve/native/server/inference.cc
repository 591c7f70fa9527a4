#include "server/inference.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/reply_buffer.h"
#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

[[noreturn]] void refuse(std::string_view model, const std::string& found,
                         const char* reason = "invalid_argument") {
  throw StatusError(StatusCode::INVALID_ARGUMENT, "model " + quoted(model) + ": " + found, reason);
}

// Returns the names of the requested outputs.
std::vector<std::string_view> outputs_of(const InferRequest& request) {
  std::string listed;
  bool is_valid = true;
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    const std::string_view name = request.outputs[i];
    const auto end = request.outputs.begin() + static_cast<std::ptrdiff_t>(i);
    is_valid = is_valid && (name == "rows" || name == "found") &&
               std::find(request.outputs.begin(), end, name) == end;
    listed += (i == 0 ? "" : ", ") + std::string(name);
  }
  if (!is_valid) {
    refuse(request.model_name,
           "requested the outputs " + listed +
               ", expected rows and found, each at most once; request these, or omit outputs to get both",
           "outputs");
  }
  if (request.outputs.empty()) return {"rows", "found"};
  return request.outputs;
}

// Returns the ids of a request, 8 bytes each, after a check of its input.
std::string_view ids_of(const InferRequest& request) {
  const auto& inputs = request.inputs;
  if (inputs.size() != 1 || inputs[0].name != "ids" || inputs[0].datatype != "INT64") {
    std::string shown;
    for (const auto& each : inputs) {
      shown += (shown.empty() ? "" : ", ") + std::string(each.name) + " " + std::string(each.datatype);
    }
    refuse(request.model_name, "expected one input, ids INT64, found " +
                                   (inputs.empty() ? std::string("none") : shown) + "; send only it");
  }
  const auto& input = inputs[0];
  std::string_view ids(reinterpret_cast<const char*>(input.ids.data()), input.ids.size() * sizeof(int64_t));
  if (!request.raw_input_contents.empty()) {
    if (request.raw_input_contents.size() > 1 || !input.ids.empty()) {
      refuse(request.model_name,
             "found ids in " + std::to_string(request.raw_input_contents.size()) +
                 " raw_input_contents and " + with_commas(input.ids.size()) +
                 " int64_contents; send ids in one of them",
             "ids");
    }
    ids = request.raw_input_contents[0];
    check_ids(ids);
  }
  const auto count = static_cast<int64_t>(ids.size() / sizeof(int64_t));
  __int128 product = 1;
  bool is_negative = false;
  std::string listed;
  for (const int64_t each : input.shape) {
    is_negative = is_negative || each < 0;
    // More ids than this are not in a message; zeros still make the product 0.
    product = std::min<__int128>(product * std::max<int64_t>(each, 0), __int128{1} << 62);
    listed += (listed.empty() ? "" : ", ") + std::to_string(each);
  }
  if (is_negative || product != count) {
    refuse(request.model_name, "ids have the shape [" + listed + "], but the request contains " +
                                   with_commas(count) + " ids; correct the shape");
  }
  return ids;
}

std::string tensor_of(std::string_view name, std::string_view datatype, const std::vector<int64_t>& shape) {
  std::string numbers;
  for (const int64_t each : shape) {
    auto value = static_cast<uint64_t>(each);
    for (; value >= 0x80; value >>= 7) numbers += static_cast<char>((value & 0x7f) | 0x80);
    numbers += static_cast<char>(value);
  }
  std::string tensor;
  FieldWriter writer(tensor);
  writer.text(1, name);
  writer.text(2, datatype);
  writer.text(3, numbers);
  return tensor;
}

struct ModelRequest {
  std::string_view name;
  std::string_view version;
};

ModelRequest read_model_request(std::string_view content) {
  ModelRequest found;
  for (FieldReader reader("ModelRequest", content); reader.next();) {
    if (reader.number() == 1) found.name = reader.text("name");
    if (reader.number() == 2) found.version = reader.text("version");
  }
  return found;
}

}  // namespace

Reply Inference::infer(std::string_view content, double remaining_seconds,
                       LookupService::Clock::time_point begin) {
  Metrics& metrics = service_.metrics();
  const auto count = [&](StatusCode code) {
    metrics.pulls.note(table_, code);
    metrics.ids += num_ids_;
    Quotas::charge(num_ids_);
    metrics.found += num_found_;
    metrics.pulls.observe(std::chrono::duration<double>(LookupService::Clock::now() - begin).count());
  };
  return counted(metrics, [&] { return infer(content, remaining_seconds); }, count);
}

Reply Inference::infer(std::string_view content, double remaining_seconds) {
  if (remaining_seconds <= 0) {
    throw StatusError(
        StatusCode::DEADLINE_EXCEEDED,
        "the deadline passed before the call began; increase it, or increase server.threads",
        "deadline_exceeded");
  }
  service_.check_request_bytes(content);
  const InferRequest request = read_infer_request(content);
  const std::string_view id_bytes = ids_of(request);
  const std::vector<std::string_view> outputs = outputs_of(request);
  const auto served = service_.tables().served();
  const TableShape& shape = *service_.check_tables(*served, {{request.model_name, id_bytes}})[0];
  table_ = shape.number;
  num_ids_ = static_cast<int64_t>(id_bytes.size() / sizeof(int64_t));
  const int64_t num_bytes = static_cast<int64_t>(content.size()) + num_ids_ * (4 * shape.dim + 1);
  service_.check_reply_bytes(num_bytes);
  Admission::Admitted admitted(service_.admission(), num_bytes);

  std::vector<int64_t> ids(static_cast<size_t>(num_ids_));
  if (!ids.empty()) std::memcpy(ids.data(), id_bytes.data(), id_bytes.size());
  const auto rows_bytes = static_cast<size_t>(num_ids_ * 4 * shape.dim);
  ReplyBuffer rows(rows_bytes);
  ReplyBuffer found(ids.size());
  SparringPackedRequest wanted{};
  wanted.table = shape.number;
  wanted.count = num_ids_;
  wanted.ids = ids.data();
  wanted.rows = rows.data();
  wanted.found = reinterpret_cast<uint8_t*>(found.data());
  const std::string version(request.model_version);
  auto looked = arguments_of<SparringPackedLookup>();
  looked.version = version.empty() ? nullptr : version.c_str();
  looked.num_requests = 1;
  looked.requests = &wanted;
  if (service_.tables().notes_ids()) service_.tables().note(shape.number, ids.data(), num_ids_);
  try {
    service_.tables().library().lookup(served->packed.get(), looked);
  } catch (const PackedError& error) {
    service_.refuse(*served, error, version);
  }
  service_.request_log().note(LoggedKind::kInfer, looked.hash, content);
  num_found_ = std::count(found.data(), found.data() + ids.size(), char{1});

  std::vector<int64_t> of_rows = request.inputs[0].shape;
  of_rows.push_back(shape.dim);
  std::string head;
  FieldWriter writer(head);
  writer.text(1, shape.name);
  writer.text(2, looked.hash);
  writer.text(3, request.id);
  for (const std::string_view name : outputs) {
    writer.message(5, name == "rows" ? tensor_of(name, "FP32", of_rows)
                                     : tensor_of(name, "BOOL", request.inputs[0].shape));
  }
  std::vector<grpc::Slice> slices = {head};
  for (const std::string_view name : outputs) {
    const size_t size = name == "rows" ? rows_bytes : ids.size();
    std::string tag;
    FieldWriter(tag).begin_bytes(6, size);
    slices.emplace_back(tag);
    slices.push_back((name == "rows" ? rows : found).part(0, size));
  }
  return {grpc::ByteBuffer(slices.data(), slices.size()), std::move(admitted)};
}

std::string Inference::model_ready(std::string_view content) {
  const ModelRequest request = read_model_request(content);
  const auto served = service_.tables().served();
  const bool is_ready = service_.is_ready() && served->numbers.contains(request.name) &&
                        (request.version.empty() || served->has_version(request.version));
  std::string reply;
  FieldWriter(reply).whole(1, is_ready ? 1 : 0);
  return reply;
}

std::string Inference::model_metadata(std::string_view content) {
  const ModelRequest request = read_model_request(content);
  const auto served = service_.tables().served();
  const TableShape& shape = *service_.check_tables(*served, {{request.name, {}}})[0];
  if (!request.version.empty() && !served->has_version(request.version)) {
    throw StatusError(StatusCode::NOT_FOUND,
                      "model " + quoted(request.name) + ": version " + quoted(request.version) +
                          " is not kept; omit the version to list the kept ones",
                      "version_gone");
  }
  std::string reply;
  FieldWriter writer(reply);
  writer.text(1, shape.name);
  for (const Version& each : served->versions) writer.message(2, each.hash);
  writer.text(3, "sparring");
  writer.message(4, tensor_of("ids", "INT64", {-1}));
  writer.message(5, tensor_of("rows", "FP32", {-1, shape.dim}));
  writer.message(5, tensor_of("found", "BOOL", {-1}));
  return reply;
}

}  // namespace sparring::serve
