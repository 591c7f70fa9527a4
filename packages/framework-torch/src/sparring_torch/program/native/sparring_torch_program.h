// An exported PyTorch program in C++: binds its tables, loads it, and runs it.
//
//   sparring::TorchProgram program("bundle", "served");
//   std::vector<at::Tensor> outputs = program.run(inputs);
//   program.refresh();  // in another thread, at the intervals at which you need newer versions
//
// A run reads all rows and parameters from one version; a refresh does not wait for runs. Any thread
// may run and refresh. Errors are exceptions. sparring_program.h describes the functions below.
#ifndef SPARRING_TORCH_PROGRAM_H_
#define SPARRING_TORCH_PROGRAM_H_

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sparring_program.h"

namespace sparring {

class TorchProgram {
 public:
  struct Version {
    std::string hash;
    int64_t step;
  };

  // `bundle` is the folder that export_program wrote, `served` a serving snapshot or a folder of them.
  TorchProgram(std::string bundle, const std::string& served) : bundle_(std::move(bundle)) {
    check(sparring_program_bind(bundle_.c_str(), served.c_str()));
    try {
      std::ifstream binding(bundle_ + "/binding.txt");
      std::getline(binding, handle_);
      has_versions_ = std::ifstream(bundle_ + "/parameters.txt").good();
      program_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(bundle_ + "/program.pt2");
    } catch (...) {
      sparring_program_release(bundle_.c_str());
      throw;
    }
  }
  TorchProgram(const TorchProgram&) = delete;
  TorchProgram& operator=(const TorchProgram&) = delete;
  ~TorchProgram() { sparring_program_release(bundle_.c_str()); }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    if (!has_versions_) return program_->run(inputs);
    const Held version(handle_);
    std::vector<at::Tensor> all{torch::scalar_tensor(version.number, at::kLong)};
    int64_t count = 0;
    check(sparring_program_num_parameters(version.number, &count));
    for (int64_t place = 0; place < count; ++place) all.push_back(parameter(version.number, place));
    all.insert(all.end(), inputs.begin(), inputs.end());
    return program_->run(all);
  }

  // Switches to the newest version. Returns false if the current one is the newest.
  bool refresh() {
    int32_t is_changed = 0;
    check(sparring_program_refresh(bundle_.c_str(), &is_changed));
    return is_changed != 0;
  }

  Version version() const {
    char hash[33];
    int64_t step = 0;
    check(sparring_program_version(bundle_.c_str(), hash, &step));
    return {hash, step};
  }

 private:
  // The version of one run.
  struct Held {
    explicit Held(const std::string& handle) { check(sparring_program_begin(handle.c_str(), &number)); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { sparring_program_end(number); }
    int64_t number = 0;
  };

  static void check(int32_t failed) {
    if (failed != 0) throw std::runtime_error(sparring_program_error());
  }

  // The memory of the tensor belongs to the version.
  static at::Tensor parameter(int64_t version, int64_t place) {
    static const std::map<std::string, at::ScalarType> dtypes = {
        {"BOOL", at::kBool},  {"U8", at::kByte},   {"I8", at::kChar},  {"I16", at::kShort},
        {"I32", at::kInt},    {"I64", at::kLong},  {"F16", at::kHalf}, {"BF16", at::kBFloat16},
        {"F32", at::kFloat},  {"F64", at::kDouble}};
    SparringProgramParameter found;
    check(sparring_program_parameter(version, place, &found, sizeof found));
    return torch::from_blob(const_cast<void*>(found.data), at::IntArrayRef(found.sizes, found.num_dims),
                            dtypes.at(found.dtype));
  }

  const std::string bundle_;
  std::string handle_;
  bool has_versions_ = false;  // whether runs pass the version and its parameters to the program
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> program_;
};

}  // namespace sparring

#endif  // SPARRING_TORCH_PROGRAM_H_
