// Decodes requests of the Open Inference Protocol.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "server/inference.h"
#include "wire/fields.h"
#include "wire/text.h"

namespace sparring::serve {

namespace {

// A parameter: its key, and its value as Python shows it; none if it is false, 0 or empty.
struct Parameter {
  std::string_view key;
  std::optional<std::string> value;
  bool is_one = false;  // true, or the number 1
};

struct Known {
  const char* key;
  bool may_be_true;  // else the only accepted value is false, 0 or empty
  const char* advice;
};

constexpr char kSequence[] = "requests are independent; remove it";
constexpr char kMemory[] = "ids and rows are sent in the messages; remove it";
constexpr char kBinary[] = "replies use raw_output_contents; remove it";

const std::vector<Known> kOfTensors = {
    {"shared_memory_region", false, kMemory},
    {"shared_memory_offset", false, kMemory},
    {"shared_memory_byte_size", false, kMemory},
};

const std::vector<Known> kOfOutputs = {
    {"shared_memory_region", false, kMemory},
    {"shared_memory_offset", false, kMemory},
    {"shared_memory_byte_size", false, kMemory},
    {"classification", false,
     "rows are embeddings, not class scores; remove it, or call Lookup/Recommend for the best rows"},
    {"binary_data", true, kBinary},
};

const std::vector<Known> kOfRequests = {
    {"sequence_id", false, kSequence},
    {"sequence_start", false, kSequence},
    {"sequence_end", false, kSequence},
    {"priority", false, "calls are answered in order of arrival; remove it"},
    {"timeout", false, "set the deadline of the gRPC call instead"},
    {"binary_data_output", true, kBinary},
};

[[noreturn]] void refuse_unknown(const FieldReader& reader, const char* supported) {
  reader.refuse("field " + std::to_string(reader.number()) + " is not supported; supported fields: " +
                supported);
}

Parameter read_parameter(std::string_view entry) {
  Parameter found;
  for (FieldReader fields("InferParameterEntry", entry); fields.next();) {
    if (fields.number() == 1) {
      found.key = fields.text("key");
      continue;
    }
    if (fields.number() != 2) refuse_unknown(fields, "1 key, 2 value");
    for (FieldReader value("InferParameter", fields.bytes("value")); value.next();) {
      switch (value.number()) {
        case 1:
          if (value.flag("bool_param")) found.value = "True", found.is_one = true;
          break;
        case 2:
        case 5: {
          const int64_t number = value.whole(value.number() == 2 ? "int64_param" : "uint64_param");
          if (number != 0) found.value = std::to_string(number), found.is_one = number == 1;
          break;
        }
        case 3: {
          const std::string_view text = value.text("string_param");
          if (!text.empty()) found.value = quoted(text);
          break;
        }
        case 4: {
          const double number = value.real("double_param");
          if (number != 0) found.value = general(number, 17), found.is_one = number == 1;
          break;
        }
        default:
          refuse_unknown(value,
                         "1 bool_param, 2 int64_param, 3 string_param, 4 double_param, 5 uint64_param");
      }
    }
  }
  return found;
}

// Parameters of one place of the request, which are checked when the whole request is decoded.
struct Place {
  std::string name;
  const std::vector<Known>* known;
  std::vector<Parameter> parameters;

  void add(const FieldReader& reader) {
    parameters.push_back(read_parameter(reader.bytes("parameters")));
    reader.check_items(parameters.size(), "parameters");
  }
};

void check_parameters(std::string_view model, const Place& place) {
  for (const Parameter& each : place.parameters) {
    const auto known = std::find_if(place.known->begin(), place.known->end(),
                                    [&](const Known& one) { return each.key == one.key; });
    std::string expected, advice;
    if (known == place.known->end()) {
      expected = "no such parameter";
      advice = "remove it; known parameters: ";
      for (const Known& one : *place.known) advice += (&one == &place.known->front() ? "" : ", ") + std::string(one.key);
    } else {
      if (known->may_be_true ? each.is_one : !each.value) continue;
      expected = known->may_be_true ? "True" : "0";
      advice = known->advice;
    }
    throw StatusError(StatusCode::INVALID_ARGUMENT,
                      "model " + quoted(model) + ": parameter " + quoted(each.key) + " of " + place.name +
                          " is " + each.value.value_or("0") + ", expected " + expected + "; " + advice,
                      "parameter");
  }
}

// Adds the numbers of a repeated field, packed or not.
void read_numbers(const FieldReader& reader, const char* name, std::vector<int64_t>& out) {
  if (!reader.is_delimited()) {
    out.push_back(reader.whole(name));
  } else {
    const std::string_view packed = reader.bytes(name);
    for (size_t at = 0; at < packed.size();) {
      uint64_t value = 0;
      int position = 0;
      while (true) {
        if (at == packed.size() || position == 10) reader.refuse("an integer does not end at byte " + with_commas(at));
        const auto byte = static_cast<unsigned char>(packed[at++]);
        value |= static_cast<uint64_t>(byte & 0x7f) << (7 * position++);
        if (byte < 0x80) break;
      }
      out.push_back(static_cast<int64_t>(value));
      reader.check_items(out.size(), name);
    }
  }
  reader.check_items(out.size(), name);
}

InferRequest::Tensor read_tensor(std::string_view content, Place& place) {
  InferRequest::Tensor found;
  for (FieldReader fields("InferTensor", content); fields.next();) {
    switch (fields.number()) {
      case 1: found.name = fields.text("name"); break;
      case 2: found.datatype = fields.text("datatype"); break;
      case 3: read_numbers(fields, "shape", found.shape); break;
      case 4: place.add(fields); break;
      case 5:
        for (FieldReader contents("TensorContents", fields.bytes("contents")); contents.next();) {
          if (contents.number() != 3) refuse_unknown(contents, "3 int64_contents");
          read_numbers(contents, "int64_contents", found.ids);
        }
        break;
      default: refuse_unknown(fields, "1 name, 2 datatype, 3 shape, 5 contents, 4 parameters");
    }
  }
  place.name = "input " + quoted(found.name);
  return found;
}

std::string_view read_output(std::string_view content, Place& place) {
  std::string_view name;
  for (FieldReader fields("RequestedOutput", content); fields.next();) {
    switch (fields.number()) {
      case 1: name = fields.text("name"); break;
      case 2: place.add(fields); break;
      default: refuse_unknown(fields, "1 name, 2 parameters");
    }
  }
  place.name = "output " + quoted(name);
  return name;
}

}  // namespace

InferRequest read_infer_request(std::string_view content) {
  InferRequest found;
  std::vector<Place> inputs, outputs;
  Place request{"the request", &kOfRequests, {}};
  for (FieldReader fields("InferRequest", content); fields.next();) {
    switch (fields.number()) {
      case 1: found.model_name = fields.text("model_name"); break;
      case 2: found.model_version = fields.text("model_version"); break;
      case 3: found.id = fields.text("id"); break;
      case 4: request.add(fields); break;
      case 5:
        inputs.push_back({{}, &kOfTensors, {}});
        found.inputs.push_back(read_tensor(fields.bytes("inputs"), inputs.back()));
        break;
      case 6:
        outputs.push_back({{}, &kOfOutputs, {}});
        found.outputs.push_back(read_output(fields.bytes("outputs"), outputs.back()));
        break;
      case 7: found.raw_input_contents.push_back(fields.bytes("raw_input_contents")); break;
      default:
        refuse_unknown(fields,
                       "1 model_name, 2 model_version, 3 id, 4 parameters, 5 inputs, 6 outputs, 7 "
                       "raw_input_contents");
    }
  }
  check_parameters(found.model_name, request);
  for (const Place& each : inputs) check_parameters(found.model_name, each);
  for (const Place& each : outputs) check_parameters(found.model_name, each);
  return found;
}

}  // namespace sparring::serve
