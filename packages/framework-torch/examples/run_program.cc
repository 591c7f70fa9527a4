// Runs an exported PyTorch program without Python:
//
//   run_program BUNDLE SERVED
//
// It reads commands from standard input, one per line, and prints one line per command:
//
//   run INPUTS OUTPUTS   runs the program. INPUTS is a file with a list of tensors, written by
//                        torch.save; OUTPUTS becomes a file with a tuple, for torch.load
//   refresh              switches to the newest version of rows and parameters
//   version              prints the current version
#include <torch/serialize.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sparring_torch_program.h"

namespace {

std::vector<at::Tensor> tensors_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::IValue list = torch::pickle_load(bytes);
  std::vector<at::Tensor> found;
  for (const auto& each : list.toListRef()) found.push_back(each.toTensor());
  return found;
}

void write(const std::vector<at::Tensor>& tensors, const std::string& path) {
  // A tuple, because torch.load reads a list of tensors only if it may run code in the file.
  std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  const auto bytes = torch::pickle_save(c10::ivalue::Tuple::create(std::move(values)));
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
}

std::string answer(const std::string& line, sparring::TorchProgram& program) {
  std::istringstream words(line);
  std::string command, inputs, outputs;
  words >> command >> inputs >> outputs;
  if (command == "run") {
    write(program.run(tensors_of(inputs)), outputs);
    return "ran";
  }
  if (command == "refresh") return program.refresh() ? "refreshed" : "newest already";
  const auto version = program.version();
  return version.hash + " " + std::to_string(version.step);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "run_program BUNDLE SERVED\n");
    return 2;
  }
  try {
    sparring::TorchProgram program(words[1], words[2]);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(line, program) << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
