#include "program/parameters.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <stdexcept>

#include "format/safetensors.h"

namespace sparring::program {
namespace {

constexpr const char* kNames = "/parameters.txt";
constexpr size_t kAlignment = 64;  // of a cache line

packed::ArrayEntry found(const std::vector<packed::ArrayEntry>& arrays,
                         const std::vector<std::string>& names, const ParameterSpec& spec,
                         const std::string& origin) {
  const bool is_listed = spec.place.has_value() && *spec.place < names.size();
  const std::string& name = is_listed ? names[*spec.place] : spec.name;
  const auto array = std::find_if(arrays.begin(), arrays.end(),
                                  [&](const auto& each) { return each.name == name; });
  constexpr const char* kAdvice =
      "; publish the model for which the program was exported, or export the program again";
  if (array == arrays.end()) {
    throw std::runtime_error(origin + " has no parameter '" + spec.name +
                             "', which the program reads" + kAdvice);
  }
  if (array->dtype != spec.dtype || array->shape != spec.shape) {
    throw std::runtime_error("parameter '" + spec.name + "' of " + origin + " is " + array->dtype +
                             " " + packed::shape_text(array->shape) + ", and the program needs " +
                             spec.dtype + " " + packed::shape_text(spec.shape) + kAdvice);
  }
  return *array;
}

}  // namespace

std::optional<std::vector<ParameterSpec>> parameters_of(const std::string& bundle) {
  std::ifstream file(bundle + kNames);
  if (!file) return std::nullopt;
  std::vector<ParameterSpec> specs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    ParameterSpec spec;
    std::string sizes, place;
    words >> spec.dtype >> sizes >> place;
    if (words.get() != ' ' || !std::getline(words, spec.name) || spec.name.empty()) {
      throw std::runtime_error(bundle + kNames + " is damaged; export the program again");
    }
    if (place != "-") spec.place = std::stoull(place);
    std::istringstream numbers(sizes);
    for (std::string size; sizes != "-" && std::getline(numbers, size, ',');) {
      spec.shape.push_back(std::stoll(size));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::string exported_parameters(const std::string& bundle) {
  std::ifstream file(bundle + "/parameters.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Parameters::FreeMemory::operator()(void* memory) const { std::free(memory); }

Parameters::Parameters(const std::vector<ParameterSpec>& specs, std::string_view file,
                       const std::string& origin)
    : kept_(specs.size()) {
  std::vector<packed::ArrayEntry> arrays;
  std::vector<std::string> names;
  try {
    arrays = packed::parse_safetensors(file);
    names = packed::listed_names(file);
  } catch (const std::exception& error) {
    throw std::runtime_error("the parameters of " + origin + " cannot be read: " + error.what());
  }
  for (const ParameterSpec& spec : specs) {
    const packed::ArrayEntry array = found(arrays, names, spec, origin);
    Value& value = values_.emplace_back();
    const uint64_t room = (std::max<uint64_t>(array.num_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    value.data.reset(std::aligned_alloc(kAlignment, room));
    if (value.data == nullptr) throw std::bad_alloc();
    value.num_bytes = array.num_bytes;
    std::memcpy(value.data.get(), file.data() + array.begin, array.num_bytes);
  }
}

Parameters::~Parameters() {
  for (const Kept& each : kept_) {
    if (each.object != nullptr) each.destroy(each.object);
  }
}

void* Parameters::keep(size_t place, void* object, Destroy destroy) {
  const std::lock_guard lock(mutex_);
  Kept& kept = kept_[place];
  if (kept.object == nullptr) kept = {object, destroy};
  return kept.object;
}

}  // namespace sparring::program
