// Owning pointers to TensorFlow's handles.
#ifndef SPARRING_TF_OWNED_H_
#define SPARRING_TF_OWNED_H_

#include <memory>

#include "tensorflow_c_api.h"

namespace sparring::tf {

template <auto function>
struct Deleter {
  template <class T>
  void operator()(T* owned) const {
    function(owned);
  }
};

using Status = std::unique_ptr<TF_Status, Deleter<&TF_DeleteStatus>>;
using Tensor = std::unique_ptr<TF_Tensor, Deleter<&TF_DeleteTensor>>;
using Shape = std::unique_ptr<TF_ShapeHandle, Deleter<&TF_DeleteShapeHandle>>;
using Dimension = std::unique_ptr<TF_DimensionHandle, Deleter<&TF_DeleteDimensionHandle>>;

}  // namespace sparring::tf

#endif  // SPARRING_TF_OWNED_H_
