// Runs an exported TensorFlow program without Python:
//
//   run_saved_model BUNDLE SERVED
//
// It reads commands from standard input, one per line, and prints one line per command:
//
//   run FOLDER   runs the program. For each input, FOLDER contains NAME.shape, its sizes, and NAME.bin,
//                its elements. The same files are written for each output
//   refresh      loads the newest version of the tables
//   version      prints the version of the tables
#include <tensorflow/c/c_api.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "sparring_program.h"

namespace {

using Status = std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)>;
using Tensor = std::unique_ptr<TF_Tensor, decltype(&TF_DeleteTensor)>;

// An input or output, described by a line of BUNDLE/signature.txt.
struct Port {
  std::string name;
  TF_DataType dtype;
  TF_Output place;
};

class Program {
 public:
  explicit Program(const std::string& bundle) : status_(TF_NewStatus(), &TF_DeleteStatus) {
    operators_ = TF_LoadLibrary((bundle + "/lib/libsparring_program.so").c_str(), status_.get());
    check();
    graph_ = TF_NewGraph();
    TF_SessionOptions* const options = TF_NewSessionOptions();
    const char* const tags[] = {"serve"};
    session_ = TF_LoadSessionFromSavedModel(options, nullptr, (bundle + "/saved_model").c_str(), tags,
                                            1, graph_, nullptr, status_.get());
    TF_DeleteSessionOptions(options);
    check();
    std::ifstream signature(bundle + "/signature.txt");
    std::string kind, name, operation;
    int dtype = 0, place = 0;
    while (signature >> kind >> name >> dtype >> operation >> place) {
      TF_Operation* const found = TF_GraphOperationByName(graph_, operation.c_str());
      if (found == nullptr) throw std::runtime_error("the SavedModel has no " + operation);
      auto& ports = kind == "input" ? inputs_ : outputs_;
      ports.push_back(Port{name, static_cast<TF_DataType>(dtype), TF_Output{found, place}});
    }
  }

  ~Program() {
    if (session_ != nullptr) TF_DeleteSession(session_, status_.get());
    TF_DeleteGraph(graph_);
    TF_DeleteLibraryHandle(operators_);
  }

  void run(const std::string& folder) {
    std::vector<TF_Output> from, to;
    std::vector<Tensor> given, found;
    std::vector<TF_Tensor*> in, out(outputs_.size());
    for (const Port& each : inputs_) {
      from.push_back(each.place);
      given.push_back(read(folder, each));
      in.push_back(given.back().get());
    }
    for (const Port& each : outputs_) to.push_back(each.place);
    TF_SessionRun(session_, nullptr, from.data(), in.data(), static_cast<int>(from.size()),
                  to.data(), out.data(), static_cast<int>(to.size()), nullptr, 0, nullptr,
                  status_.get());
    for (TF_Tensor* each : out) found.emplace_back(each, &TF_DeleteTensor);
    check();
    for (size_t i = 0; i < found.size(); ++i) write(folder, outputs_[i], found[i]);
  }

 private:
  void check() const {
    if (TF_GetCode(status_.get()) != TF_OK) throw std::runtime_error(TF_Message(status_.get()));
  }

  static Tensor read(const std::string& folder, const Port& port) {
    std::ifstream sizes(folder + "/" + port.name + ".shape");
    std::ifstream file(folder + "/" + port.name + ".bin", std::ios::binary);
    if (!sizes || !file) throw std::runtime_error("no input " + port.name + " in " + folder);
    const std::vector<int64_t> shape{std::istream_iterator<int64_t>(sizes), {}};
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    size_t expected = TF_DataTypeSize(port.dtype);
    for (const int64_t size : shape) expected *= static_cast<size_t>(size);
    if (bytes.size() != expected) throw std::runtime_error(port.name + ".bin has another size");
    TF_Tensor* const made = TF_AllocateTensor(port.dtype, shape.data(),
                                              static_cast<int>(shape.size()), bytes.size());
    std::memcpy(TF_TensorData(made), bytes.data(), bytes.size());
    return Tensor(made, &TF_DeleteTensor);
  }

  static void write(const std::string& folder, const Port& port, const Tensor& tensor) {
    std::ofstream sizes(folder + "/" + port.name + ".shape");
    for (int i = 0; i < TF_NumDims(tensor.get()); ++i) sizes << TF_Dim(tensor.get(), i) << ' ';
    std::ofstream(folder + "/" + port.name + ".bin", std::ios::binary)
        .write(static_cast<const char*>(TF_TensorData(tensor.get())),
               static_cast<std::streamsize>(TF_TensorByteSize(tensor.get())));
  }

  Status status_;
  TF_Library* operators_ = nullptr;
  TF_Graph* graph_ = nullptr;
  TF_Session* session_ = nullptr;
  std::vector<Port> inputs_, outputs_;
};

std::string answer(const std::string& line, const char* bundle, Program& program) {
  std::istringstream words(line);
  std::string command, folder;
  words >> command >> folder;
  if (command == "run") {
    program.run(folder);
    return "ran";
  }
  if (command == "refresh") {
    int32_t is_changed = 0;
    if (sparring_program_refresh(bundle, &is_changed) != 0) return sparring_program_error();
    return is_changed != 0 ? "refreshed" : "newest already";
  }
  char hash[33];
  int64_t step = 0;
  if (sparring_program_version(bundle, hash, &step) != 0) return sparring_program_error();
  return std::string(hash) + " " + std::to_string(step);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "run_saved_model BUNDLE SERVED\n");
    return 2;
  }
  const char* bundle = words[1];
  if (sparring_program_bind(bundle, words[2]) != 0) {
    std::fprintf(stderr, "%s\n", sparring_program_error());
    return 1;
  }
  try {
    Program program(bundle);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(line, bundle, program) << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return sparring_program_release(bundle);
}
