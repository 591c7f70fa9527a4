// The inputs, outputs and errors of one run of a kernel.
#ifndef SPARRING_TF_RUN_H_
#define SPARRING_TF_RUN_H_

#include <string>
#include <vector>

#include "owned.h"
#include "sparring/storage_abi.h"

namespace sparring::tf {

inline bool is_ok(const Status& status) { return TF_GetCode(status.get()) == TF_OK; }

inline TF_Code code_of(SparringStatus status) {
  switch (status) {
    case SPARRING_INVALID_ARGUMENT: return TF_INVALID_ARGUMENT;
    case SPARRING_UNSUPPORTED: return TF_UNIMPLEMENTED;
    case SPARRING_CLOSED: return TF_FAILED_PRECONDITION;
    case SPARRING_CAPACITY:
    case SPARRING_OUT_OF_MEMORY:
    case SPARRING_DEVICE_MEMORY: return TF_RESOURCE_EXHAUSTED;
    case SPARRING_IO: return TF_UNAVAILABLE;
    case SPARRING_DEADLINE: return TF_DEADLINE_EXCEEDED;
    case SPARRING_CORRUPT: return TF_DATA_LOSS;
    default: return TF_INTERNAL;
  }
}

// One run of a kernel: gives access to its inputs and outputs, and reports errors.
class Run {
 public:
  explicit Run(TF_OpKernelContext* context) : context_(context), status_(TF_NewStatus()) {}

  Tensor input(int place) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, place, &tensor, status_.get());
    return Tensor(tensor);
  }

  Tensor output(const std::vector<int64_t>& dims, TF_DataType type, int place = 0) {
    size_t num_bytes = type == TF_FLOAT ? 4 : 8;
    for (const int64_t dim : dims) num_bytes *= static_cast<size_t>(dim);
    return Tensor(TF_AllocateOutput(context_, place, type, dims.data(),
                                    static_cast<int>(dims.size()), num_bytes, status_.get()));
  }

  void set_output(const Tensor& tensor) { set_output_of(tensor.get()); }

  // Shares the memory of a tensor that remains with its owner.
  void set_output_of(const TF_Tensor* tensor) {
    TF_SetOutput(context_, 0, tensor, status_.get());
    if (!is_ok()) fail();
  }

  TF_DataType type(int place = 0) const { return TF_ExpectedOutputDataType(context_, place); }
  bool is_ok() const { return tf::is_ok(status_); }
  void fail() { TF_OpKernelContext_Failure(context_, status_.get()); }

  void fail(TF_Code code, const char* message) {
    TF_SetStatus(status_.get(), code, message);
    fail();
  }

  void refuse(const std::string& message) { fail(TF_INVALID_ARGUMENT, message.c_str()); }

  void fail(SparringStatus code, SparringError& error) {
    fail(code_of(code), error.message != nullptr ? error.message : "a lookup failed");
    if (error.release != nullptr) error.release(&error);
  }

 private:
  TF_OpKernelContext* context_;
  Status status_;
};

}  // namespace sparring::tf

#endif  // SPARRING_TF_RUN_H_
