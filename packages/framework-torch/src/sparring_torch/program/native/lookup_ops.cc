// Operators of exported programs: lookups in tables that are bound to a handle.
//
//   lookup         ids (*)                 → (*, dim) float32
//   pooled_lookup  ids, bags, weights      → (bags, sum of dims) float32
//   flat_lookup    ids, lengths            → (elements, 1) float32: rows, feature after feature
//
// lookup_in, pooled_lookup_in and flat_lookup_in look up in the version that a run holds. The first
// argument is a tensor with the version's number instead of the handle.
//
// Uses torch's stable ABI, so that one library runs with torch 2.10 and all later releases.
#include <sys/mman.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparring_program.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Format of `bags`.
enum Form : int64_t {
  kRows = 0,           // ids (bags, n); no `bags`
  kOffsets = 1,        // (bags) starts
  kOffsetsAndEnd = 2,  // (bags + 1)
  kLengths = 3         // (features of the batch * bags)
};

// Where to look up: the current version of the program with this handle, or a version by its number.
struct Source {
  std::string handle;
  int64_t version = 0;
};

Source source_of(const Tensor& version) {
  if (version.numel() != 1 || version.scalar_type() != ScalarType::Long) {
    throw std::runtime_error("lookup: the version must be one int64, from sparring_program_begin");
  }
  return {"", *static_cast<const int64_t*>(version.const_data_ptr())};
}

enum class Result { kRows, kPooled };

void read(Result result, const Source& source, const std::vector<std::string>& tables,
          const std::vector<int64_t>& dims, std::vector<SparringPackedRequest>& requests) {
  if (tables.size() != dims.size()) throw std::runtime_error("lookup: each table must have a dim");
  std::vector<const char*> names;
  for (const std::string& each : tables) names.push_back(each.c_str());
  const auto count = static_cast<int64_t>(requests.size());
  const auto call = [&](auto function, auto where) {
    return function(where, count, names.data(), dims.data(), requests.data(),
                    sizeof(SparringPackedRequest));
  };
  const bool is_pooled = result == Result::kPooled;
  const int32_t failed =
      source.handle.empty()
          ? call(is_pooled ? &sparring_program_pool_in : &sparring_program_lookup_in, source.version)
          : call(is_pooled ? &sparring_program_pool : &sparring_program_lookup, source.handle.c_str());
  if (failed != 0) throw std::runtime_error(sparring_program_error());
}

std::vector<int64_t> whole_numbers(const Tensor& tensor, const char* what) {
  const Tensor whole = tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
  const size_t count = static_cast<size_t>(whole.numel());
  std::vector<int64_t> found(count);
  if (whole.scalar_type() == ScalarType::Long) {
    const auto* from = static_cast<const int64_t*>(whole.const_data_ptr());
    std::copy(from, from + count, found.begin());
  } else if (whole.scalar_type() == ScalarType::Int) {
    const auto* from = static_cast<const int32_t*>(whole.const_data_ptr());
    std::copy(from, from + count, found.begin());
  } else {
    throw std::runtime_error(std::string(what) + " must be int64 or int32");
  }
  return found;
}

// Ids in the type of the reader; copied only if the tensor has another type or is not contiguous.
class Ids {
 public:
  explicit Ids(const Tensor& tensor) : kept_(tensor) {
    if (tensor.scalar_type() == ScalarType::Long && tensor.is_contiguous()) {
      data_ = static_cast<const int64_t*>(tensor.const_data_ptr());
    } else {
      copied_ = whole_numbers(tensor, "ids");
      data_ = copied_.data();
    }
  }
  const int64_t* data() const { return data_; }
  int64_t count() const { return kept_.numel(); }

 private:
  Tensor kept_;
  std::vector<int64_t> copied_;
  const int64_t* data_;
};

// Creates a tensor. A large one is new memory, whose first access costs more than a lookup unless its
// pages are large; NumPy requests large pages in the same way.
Tensor floats(const Tensor& like, std::vector<int64_t> sizes) {
  Tensor made = torch::stable::new_empty(like, sizes, ScalarType::Float);
  const uintptr_t bytes = static_cast<uintptr_t>(made.numel()) * sizeof(float);
  if (bytes >= uintptr_t{4} << 20) {
    const auto begin = reinterpret_cast<uintptr_t>(made.mutable_data_ptr());
    const uintptr_t page = 4096, first = (begin + page - 1) / page * page;
    // If the request fails, pages are small.
    (void)madvise(reinterpret_cast<void*>(first), begin + bytes - first, MADV_HUGEPAGE);
  }
  return made;
}

// Ids and weights without padding ids; empty if there are no padding ids.
struct Kept {
  std::vector<int64_t> ids;
  std::vector<float> weights;
};

Kept without_padding(const int64_t* ids, const float* weights, std::vector<int64_t>& offsets,
                     int64_t padding) {
  Kept kept;
  for (size_t bag = 0; bag + 1 < offsets.size(); ++bag) {
    const int64_t begin = offsets[bag], end = offsets[bag + 1];
    offsets[bag] = static_cast<int64_t>(kept.ids.size());
    for (int64_t i = begin; i < end; ++i) {
      if (ids[i] == padding) continue;
      kept.ids.push_back(ids[i]);
      if (weights != nullptr) kept.weights.push_back(weights[i]);
    }
  }
  offsets.back() = static_cast<int64_t>(kept.ids.size());
  return kept;
}

Tensor look_up(const Source& source, std::string name, int64_t dim, bool has_padding,
              int64_t padding, Tensor given) {
  const Ids ids(given);
  std::vector<int64_t> sizes(given.sizes().begin(), given.sizes().end());
  sizes.push_back(dim);
  Tensor rows = floats(given, sizes);
  auto* to = static_cast<float*>(rows.mutable_data_ptr());
  std::vector<SparringPackedRequest> requests(1);
  requests[0].count = ids.count();
  requests[0].ids = ids.data();
  requests[0].rows = to;
  read(Result::kRows, source, {name}, {dim}, requests);
  if (has_padding) {
    for (int64_t i = 0; i < ids.count(); ++i) {
      if (ids.data()[i] == padding) std::fill_n(to + i * dim, dim, 0.0F);
    }
  }
  return rows;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

// `names` has one line per output, and `dims` and `means` one element; `places` are the positions in
// the batch of the features of the outputs.
Tensor pool(const Source& source, std::string names, std::vector<int64_t> dims,
                     std::vector<int64_t> means, bool has_padding, int64_t padding,
                     int64_t form, Tensor given, std::optional<Tensor> bags, std::optional<Tensor> weights,
                     std::vector<int64_t> places, int64_t num_bags) {
  const Ids ids(given);
  const auto of_outputs = lines(names);
  int64_t width = 0;
  for (const int64_t dim : dims) width += dim;
  Tensor pooled = floats(given, {num_bags, width});
  std::vector<int64_t> starts;
  if (form != kRows) starts = whole_numbers(bags.value(), form == kLengths ? "lengths" : "offsets");
  if (form == kLengths) {
    int64_t total = 0;
    for (int64_t& each : starts) {
      if (each < 0) throw std::runtime_error("lookup of bags: lengths must not be negative");
      total += each;
      each = total - each;
    }
    starts.push_back(total);
  } else if (form == kOffsets) {
    starts.push_back(ids.count());
  } else if (form == kRows) {
    const int64_t length = given.size(1);
    for (int64_t bag = 0; bag <= num_bags; ++bag) starts.push_back(bag * length);
  }
  if (starts.back() != ids.count()) {
    throw std::runtime_error("lookup of bags: the bags end at id " + std::to_string(starts.back()) +
                             ", but there are " +
                             std::to_string(ids.count()) + " ids");
  }
  const float* all_weights = nullptr;
  Tensor kept_weights = given;
  if (weights.has_value()) {
    kept_weights = weights->is_contiguous() ? *weights : torch::stable::contiguous(*weights);
    if (kept_weights.scalar_type() != ScalarType::Float) {
      throw std::runtime_error("lookup of bags: weights must be float32; convert them");
    }
    all_weights = static_cast<const float*>(kept_weights.const_data_ptr());
  }
  auto* to = static_cast<float*>(pooled.mutable_data_ptr());
  std::vector<SparringPackedRequest> requests(dims.size());
  std::vector<std::vector<int64_t>> all_offsets(dims.size());
  std::vector<Kept> all_kept(dims.size());
  for (size_t output = 0; output < dims.size(); ++output) {
    const int64_t place = form == kLengths ? places[output] : 0;
    const auto first = starts.begin() + place * num_bags;
    if (static_cast<int64_t>(starts.size()) < (place + 1) * num_bags + 1) {
      throw std::runtime_error("lookup of bags: there are fewer lengths than bags");
    }
    std::vector<int64_t>& offsets = all_offsets[output];
    offsets.assign(first, first + num_bags + 1);
    const int64_t begin = offsets.front();
    for (int64_t& each : offsets) each -= begin;
    const int64_t* own_ids = ids.data() + begin;
    const float* own_weights = all_weights == nullptr ? nullptr : all_weights + begin;
    if (has_padding) {
      Kept& kept = all_kept[output];
      kept = without_padding(own_ids, own_weights, offsets, padding);
      own_ids = kept.ids.data();
      own_weights = own_weights == nullptr ? nullptr : kept.weights.data();
    }
    SparringPackedRequest& request = requests[output];
    request.is_mean = static_cast<int32_t>(means[output]);
    request.count = offsets.back();
    request.ids = own_ids;
    request.rows = to;
    request.row_stride = static_cast<uint64_t>(width) * sizeof(float);
    request.num_bags = num_bags;
    request.offsets = offsets.data();
    request.weights = own_weights;
    to += dims[output];
  }
  read(Result::kPooled, source, of_outputs, dims, requests);
  return pooled;
}

Tensor flatten(const Source& source, std::string names, std::vector<int64_t> dims, Tensor given,
                   Tensor lengths, std::vector<int64_t> places, int64_t num_features,
                   int64_t num_elements) {
  const Ids ids(given);
  const auto of_outputs = lines(names);
  std::vector<int64_t> counts = whole_numbers(lengths, "lengths");
  const int64_t stride = num_features == 0 ? 0 : static_cast<int64_t>(counts.size()) / num_features;
  std::vector<int64_t> starts{0};
  for (int64_t feature = 0; feature < num_features; ++feature) {
    int64_t total = starts.back();
    for (int64_t bag = 0; bag < stride; ++bag) {
      const int64_t length = counts[static_cast<size_t>(feature * stride + bag)];
      if (length < 0) throw std::runtime_error("lookup of bags: lengths must not be negative");
      total += length;
    }
    starts.push_back(total);
  }
  if (starts.back() != ids.count()) {
    throw std::runtime_error("lookup: lengths add up to " + std::to_string(starts.back()) +
                             ", but there are " + std::to_string(ids.count()) + " ids");
  }
  Tensor flat = floats(given, {num_elements, 1});
  auto* to = static_cast<float*>(flat.mutable_data_ptr());
  int64_t room = num_elements;
  std::vector<SparringPackedRequest> requests(dims.size());
  for (size_t output = 0; output < dims.size(); ++output) {
    const auto place = static_cast<size_t>(places[output]);
    SparringPackedRequest& request = requests[output];
    request.count = starts.at(place + 1) - starts.at(place);
    request.ids = ids.data() + starts[place];
    request.rows = to;
    room -= request.count * dims[output];
    if (room < 0) throw std::runtime_error("lookup: there are more rows than num_elements");
    to += request.count * dims[output];
  }
  read(Result::kRows, source, of_outputs, dims, requests);
  return flat;
}

using Numbers = std::vector<int64_t>;

Tensor lookup(std::string handle, std::string table, int64_t dim, bool has_padding, int64_t padding,
              Tensor ids) {
  return look_up({handle}, table, dim, has_padding, padding, ids);
}

Tensor lookup_in(Tensor version, std::string table, int64_t dim, bool has_padding, int64_t padding,
                 Tensor ids) {
  return look_up(source_of(version), table, dim, has_padding, padding, ids);
}

Tensor pooled_lookup(std::string handle, std::string tables, Numbers dims, Numbers means,
                     bool has_padding, int64_t padding, int64_t form, Tensor ids,
                     std::optional<Tensor> bags, std::optional<Tensor> weights, Numbers places,
                     int64_t num_bags) {
  return pool({handle}, tables, dims, means, has_padding, padding, form, ids, bags, weights, places,
              num_bags);
}

Tensor pooled_lookup_in(Tensor version, std::string tables, Numbers dims, Numbers means,
                        bool has_padding, int64_t padding, int64_t form, Tensor ids,
                        std::optional<Tensor> bags, std::optional<Tensor> weights, Numbers places,
                        int64_t num_bags) {
  return pool(source_of(version), tables, dims, means, has_padding, padding, form, ids, bags, weights,
              places, num_bags);
}

Tensor flat_lookup(std::string handle, std::string tables, Numbers dims, Tensor ids, Tensor lengths,
                   Numbers places, int64_t num_features, int64_t num_elements) {
  return flatten({handle}, tables, dims, ids, lengths, places, num_features, num_elements);
}

Tensor flat_lookup_in(Tensor version, std::string tables, Numbers dims, Tensor ids, Tensor lengths,
                      Numbers places, int64_t num_features, int64_t num_elements) {
  return flatten(source_of(version), tables, dims, ids, lengths, places, num_features, num_elements);
}

constexpr const char* kLookup =
    "str table, int dim, bool has_padding, int padding, Tensor ids) -> Tensor";
constexpr const char* kPooledLookup =
    "str tables, int[] dims, int[] means, bool has_padding, int padding, int form, Tensor ids, "
    "Tensor? bags, Tensor? weights, int[] places, SymInt num_bags) -> Tensor";
constexpr const char* kFlatLookup =
    "str tables, int[] dims, Tensor ids, Tensor lengths, int[] places, int num_features, "
    "SymInt num_elements) -> Tensor";

}  // namespace

STABLE_TORCH_LIBRARY(sparring_program, library) {
  const auto define = [&](const std::string& name, const char* arguments) {
    library.def((name + "(str handle, " + arguments).c_str());
    library.def((name + "_in(Tensor version, " + arguments).c_str());
  };
  define("lookup", kLookup);
  define("pooled_lookup", kPooledLookup);
  define("flat_lookup", kFlatLookup);
}

STABLE_TORCH_LIBRARY_IMPL(sparring_program, CPU, library) {
  library.impl("lookup", TORCH_BOX(&lookup));
  library.impl("lookup_in", TORCH_BOX(&lookup_in));
  library.impl("pooled_lookup", TORCH_BOX(&pooled_lookup));
  library.impl("pooled_lookup_in", TORCH_BOX(&pooled_lookup_in));
  library.impl("flat_lookup", TORCH_BOX(&flat_lookup));
  library.impl("flat_lookup_in", TORCH_BOX(&flat_lookup_in));
}
