// Shape inference for the outputs of lookups.
#ifndef SPARRING_TF_LOOKUP_SHAPES_H_
#define SPARRING_TF_LOOKUP_SHAPES_H_

#include "owned.h"

namespace sparring::tf {

// The shape (…) of ids, followed by the dim of the anchor.
inline void infer_gather(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape ids(TF_NewShapeHandle()), anchor(TF_NewShapeHandle()), checked(TF_NewShapeHandle());
  const Shape dim(TF_NewShapeHandle()), out(TF_NewShapeHandle());
  const auto is_failed = [&] { return TF_GetCode(status) != TF_OK; };
  TF_ShapeInferenceContextGetInput(context, 0, ids.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextGetInput(context, 1, anchor.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextWithRank(context, anchor.get(), 2, checked.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1, 2, dim.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextConcatenateShapes(context, ids.get(), dim.get(), out.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextSetOutput(context, 0, out.get(), status);
}

// The number of bags (b) of lengths, the second input, followed by the sum of the anchors' dims; unknown
// if one of these is. Anchors are the inputs from the fourth on, except `num_others` at the end.
template <int num_others>
void infer_pool(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto is_failed = [&] { return TF_GetCode(status) != TF_OK; };
  const auto num_inputs = static_cast<int>(TF_ShapeInferenceContextNumInputs(context));
  int64_t width = 0;
  for (int place = 3; place + num_others < num_inputs; ++place) {
    const Shape anchor(TF_NewShapeHandle()), checked(TF_NewShapeHandle());
    TF_ShapeInferenceContextGetInput(context, place, anchor.get(), status);
    if (is_failed()) return;
    TF_ShapeInferenceContextWithRank(context, anchor.get(), 2, checked.get(), status);
    if (is_failed()) return;
    const Dimension dim(TF_NewDimensionHandle());
    TF_ShapeInferenceContextDim(context, checked.get(), 1, dim.get());
    if (!TF_DimensionHandleValueKnown(dim.get())) {
      return TF_ShapeInferenceContextSetUnknownShape(context, status);
    }
    width += TF_DimensionHandleValue(dim.get());
  }
  const Shape lengths(TF_NewShapeHandle()), checked(TF_NewShapeHandle());
  const Shape bags(TF_NewShapeHandle()), out(TF_NewShapeHandle());
  TF_ShapeInferenceContextGetInput(context, 1, lengths.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextWithRank(context, lengths.get(), 2, checked.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextSubshape(context, checked.get(), 1, 2, bags.get(), status);
  if (is_failed()) return;
  const Shape columns(
      TF_ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(width)));
  TF_ShapeInferenceContextConcatenateShapes(context, bags.get(), columns.get(), out.get(), status);
  if (is_failed()) return;
  TF_ShapeInferenceContextSetOutput(context, 0, out.get(), status);
}

}  // namespace sparring::tf

#endif  // SPARRING_TF_LOOKUP_SHAPES_H_
