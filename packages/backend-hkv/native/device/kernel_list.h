// The kernels of this module: what their names are, and where they are, so that a device loads all
// of them when it is opened. The driver else loads one when it is first started, may need memory for
// it, and may find none amid a change.
#ifndef SPARRING_HKV_DEVICE_KERNEL_LIST_H_
#define SPARRING_HKV_DEVICE_KERNEL_LIST_H_

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace sparring::device {

// A name as it stands in the source.
inline std::string plain_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return plain != nullptr ? plain.get() : mangled;
}

// CUDA's functions; on the emulator anything that tells one from another. It is complete when the
// module is loaded.
inline std::vector<const void*>& all_kernels() {
  static std::vector<const void*> kernels;
  return kernels;
}

inline bool list_kernel(const void* kernel) {
  all_kernels().push_back(kernel);
  return true;
}

}  // namespace sparring::device

#endif  // SPARRING_HKV_DEVICE_KERNEL_LIST_H_
