// The ops that open the tables of a SavedModel when it is loaded.
//
//   SparringOpen   manifest (n), features (m), both UTF-8   → collection ()
//   SparringClose  collection ()                            →
//
// `manifest` is the path of a snapshot's manifest, and `features` is JSON that lists the
// features of one lookup. The number identifies a collection of core for the lookup ops.
// Python opens the tables, with functions that `sparring_tf_serve` sets. In a program
// without Python, or that has not imported sparring_tf, the op raises an error.
#include <array>
#include <atomic>
#include <string>

#include "registration.h"
#include "run.h"

namespace sparring::tf {
namespace {

constexpr int64_t kMessageBytes = 8192;

// Request to Python, and its reply.
struct Opening {
  const char* manifest;
  int64_t manifest_bytes;
  const char* features;
  int64_t features_bytes;
  int64_t number;         // out
  char* message;          // out: error message, null-terminated
  int64_t message_bytes;  // capacity of the message
};

// Returns TF_OK, or the code of the error in the message.
using Open = int32_t (*)(Opening* opening);
using Close = void (*)(int64_t number);

// Set before Python loads a model, and reset before Python exits, because a thread that
// requests Python's lock after that never returns.
std::atomic<Open> open_tables = nullptr;
std::atomic<Close> close_tables = nullptr;

void open(void*, TF_OpKernelContext* context) {
  Run run(context);
  const Tensor manifest = run.input(0), features = run.input(1);
  if (!run.is_ok()) return run.fail();
  const Open ask = open_tables;
  if (ask == nullptr) {
    return run.fail(TF_FAILED_PRECONDITION,
                    "this SavedModel has embedding tables of sparring, which are opened in Python: "
                    "run `import sparring_tf` in the process that loads it");
  }
  std::array<char, kMessageBytes> message{};
  Opening opening{};
  opening.manifest = static_cast<const char*>(TF_TensorData(manifest.get()));
  opening.manifest_bytes = TF_TensorElementCount(manifest.get());
  opening.features = static_cast<const char*>(TF_TensorData(features.get()));
  opening.features_bytes = TF_TensorElementCount(features.get());
  opening.message = message.data();
  opening.message_bytes = kMessageBytes;
  const int32_t code = ask(&opening);
  if (code != TF_OK) return run.fail(static_cast<TF_Code>(code), message.data());
  const Tensor out = run.output({}, TF_INT64);
  if (!run.is_ok()) return run.fail();
  *static_cast<int64_t*>(TF_TensorData(out.get())) = opening.number;
}

void close(void*, TF_OpKernelContext* context) {
  Run run(context);
  const Tensor number = run.input(0);
  if (!run.is_ok()) return run.fail();
  if (TF_TensorElementCount(number.get()) != 1) {
    return run.refuse("SparringClose: collection must be one number");
  }
  const Close tell = close_tables;
  if (tell != nullptr) tell(*static_cast<int64_t*>(TF_TensorData(number.get())));
}

void infer_open(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape scalar(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, scalar.get(), status);
}

void infer_close(TF_ShapeInferenceContext*, TF_Status*) {}

const bool is_registered = [] {
  register_plain_op({"SparringOpen", {"manifest: uint8", "features: uint8"}, {"number: int64"}, {}},
                    &infer_open, &open);
  register_plain_op({"SparringClose", {"number: int64"}, {}, {}}, &infer_close, &close);
  return true;
}();

}  // namespace
}  // namespace sparring::tf

// Sets the functions that open and close tables, or null to reset them.
extern "C" __attribute__((visibility("default"))) void sparring_tf_serve(
    sparring::tf::Open open, sparring::tf::Close close) {
  sparring::tf::open_tables = open;
  sparring::tf::close_tables = close;
}
