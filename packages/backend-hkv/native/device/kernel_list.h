// The names and addresses of the kernels of this module, so that a device loads all of them when it
// is opened. Otherwise the driver would load each at its first launch, which needs memory and could
// fail in the middle of an update.
#ifndef SPARRING_HKV_DEVICE_KERNEL_LIST_H_
#define SPARRING_HKV_DEVICE_KERNEL_LIST_H_

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace sparring::device {

// The name as written in the source.
inline std::string plain_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return plain != nullptr ? plain.get() : mangled;
}

// The addresses of CUDA functions; on the emulator, any unique addresses. The list is complete when
// the module is loaded.
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
