// The part of TensorFlow's C API for ops and kernels that this library uses.
//
// Declared here, so that the build does not require TensorFlow: these are C functions
// that are stable across releases, and are resolved when TensorFlow loads the library. The
// API is described in tensorflow/c/ops.h, kernels.h, tf_tensor.h and tf_status.h.
#ifndef SPARRING_TF_TENSORFLOW_C_API_H_
#define SPARRING_TF_TENSORFLOW_C_API_H_

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_Status;
struct TF_Tensor;
struct TF_ShapeHandle;
struct TF_DimensionHandle;
struct TF_ShapeInferenceContext;
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

// Codes of google.rpc.Code, and numbers of tensorflow.DataType.
enum TF_Code : int {
  TF_OK = 0,
  TF_INVALID_ARGUMENT = 3,
  TF_DEADLINE_EXCEEDED = 4,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_FAILED_PRECONDITION = 9,
  TF_UNIMPLEMENTED = 12,
  TF_INTERNAL = 13,
  TF_UNAVAILABLE = 14,
  TF_DATA_LOSS = 15,
};
enum TF_DataType : int {
  TF_FLOAT = 1,
  TF_DOUBLE = 2,
  TF_INT32 = 3,
  TF_UINT8 = 4,
  TF_INT16 = 5,
  TF_INT8 = 6,
  TF_INT64 = 9,
  TF_BOOL = 10,
  TF_BFLOAT16 = 14,
  TF_HALF = 19,
};

// ---- status
TF_Status* TF_NewStatus();
void TF_DeleteStatus(TF_Status* status);
void TF_SetStatus(TF_Status* status, TF_Code code, const char* message);
TF_Code TF_GetCode(const TF_Status* status);
const char* TF_Message(const TF_Status* status);

// ---- tensors
TF_Tensor* TF_AllocateTensor(TF_DataType type, const int64_t* dims, int num_dims, size_t num_bytes);
// Uses `data` without a copy if it is aligned to 64 bytes; calls `release` when it is no longer used.
TF_Tensor* TF_NewTensor(TF_DataType type, const int64_t* dims, int num_dims, void* data,
                        size_t num_bytes, void (*release)(void* data, size_t num_bytes, void* argument),
                        void* argument);
void TF_DeleteTensor(TF_Tensor* tensor);
int TF_NumDims(const TF_Tensor* tensor);
int64_t TF_Dim(const TF_Tensor* tensor, int place);
int64_t TF_TensorElementCount(const TF_Tensor* tensor);
void* TF_TensorData(const TF_Tensor* tensor);

// ---- ops: TensorFlow owns a registered builder
TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder, const char* spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool is_stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder* builder,
    void (*infer)(TF_ShapeInferenceContext* context, TF_Status* status));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);

// ---- shape inference: the caller owns the handles that it creates
int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* context);
TF_ShapeHandle* TF_NewShapeHandle();
void TF_DeleteShapeHandle(TF_ShapeHandle* handle);
TF_DimensionHandle* TF_NewDimensionHandle();
void TF_DeleteDimensionHandle(TF_DimensionHandle* handle);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* context, int place,
                                      TF_ShapeHandle* handle, TF_Status* status);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* context, int place,
                                       TF_ShapeHandle* handle, TF_Status* status);
void TF_ShapeInferenceContextWithRank(TF_ShapeInferenceContext* context, TF_ShapeHandle* handle,
                                      int64_t rank, TF_ShapeHandle* result, TF_Status* status);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext* context, TF_ShapeHandle* handle,
                                      int64_t begin, int64_t end, TF_ShapeHandle* result,
                                      TF_Status* status);
void TF_ShapeInferenceContextDim(TF_ShapeInferenceContext* context, TF_ShapeHandle* handle,
                                 int64_t place, TF_DimensionHandle* result);
int TF_DimensionHandleValueKnown(TF_DimensionHandle* handle);
int64_t TF_DimensionHandleValue(TF_DimensionHandle* handle);
TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext* context,
                                                       size_t size);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext* context,
                                               TF_ShapeHandle* first, TF_ShapeHandle* second,
                                               TF_ShapeHandle* result, TF_Status* status);
TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext* context);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext* context, TF_Status* status);

// ---- kernels: TensorFlow owns a registered builder
TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device,
                                      void* (*create)(TF_OpKernelConstruction*),
                                      void (*compute)(void*, TF_OpKernelContext*),
                                      void (*destroy)(void*));
void TF_KernelBuilder_TypeConstraint(TF_KernelBuilder* builder, const char* attribute,
                                     TF_DataType type, TF_Status* status);
void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder* builder, TF_Status* status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* context, const char* name,
                                         int32_t* list_size, int32_t* total_size,
                                         TF_Status* status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* context, const char* name,
                                           char* value, size_t room, TF_Status* status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction* context, const char* name,
                                          int64_t* value, TF_Status* status);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* context, TF_Status* status);
int TF_NumInputs(TF_OpKernelContext* context);
void TF_GetInput(TF_OpKernelContext* context, int place, TF_Tensor** tensor, TF_Status* status);
TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int place, TF_DataType type,
                             const int64_t* dims, int num_dims, size_t num_bytes,
                             TF_Status* status);
void TF_SetOutput(TF_OpKernelContext* context, int place, const TF_Tensor* tensor,
                  TF_Status* status);
TF_DataType TF_ExpectedOutputDataType(TF_OpKernelContext* context, int place);
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status);

}  // extern "C"

#endif  // SPARRING_TF_TENSORFLOW_C_API_H_
