// Runs an exported PyTorch program without Python:
//
//   run_program BUNDLE SERVED
//
// It reads commands from standard input, one per line, and prints one line per command:
//
//   run INPUTS OUTPUTS   runs the program. INPUTS is a file with a list of tensors, written by
//                        torch.save; OUTPUTS becomes a file with a tuple, for torch.load
//   refresh              switches to the newest version of the tables
//   version              prints the current version
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
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

#include "sparring_program.h"

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

std::string answer(const std::string& line, const char* bundle,
                   torch::inductor::AOTIModelPackageLoader& program) {
  std::istringstream words(line);
  std::string command, inputs, outputs;
  words >> command >> inputs >> outputs;
  if (command == "run") {
    write(program.run(tensors_of(inputs)), outputs);
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
    std::fprintf(stderr, "run_program BUNDLE SERVED\n");
    return 2;
  }
  const char* bundle = words[1];
  if (sparring_program_bind(bundle, words[2]) != 0) {
    std::fprintf(stderr, "%s\n", sparring_program_error());
    return 1;
  }
  try {
    torch::inductor::AOTIModelPackageLoader program(std::string(bundle) + "/program.pt2");
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(line, bundle, program) << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return sparring_program_release(bundle);
}
