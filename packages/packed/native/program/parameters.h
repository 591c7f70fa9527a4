// Parameters of a program: which ones it reads, and their values in one version.
#ifndef SPARRING_PACKED_PROGRAM_PARAMETERS_H_
#define SPARRING_PACKED_PROGRAM_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sparring::program {

// A parameter that a program reads.
struct ParameterSpec {
  std::string name;
  std::optional<size_t> place;  // among the names that a file lists
  std::string dtype;  // as in safetensors files
  std::vector<int64_t> shape;
};

// Reads parameters.txt of a bundle; no value if the program contains its parameters. Throws
// std::runtime_error if the file is damaged.
std::optional<std::vector<ParameterSpec>> parameters_of(const std::string& bundle);

// Reads parameters.safetensors of a bundle.
std::string exported_parameters(const std::string& bundle);

// Values of all parameters in one version. Immutable, except for the objects that operators keep.
class Parameters {
 public:
  using Destroy = void (*)(void*);

  struct FreeMemory {
    void operator()(void* memory) const;
  };

  struct Value {
    std::unique_ptr<void, FreeMemory> data;  // aligned to 64 bytes
    uint64_t num_bytes = 0;
  };

  // Copies the values out of a safetensors file. `origin` is named in messages. Throws
  // std::runtime_error if a parameter is missing, or has another shape or dtype.
  Parameters(const std::vector<ParameterSpec>& specs, std::string_view file, const std::string& origin);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;
  ~Parameters();

  const std::vector<Value>& values() const { return values_; }

  // See sparring_program_keep.
  void* keep(size_t place, void* object, Destroy destroy);

 private:
  struct Kept {
    void* object = nullptr;
    Destroy destroy = nullptr;
  };

  std::vector<Value> values_;
  std::mutex mutex_;  // protects kept_
  std::vector<Kept> kept_;
};

}  // namespace sparring::program

#endif  // SPARRING_PACKED_PROGRAM_PARAMETERS_H_
