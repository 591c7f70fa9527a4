// The ops SparringGather and SparringPool map ids to embeddings with core's native lookup.
//
//   SparringGather  ids (…), anchor (0, dim), guard, collection ()    → embeddings (…, dim)
//   SparringPool    ids (n), lengths (features, b), weights (n or 0),
//                   anchors (0, dim) of each feature, guard,
//                   collection ()                                     → embeddings (b, sum of dims)
//   SparringSpread  gradient (b, sum of dims), and ids, lengths, weights and anchors of
//                   SparringPool                   → per feature: ids (k), gradients (k, dim)
//   SparringAttach  embeddings (n, dim), ids (n), anchor (0, dim)     → embeddings (n, dim)
//
// An anchor has no elements. Its shape determines the width of embeddings before the graph
// runs, and it receives the gradient. SparringAttach returns embeddings from another kind
// of lookup unchanged, so that they get the same gradient. A guard is a variable that every
// step writes to. It makes TensorFlow run lookups and steps in program order.
//
// `collection` is a number from core; see sparring/lookup_abi.h. The ops do not take
// Python's lock; a storage that is written in Python takes it itself.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "lookup_shapes.h"
#include "registration.h"
#include "run.h"
#include "sparring/lookup_abi.h"

namespace sparring::tf {
namespace {

// Set once before any op runs.
const SparringLookups* lookups = nullptr;

int32_t type_code(TF_DataType type) {
  return type == TF_DOUBLE ? SPARRING_FLOAT64 : SPARRING_FLOAT32;
}

const int64_t* integers(const Tensor& tensor) {
  return static_cast<const int64_t*>(TF_TensorData(tensor.get()));
}

void gather(void*, TF_OpKernelContext* context) {
  Run run(context);
  const Tensor ids = run.input(0), anchor = run.input(1), collection = run.input(3);
  if (!run.is_ok()) return run.fail();
  if (TF_NumDims(anchor.get()) != 2 || TF_TensorElementCount(collection.get()) != 1) {
    return run.refuse("SparringGather: anchor must be (0, dim), and collection one number");
  }
  std::vector<int64_t> dims;
  for (int place = 0; place < TF_NumDims(ids.get()); ++place) {
    dims.push_back(TF_Dim(ids.get(), place));
  }
  dims.push_back(TF_Dim(anchor.get(), 1));
  const Tensor out = run.output(dims, run.type());
  if (!run.is_ok()) return run.fail();
  SparringGather asked{};
  asked.struct_bytes = sizeof asked;
  asked.count = TF_TensorElementCount(ids.get());
  asked.ids = integers(ids);
  asked.dim = dims.back();
  asked.type = type_code(run.type());
  asked.out = TF_TensorData(out.get());
  const SparringStatus status = lookups->gather(*integers(collection), &asked);
  if (status != SPARRING_OK) run.fail(status, asked.error);
}

void pool(void*, TF_OpKernelContext* context) {
  Run run(context);
  const int num_features = TF_NumInputs(context) - 5;
  const Tensor ids = run.input(0), lengths = run.input(1), weights = run.input(2);
  const Tensor collection = run.input(4 + num_features);
  if (!run.is_ok()) return run.fail();
  int64_t width = 0;
  for (int feature = 0; feature < num_features; ++feature) {
    const Tensor anchor = run.input(3 + feature);
    if (!run.is_ok()) return run.fail();
    if (TF_NumDims(anchor.get()) != 2) return run.refuse("SparringPool: anchors must be (0, dim)");
    width += TF_Dim(anchor.get(), 1);
  }
  if (TF_NumDims(ids.get()) != 1 || TF_NumDims(lengths.get()) != 2 ||
      TF_Dim(lengths.get(), 0) != num_features || TF_TensorElementCount(collection.get()) != 1) {
    return run.refuse("SparringPool: ids must be (n), lengths (features, bags), for " +
                      std::to_string(num_features) + " features");
  }
  const int64_t count = TF_Dim(ids.get(), 0);
  const int64_t num_weights = TF_TensorElementCount(weights.get());
  if (num_weights != 0 && num_weights != count) {
    return run.refuse("SparringPool: found " + std::to_string(num_weights) + " weights for " +
                      std::to_string(count) + " ids");
  }
  const int64_t num_bags = TF_Dim(lengths.get(), 1);
  const Tensor out = run.output({num_bags, width}, run.type());
  if (!run.is_ok()) return run.fail();
  SparringPool asked{};
  asked.struct_bytes = sizeof asked;
  asked.num_features = num_features;
  asked.num_bags = num_bags;
  asked.count = count;
  asked.ids = integers(ids);
  asked.lengths = integers(lengths);
  asked.weights = num_weights == 0 ? nullptr : TF_TensorData(weights.get());
  asked.width = width;
  asked.type = type_code(run.type());
  asked.out = TF_TensorData(out.get());
  const SparringStatus status = lookups->pool(*integers(collection), &asked);
  if (status != SPARRING_OK) run.fail(status, asked.error);
}

// The gradient of each id is the gradient of its bag multiplied by the id's weight.
template <class T>
void spread(const T* gradient, int64_t stride, int64_t dim, const int64_t* lengths,
            int64_t num_bags, const T* weights, T* out) {
  for (int64_t bag = 0; bag < num_bags; ++bag, gradient += stride) {
    for (int64_t left = lengths[bag]; left > 0; --left, out += dim) {
      if (weights == nullptr) {
        std::copy(gradient, gradient + dim, out);
        continue;
      }
      const T weight = *weights++;
      for (int64_t place = 0; place < dim; ++place) out[place] = weight * gradient[place];
    }
  }
}

// Whether `lengths` are not negative and add up to `sum`.
bool is_sum_of(int64_t sum, const int64_t* lengths, int64_t count) {
  for (const int64_t* const end = lengths + count; lengths != end; ++lengths) {
    if (*lengths < 0 || *lengths > sum) return false;
    sum -= *lengths;
  }
  return sum == 0;
}

// Returns why the inputs cannot belong to a SparringPool, or an empty string.
std::string spread_fault(const Tensor& gradient, const Tensor& ids, const Tensor& lengths,
                         const Tensor& weights, int num_features) {
  if (TF_NumDims(gradient.get()) != 2 || TF_NumDims(lengths.get()) != 2 ||
      TF_Dim(lengths.get(), 0) != num_features ||
      TF_Dim(lengths.get(), 1) != TF_Dim(gradient.get(), 0)) {
    return "gradient must be (bags, dims), lengths (features, bags)";
  }
  const int64_t num_ids = TF_TensorElementCount(ids.get());
  const int64_t num_weights = TF_TensorElementCount(weights.get());
  const bool is_whole =
      is_sum_of(num_ids, integers(lengths), TF_TensorElementCount(lengths.get()));
  if (is_whole && (num_weights == 0 || num_weights == num_ids)) return "";
  return "found " + std::to_string(num_ids) + " ids and " + std::to_string(num_weights) +
         " weights, which do not match the sum of the lengths";
}

template <class T>
void spread_as(Run& run, TF_OpKernelContext* context) {
  const Tensor gradient = run.input(0), ids = run.input(1), lengths = run.input(2);
  const Tensor weights = run.input(3);
  const int num_features = TF_NumInputs(context) - 4;
  if (!run.is_ok()) return run.fail();
  const std::string fault = spread_fault(gradient, ids, lengths, weights, num_features);
  if (!fault.empty()) return run.refuse("SparringSpread: " + fault);
  const int64_t num_bags = TF_Dim(lengths.get(), 1), width = TF_Dim(gradient.get(), 1);
  int64_t width_left = width;
  const int64_t* length = integers(lengths);
  const int64_t* id = integers(ids);
  const T* from = static_cast<const T*>(TF_TensorData(gradient.get()));
  const bool is_weighted = TF_TensorElementCount(weights.get()) != 0;
  const T* weight = is_weighted ? static_cast<const T*>(TF_TensorData(weights.get())) : nullptr;
  for (int feature = 0; feature < num_features; ++feature) {
    const Tensor anchor = run.input(4 + feature);
    if (!run.is_ok()) return run.fail();
    const int64_t dim = TF_NumDims(anchor.get()) == 2 ? TF_Dim(anchor.get(), 1) : width + 1;
    width_left -= dim;
    if (width_left < 0 || (feature + 1 == num_features && width_left != 0)) {
      return run.refuse("SparringSpread: anchors must be (0, dim), and their dims must add up to "
                        "the gradient's");
    }
    const int64_t count = std::accumulate(length, length + num_bags, int64_t{0});
    const Tensor own_ids = run.output({count}, TF_INT64, feature);
    const Tensor values = run.output({count, dim}, run.type(num_features), num_features + feature);
    if (!run.is_ok()) return run.fail();
    std::copy(id, id + count, static_cast<int64_t*>(TF_TensorData(own_ids.get())));
    spread(from, width, dim, length, num_bags, weight,
           static_cast<T*>(TF_TensorData(values.get())));
    from += dim;
    length += num_bags;
    id += count;
    if (is_weighted) weight += count;
  }
}

void spread(void*, TF_OpKernelContext* context) {
  Run run(context);
  const int num_features = TF_NumInputs(context) - 4;
  run.type(num_features) == TF_DOUBLE ? spread_as<double>(run, context)
                                      : spread_as<float>(run, context);
}

// The output shares the memory of the input.
void attach(void*, TF_OpKernelContext* context) {
  Run run(context);
  const Tensor embeddings = run.input(0);
  if (!run.is_ok()) return run.fail();
  run.set_output(embeddings);
}

// ---- shape inference -------------------------------------------------------------

// TensorFlow's code for an unknown dimension.
constexpr auto kUnknownSize = static_cast<size_t>(-1);

void infer_attach(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape embeddings(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, 0, embeddings.get(), status);
  if (TF_GetCode(status) != TF_OK) return;
  TF_ShapeInferenceContextSetOutput(context, 0, embeddings.get(), status);
}

// (k) and (k, dim) per feature, where k is unknown.
void infer_spread(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto num_inputs = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
  const int num_features = num_inputs - 4;
  const auto is_failed = [&] { return TF_GetCode(status) != TF_OK; };
  for (int feature = 0; feature < num_features; ++feature) {
    // The number of ids per feature is unknown, even if their total number is known.
    const Shape ids(TF_ShapeInferenceContextVectorFromSize(context, kUnknownSize));
    TF_ShapeInferenceContextSetOutput(context, feature, ids.get(), status);
    if (is_failed()) return;
    const Shape anchor(TF_NewShapeHandle()), dim(TF_NewShapeHandle()), out(TF_NewShapeHandle());
    TF_ShapeInferenceContextGetInput(context, 4 + feature, anchor.get(), status);
    if (is_failed()) return;
    TF_ShapeInferenceContextSubshape(context, anchor.get(), 1, 2, dim.get(), status);
    if (is_failed()) return;
    TF_ShapeInferenceContextConcatenateShapes(context, ids.get(), dim.get(), out.get(), status);
    if (is_failed()) return;
    TF_ShapeInferenceContextSetOutput(context, num_features + feature, out.get(), status);
    if (is_failed()) return;
  }
}

// ---- registration when TensorFlow loads the library --------------------------------

const bool is_registered = [] {
  register_typed_op({"SparringGather",
                     {"ids: int64", "anchor: T", "guard: resource", "collection: int64"},
                     {"found: T"},
                     {"T: {float, double}"}},
                    &infer_gather, &gather);
  register_typed_op({"SparringPool",
                     {"ids: int64", "lengths: int64", "weights: T", "anchors: F * T",
                      "guard: resource", "collection: int64"},
                     {"found: T"},
                     {"F: int >= 1", "T: {float, double}"}},
                    &infer_pool<2>, &pool);
  register_typed_op({"SparringSpread",
                     {"gradient: T", "ids: int64", "lengths: int64", "weights: T", "anchors: F * T"},
                     {"own_ids: F * int64", "values: F * T"},
                     {"F: int >= 1", "T: {float, double}"}},
                    &infer_spread, &spread);
  register_typed_op({"SparringAttach",
                     {"embeddings: T", "ids: int64", "anchor: T"},
                     {"found: T"},
                     {"T: {float, double}"}},
                    &infer_attach, &attach);
  return true;
}();

}  // namespace
}  // namespace sparring::tf

// Sets the lookup functions; called once before any op runs. Returns whether this library
// supports their version.
extern "C" __attribute__((visibility("default"))) int32_t sparring_tf_connect(
    const SparringLookups* offered) {
  if (offered->version.major != SPARRING_LOOKUPS_ABI_MAJOR) return 0;
  sparring::tf::lookups = offered;
  return 1;
}
