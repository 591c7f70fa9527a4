// The ops of exported programs, which look up in the tables that are bound to a handle, without Python.
//
//   SparringProgramGather     ids (…), anchor (0, dim)                     → embeddings (…, dim)
//   SparringProgramPool       ids (n), lengths (features, b), weights (n or 0),
//                             anchors (0, dim) of each feature             → embeddings (b, sum of dims)
//   SparringProgramGatherIn, SparringProgramPoolIn: the same, and version () as the last input
//   SparringProgramBegin                                                   → version ()
//   SparringProgramParameter  version ()                                   → value
//
// Attributes: `handle`, as in sparring_program.h, `tables`, one line per feature, and `place`, the line
// of a parameter in parameters.txt.
// An anchor has no elements. Its shape determines the width of embeddings before the graph runs.
//
// `version` is the number of the version that a run holds, from SparringProgramBegin, until TensorFlow
// frees this tensor after the last op that reads it. Ops without this input read the current version.
//
// Rows are read by libsparring_packed.so in the folder of this library, or by the library that was
// passed to `sparring_tf_read_programs_by`. The build requires neither that library nor its header.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "lookup_shapes.h"
#include "registration.h"
#include "run.h"

namespace sparring::tf {
namespace {

// SparringPackedRequest of sparring_packed.h. A library whose requests are larger rejects these.
struct Request {
  int32_t table;
  int32_t is_mean;
  int64_t count;
  const int64_t* ids;
  void* rows;
  uint64_t row_stride;
  uint8_t* found;
  int64_t num_bags;
  const int64_t* offsets;
  const float* weights;
};

// SparringProgramParameter of sparring_program.h.
struct Parameter {
  const char* name;
  const char* dtype;
  int32_t num_dims;
  const int64_t* sizes;
  const void* data;
  uint64_t num_bytes;
};

template <class Source>
using Read = int32_t (*)(Source source, int64_t num_requests, const char* const* tables,
                         const int64_t* dims, Request* requests, uint64_t request_bytes);

// Functions of sparring_program.h.
struct Reader {
  Read<const char*> lookup = nullptr;
  Read<const char*> pool = nullptr;
  Read<int64_t> lookup_in = nullptr;
  Read<int64_t> pool_in = nullptr;
  int32_t (*begin)(const char* handle, int64_t* version) = nullptr;
  int32_t (*end)(int64_t version) = nullptr;
  int32_t (*parameter)(int64_t version, int64_t place, Parameter* parameter, uint64_t bytes) = nullptr;
  int32_t (*keep)(int64_t version, int64_t place, void** object, void (*destroy)(void*)) = nullptr;
  const char* (*error)() = nullptr;
  std::string fault;  // why it cannot read; empty if it can
};

constexpr const char* kReaderName = "/libsparring_packed.so";

Reader opened(const std::string& path) {
  Reader made;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    made.fault = std::string("the tables of a program are read by ") + path +
                 ", which cannot be opened: " + dlerror() + "; copy the bundle as a whole";
    return made;
  }
  bool has_all = true;
  const auto set = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    has_all = has_all && function != nullptr;
  };
  set(made.lookup, "sparring_program_lookup");
  set(made.pool, "sparring_program_pool");
  set(made.lookup_in, "sparring_program_lookup_in");
  set(made.pool_in, "sparring_program_pool_in");
  set(made.begin, "sparring_program_begin");
  set(made.end, "sparring_program_end");
  set(made.parameter, "sparring_program_parameter");
  set(made.keep, "sparring_program_keep");
  set(made.error, "sparring_program_error");
  if (!has_all) {
    made.fault = path + " does not have all functions for programs, because it is of an older release; "
                        "upgrade sparring-packed, and export the program again";
  }
  return made;
}

std::string own_folder() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &found) == 0) return ".";
  const std::string path = found.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::mutex opening;
std::atomic<const Reader*> chosen = nullptr;  // never deleted, because kernels may run until exit

const Reader& reader() {
  const Reader* found = chosen;
  if (found == nullptr) {
    const std::lock_guard lock(opening);
    found = chosen;
    if (found == nullptr) {
      found = new Reader(opened(own_folder() + kReaderName));
      chosen = found;
    }
  }
  return *found;
}

// Attributes of a lookup.
struct Site {
  std::string handle;
  std::vector<std::string> tables;
};

std::string text(TF_OpKernelConstruction* context, const char* name, TF_Status* status) {
  int32_t list_size = 0, size = 0;
  TF_OpKernelConstruction_GetAttrSize(context, name, &list_size, &size, status);
  if (TF_GetCode(status) != TF_OK) return "";
  std::string found(static_cast<size_t>(size), '\0');
  if (size > 0) {
    TF_OpKernelConstruction_GetAttrString(context, name, found.data(), found.size(), status);
  }
  return found;
}

void* create(TF_OpKernelConstruction* context) {
  const Status status(TF_NewStatus());
  auto site = std::make_unique<Site>();
  site->handle = text(context, "handle", status.get());
  const std::string tables = is_ok(status) ? text(context, "tables", status.get()) : "";
  if (!is_ok(status)) {
    TF_OpKernelConstruction_Failure(context, status.get());
    return nullptr;
  }
  for (size_t begin = 0; begin <= tables.size();) {
    const size_t end = std::min(tables.find('\n', begin), tables.size());
    site->tables.push_back(tables.substr(begin, end - begin));
    begin = end + 1;
  }
  return site.release();
}

void destroy(void* site) { delete static_cast<Site*>(site); }

const int64_t* integers(const Tensor& tensor) {
  return static_cast<const int64_t*>(TF_TensorData(tensor.get()));
}

// The input `version` at `place`; 0 if the op has no such input.
int64_t version_at(Run& run, TF_OpKernelContext* context, int place) {
  if (TF_NumInputs(context) <= place) return 0;
  const Tensor version = run.input(place);
  return run.is_ok() && TF_TensorElementCount(version.get()) == 1 ? *integers(version) : 0;
}

enum class Result { kRows, kPooled };

void read(Run& run, Result result, const Site& site, int64_t version, const std::vector<int64_t>& dims,
          std::vector<Request>& requests) {
  const Reader& by = reader();
  if (!by.fault.empty()) return run.fail(TF_FAILED_PRECONDITION, by.fault.c_str());
  std::vector<const char*> names;
  for (const std::string& each : site.tables) names.push_back(each.c_str());
  const auto call = [&](auto function, auto source) {
    return function(source, static_cast<int64_t>(requests.size()), names.data(), dims.data(),
                    requests.data(), sizeof(Request));
  };
  const bool is_pooled = result == Result::kPooled;
  const int32_t failed = version == 0 ? call(is_pooled ? by.pool : by.lookup, site.handle.c_str())
                                      : call(is_pooled ? by.pool_in : by.lookup_in, version);
  if (failed != 0) run.fail(TF_FAILED_PRECONDITION, by.error());
}

// The memory of a tensor with the number of a version that a run holds.
struct alignas(64) Held {
  int64_t version = 0;
};

void end(void* data, size_t, void*) {
  auto* const held = static_cast<Held*>(data);
  reader().end(held->version);
  delete held;
}

void begin(void* made, TF_OpKernelContext* context) {
  Run run(context);
  const Reader& by = reader();
  if (!by.fault.empty()) return run.fail(TF_FAILED_PRECONDITION, by.fault.c_str());
  auto held = std::make_unique<Held>();
  if (by.begin(static_cast<Site*>(made)->handle.c_str(), &held->version) != 0) {
    return run.fail(TF_FAILED_PRECONDITION, by.error());
  }
  run.set_output(
      Tensor(TF_NewTensor(TF_INT64, nullptr, 0, held.release(), sizeof(int64_t), &end, nullptr)));
}

void* create_parameter(TF_OpKernelConstruction* context) {
  const Status status(TF_NewStatus());
  auto place = std::make_unique<int64_t>();
  TF_OpKernelConstruction_GetAttrInt64(context, "place", place.get(), status.get());
  if (!is_ok(status)) {
    TF_OpKernelConstruction_Failure(context, status.get());
    return nullptr;
  }
  return place.release();
}

void destroy_parameter(void* place) { delete static_cast<int64_t*>(place); }

TF_DataType dtype_named(const std::string& name) {
  static const std::map<std::string, TF_DataType> dtypes = {
      {"F32", TF_FLOAT}, {"F64", TF_DOUBLE}, {"F16", TF_HALF},  {"BF16", TF_BFLOAT16},
      {"I64", TF_INT64}, {"I32", TF_INT32},  {"I16", TF_INT16}, {"I8", TF_INT8},
      {"U8", TF_UINT8},  {"BOOL", TF_BOOL}};
  const auto found = dtypes.find(name);
  return found == dtypes.end() ? TF_DataType{} : found->second;
}

void parameter(void* made, TF_OpKernelContext* context) {
  Run run(context);
  const int64_t place = *static_cast<int64_t*>(made);
  const int64_t version = version_at(run, context, 0);
  if (!run.is_ok()) return run.fail();
  const Reader& by = reader();
  if (!by.fault.empty()) return run.fail(TF_FAILED_PRECONDITION, by.fault.c_str());
  const auto fail = [&] { run.fail(TF_FAILED_PRECONDITION, by.error()); };
  const auto destroy_tensor = [](void* tensor) { TF_DeleteTensor(static_cast<TF_Tensor*>(tensor)); };
  void* kept = nullptr;
  if (by.keep(version, place, &kept, destroy_tensor) != 0) return fail();
  if (kept == nullptr) {
    Parameter found{};
    if (by.parameter(version, place, &found, sizeof found) != 0) return fail();
    const TF_DataType type = dtype_named(found.dtype);
    if (type != run.type()) {
      return run.refuse(std::string("SparringProgramParameter: parameter ") + found.name + " is " +
                        found.dtype + ", which the program does not read; export the program again");
    }
    Tensor copy(TF_AllocateTensor(type, found.sizes, found.num_dims, found.num_bytes));
    std::memcpy(TF_TensorData(copy.get()), found.data, found.num_bytes);
    kept = copy.get();
    if (by.keep(version, place, &kept, destroy_tensor) != 0) return fail();
    if (kept == copy.get()) (void)copy.release();  // otherwise another run was faster
  }
  // The version keeps a reference, so no op writes its result into this memory.
  run.set_output_of(static_cast<TF_Tensor*>(kept));
}

void gather(void* made, TF_OpKernelContext* context) {
  Run run(context);
  const Site& site = *static_cast<Site*>(made);
  const Tensor ids = run.input(0), anchor = run.input(1);
  if (!run.is_ok()) return run.fail();
  if (TF_NumDims(anchor.get()) != 2 || site.tables.size() != 1) {
    return run.refuse("SparringProgramGather: anchor must be (0, dim), and tables one name");
  }
  std::vector<int64_t> dims;
  for (int place = 0; place < TF_NumDims(ids.get()); ++place) {
    dims.push_back(TF_Dim(ids.get(), place));
  }
  dims.push_back(TF_Dim(anchor.get(), 1));
  const Tensor out = run.output(dims, TF_FLOAT);
  if (!run.is_ok()) return run.fail();
  std::vector<Request> requests(1);
  requests[0].count = TF_TensorElementCount(ids.get());
  requests[0].ids = integers(ids);
  requests[0].rows = TF_TensorData(out.get());
  const int64_t version = version_at(run, context, 2);
  if (!run.is_ok()) return run.fail();
  read(run, Result::kRows, site, version, {dims.back()}, requests);
}

void pool(void* made, TF_OpKernelContext* context) {
  Run run(context);
  const Site& site = *static_cast<Site*>(made);
  const size_t num_features = site.tables.size();
  const Tensor ids = run.input(0), lengths = run.input(1), weights = run.input(2);
  if (!run.is_ok()) return run.fail();
  if (static_cast<size_t>(TF_NumInputs(context)) < 3 + num_features ||
      TF_NumDims(ids.get()) != 1 || TF_NumDims(lengths.get()) != 2 ||
      TF_Dim(lengths.get(), 0) != static_cast<int64_t>(num_features)) {
    return run.refuse("SparringProgramPool: ids must be (n), lengths (features, bags), for " +
                      std::to_string(num_features) + " features");
  }
  int64_t width = 0;
  std::vector<int64_t> dims;
  for (size_t feature = 0; feature < num_features; ++feature) {
    const Tensor anchor = run.input(3 + static_cast<int>(feature));
    if (!run.is_ok()) return run.fail();
    if (TF_NumDims(anchor.get()) != 2) {
      return run.refuse("SparringProgramPool: anchors must be (0, dim)");
    }
    dims.push_back(TF_Dim(anchor.get(), 1));
    width += dims.back();
  }
  const int64_t count = TF_Dim(ids.get(), 0), num_bags = TF_Dim(lengths.get(), 1);
  const int64_t num_weights = TF_TensorElementCount(weights.get());
  // The ends of all bags, feature by feature, each starting at 0.
  std::vector<int64_t> offsets;
  offsets.reserve(num_features * static_cast<size_t>(num_bags + 1));
  const int64_t* length = integers(lengths);
  int64_t left = count;
  for (size_t feature = 0; feature < num_features; ++feature) {
    offsets.push_back(0);
    for (int64_t bag = 0; bag < num_bags; ++bag, ++length) {
      if (*length < 0 || *length > left) {
        return run.refuse("SparringProgramPool: lengths of bags do not add up to " +
                          std::to_string(count) + " ids");
      }
      left -= *length;
      offsets.push_back(offsets.back() + *length);
    }
  }
  if (left != 0 || (num_weights != 0 && num_weights != count)) {
    return run.refuse("SparringProgramPool: found " + std::to_string(count) + " ids, lengths of " +
                      std::to_string(count - left) + " and " + std::to_string(num_weights) +
                      " weights");
  }
  const Tensor out = run.output({num_bags, width}, TF_FLOAT);
  if (!run.is_ok()) return run.fail();
  auto* rows = static_cast<float*>(TF_TensorData(out.get()));
  const int64_t* id = integers(ids);
  const auto* weight = num_weights == 0 ? nullptr : static_cast<float*>(TF_TensorData(weights.get()));
  const int64_t* own_offsets = offsets.data();
  std::vector<Request> requests(num_features);
  for (size_t feature = 0; feature < num_features; ++feature) {
    Request& request = requests[feature];
    request.count = own_offsets[num_bags];
    request.ids = id;
    request.rows = rows;
    request.row_stride = static_cast<uint64_t>(width) * sizeof(float);
    request.num_bags = num_bags;
    request.offsets = own_offsets;
    request.weights = weight;
    id += request.count;
    rows += dims[feature];
    own_offsets += num_bags + 1;
    if (weight != nullptr) weight += request.count;
  }
  const int64_t version = version_at(run, context, 3 + static_cast<int>(num_features));
  if (!run.is_ok()) return run.fail();
  read(run, Result::kPooled, site, version, dims, requests);
}

void infer_version(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

const bool is_registered = [] {
  const std::vector<const char*> lookup{"handle: string", "tables: string"};
  const std::vector<const char*> pooled{"F: int >= 1", "handle: string", "tables: string"};
  register_plain_op({"SparringProgramGather", {"ids: int64", "anchor: float"}, {"found: float"}, lookup},
                    &infer_gather, &gather, &create, &destroy);
  register_plain_op({"SparringProgramGatherIn",
                     {"ids: int64", "anchor: float", "version: int64"},
                     {"found: float"},
                     lookup},
                    &infer_gather, &gather, &create, &destroy);
  register_plain_op({"SparringProgramPool",
                     {"ids: int64", "lengths: int64", "weights: float", "anchors: F * float"},
                     {"found: float"},
                     pooled},
                    &infer_pool<0>, &pool, &create, &destroy);
  register_plain_op({"SparringProgramPoolIn",
                     {"ids: int64", "lengths: int64", "weights: float", "anchors: F * float",
                      "version: int64"},
                     {"found: float"},
                     pooled},
                    &infer_pool<1>, &pool, &create, &destroy);
  register_plain_op({"SparringProgramBegin", {}, {"version: int64"}, lookup},
                    &infer_version, &begin, &create, &destroy);
  register_plain_op({"SparringProgramParameter", {"version: int64"}, {"value: T"}, {"T: type", "place: int"}},
                    &TF_ShapeInferenceContextSetUnknownShape, &parameter, &create_parameter,
                    &destroy_parameter);
  return true;
}();

}  // namespace
}  // namespace sparring::tf

// Sets the library that reads the tables of all programs, before the first one runs. Returns null, or
// an error message that remains valid.
extern "C" __attribute__((visibility("default"))) const char* sparring_tf_read_programs_by(
    const char* library) {
  using sparring::tf::Reader;
  const std::lock_guard lock(sparring::tf::opening);
  auto* const found = new Reader(sparring::tf::opened(library));  // never deleted, like `chosen`
  if (!found->fault.empty()) return found->fault.c_str();
  sparring::tf::chosen = found;
  return nullptr;
}
