// The Open Inference Protocol; each table is a model with the input `ids` (INT64, any shape) and the
// outputs `rows` (FP32, the shape of `ids` followed by dim) and `found` (BOOL, the shape of `ids`).
#ifndef SPARRING_SERVE_SERVER_INFERENCE_H_
#define SPARRING_SERVE_SERVER_INFERENCE_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/lookup_service.h"

namespace sparring::serve {

// A request, or the parts of it that are used; views into the message.
struct InferRequest {
  struct Tensor {
    std::string_view name;
    std::string_view datatype;
    std::vector<int64_t> shape;
    std::vector<int64_t> ids;
  };

  std::string_view model_name;
  std::string_view model_version;
  std::string_view id;
  std::vector<Tensor> inputs;
  std::vector<std::string_view> outputs;  // names
  std::vector<std::string_view> raw_input_contents;
};

class Inference {
 public:
  explicit Inference(LookupService& service) : service_(service) {}

  // Answers a ModelInferRequest, also without a deadline, and counts the call in the metrics.
  Reply infer(std::string_view content, double remaining_seconds, LookupService::Clock::time_point begin);
  std::string model_ready(std::string_view content);
  std::string model_metadata(std::string_view content);

 private:
  Reply infer(std::string_view content, double remaining_seconds);

  LookupService& service_;
  int table_ = -1;
  int64_t num_ids_ = 0;
  int64_t num_found_ = 0;
};

// Decodes a request. Throws StatusError if a field or a parameter is not supported.
InferRequest read_infer_request(std::string_view content);

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_INFERENCE_H_
