// Registers ops and their kernels when TensorFlow loads the library.
#ifndef SPARRING_TF_REGISTRATION_H_
#define SPARRING_TF_REGISTRATION_H_

#include <vector>

#include "owned.h"

namespace sparring::tf {

// Inputs, outputs and attributes of an op.
struct OpSignature {
  const char* name;
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
};

using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Compute = void (*)(void*, TF_OpKernelContext*);

inline void register_definition(const OpSignature& signature, InferShapes infer) {
  TF_OpDefinitionBuilder* const op = TF_NewOpDefinitionBuilder(signature.name);
  for (const char* each : signature.inputs) TF_OpDefinitionBuilderAddInput(op, each);
  for (const char* each : signature.outputs) TF_OpDefinitionBuilderAddOutput(op, each);
  for (const char* each : signature.attributes) TF_OpDefinitionBuilderAddAttr(op, each);
  // Rows change from step to step, so TensorFlow must not fold a lookup into a constant.
  TF_OpDefinitionBuilderSetIsStateful(op, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, infer);
  const Status status(TF_NewStatus());
  TF_RegisterOpDefinition(op, status.get());
}

// Registers an op with an attribute T, which is float or double, and one kernel per type.
inline void register_typed_op(const OpSignature& signature, InferShapes infer, Compute compute) {
  register_definition(signature, infer);
  const Status status(TF_NewStatus());
  for (const TF_DataType type : {TF_FLOAT, TF_DOUBLE}) {
    TF_KernelBuilder* const kernel =
        TF_NewKernelBuilder(signature.name, "CPU", nullptr, compute, nullptr);
    TF_KernelBuilder_TypeConstraint(kernel, "T", type, status.get());
    TF_RegisterKernelBuilder(signature.name, kernel, status.get());
  }
}

// Creates and destroys the state of a kernel between runs, from the attributes of its node in the graph.
using Create = void* (*)(TF_OpKernelConstruction*);
using Destroy = void (*)(void*);

inline void register_plain_op(const OpSignature& signature, InferShapes infer, Compute compute,
                              Create create = nullptr, Destroy destroy = nullptr) {
  register_definition(signature, infer);
  const Status status(TF_NewStatus());
  TF_RegisterKernelBuilder(
      signature.name, TF_NewKernelBuilder(signature.name, "CPU", create, compute, destroy),
      status.get());
}

}  // namespace sparring::tf

#endif  // SPARRING_TF_REGISTRATION_H_
