#include "bindings/device_arrays.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

namespace py = pybind11;

namespace sparring::hkv {
namespace {

// The structs of DLPack 0.x, which every library still exports on request. The specification
// guarantees this layout.
struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements, or NULL: C-contiguous
  uint64_t byte_offset;
};

constexpr int kUnsigned = 1;
constexpr int kFloat = 2;
constexpr int kBfloat = 4;
constexpr int kBool = 6;

std::string text_of(int32_t type, int32_t id) {
  return type == kCpu ? "cpu" : (type == kCuda ? "cuda:" : "device type " + std::to_string(type) + ":") +
                                    std::to_string(id);
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t length : shape)
    text += (text.empty() ? "" : ", ") + (length < 0 ? std::string("any") : std::to_string(length));
  return "(" + text + (shape.size() == 1 ? ",)" : ")");
}

}  // namespace

void refuse(const std::string& message) {
  const py::object error = py::module_::import("sparring.errors").attr("InvalidArgumentError");
  PyErr_SetString(error.ptr(), message.c_str());
  throw py::error_already_set();
}

DeviceHandle::DeviceHandle(std::shared_ptr<device::Device> device)
    : device_(std::move(device)), read_back_(device_), type_(kCpu), number_(0) {
  const std::string name = device_->name();
  if (name.rfind("cuda:", 0) == 0) {
    type_ = kCuda;
    number_ = std::stoi(name.substr(5));
  }
}

DeviceHandle::~DeviceHandle() {
  // Tables may outlive this object; they continue without a reclaimer.
  device_->set_reclaimer({});
  residents_.clear();
  if (reads_ != nullptr) device_->free_event(reads_);
  if (own_stream_ != nullptr) device_->free_stream(own_stream_);
  for (int64_t* word : words_) device_->free_pinned(word, sizeof(int64_t));
}

void DeviceHandle::add_reclaimer(py::object function) {
  reclaimers_->add(std::move(function));
  device_->set_reclaimer([all = reclaimers_] { return all->call(); });
}

auto DeviceHandle::resident(const void* bytes, size_t num_bytes) -> Resident {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string_view content(static_cast<const char*>(bytes), num_bytes);
  const auto found = std::find_if(residents_.begin(), residents_.end(),
                                  [&](const auto& each) { return each.first == content; });
  if (found != residents_.end()) {
    residents_.splice(residents_.end(), residents_, found);
    return residents_.back().second;
  }
  if (reads_ == nullptr) reads_ = device_->make_event();
  if (own_stream_ == nullptr) own_stream_ = device_->make_stream();
  const auto kept = std::make_shared<device::Buffer>(*device_, num_bytes, own_stream_,
                                                     device::Lifetime::kLasting);
  device_->copy(kept->as<void>(), bytes, num_bytes, own_stream_);
  device_->wait(own_stream_);
  if (residents_.size() == kMostResidents) residents_.pop_front();
  residents_.emplace_back(content, kept);
  return kept;
}

void DeviceHandle::keep_until(device::Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  device_->record(reads_, stream);
  device_->order_after(reads_, own_stream_);
}

int64_t DeviceHandle::read_word(const void* from, device::Stream stream) {
  const std::unique_ptr<int64_t, std::function<void(int64_t*)>> word(
      take_word(), [this](int64_t* taken) {
        const std::lock_guard<std::mutex> lock(mutex_);
        words_.push_back(taken);  // take_word() reserved the capacity
      });
  // Without the lock, so that calls on other streams do not wait for this one.
  device_->copy(word.get(), from, sizeof(int64_t), stream);
  device_->wait(stream);
  return *word;
}

int64_t* DeviceHandle::take_word() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!words_.empty()) {
    int64_t* const word = words_.back();
    words_.pop_back();
    return word;
  }
  words_.reserve(++num_words_);
  return static_cast<int64_t*>(device_->allocate_pinned(sizeof(int64_t)));
}

DeviceArray::DeviceArray(const DeviceHandle& device, const py::handle& object, const char* name,
                         bool rows_apart)
    : name_(name) {
  if (!py::hasattr(object, "__dlpack__") || !py::hasattr(object, "__dlpack_device__")) {
    refuse(std::string(name) + " must be an array with __dlpack__, found " +
           std::string(py::str(py::type::of(object).attr("__name__"))));
  }
  const auto where = object.attr("__dlpack_device__")().cast<std::pair<int32_t, int32_t>>();
  const bool is_here = where.first == device.type() &&
                       (where.first == kCpu || where.second == device.number());
  if (!is_here) {
    refuse(std::string(name) + " is on " + text_of(where.first, where.second) +
           ", but these kernels run on " + device.device().name() + "; move it there");
  }
  try {
    // -1: the array is ready on the caller's stream.
    capsule_ = where.first == kCpu ? object.attr("__dlpack__")()
                                   : object.attr("__dlpack__")(py::arg("stream") = -1);
  } catch (py::error_already_set& error) {
    refuse(std::string(name) + " cannot be shared by DLPack: " + error.what() +
           "; pass a writable array without gradient, of a dtype that DLPack supports");
  }
  const auto* tensor =
      static_cast<const DlTensor*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  data_ = static_cast<char*>(tensor->data) + tensor->byte_offset;
  code_ = tensor->dtype.code == kBool ? kUnsigned : tensor->dtype.code;
  element_bytes_ = tensor->dtype.bits / 8 * tensor->dtype.lanes;
  shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  if (num_elements() == 0) {
    data_ = nullptr;
  } else if (reinterpret_cast<uintptr_t>(data_) % static_cast<uint64_t>(element_bytes_) != 0) {
    refuse(std::string(name) + " must be aligned to its elements; copy it first");
  }
  int64_t expected = 1;
  row_stride_ = (shape_.size() == 2 ? shape_[1] : 1) * element_bytes_;
  for (int i = tensor->ndim - 1; i >= 0 && tensor->strides != nullptr && num_elements() > 0; --i) {
    const int64_t stride = tensor->strides[i];
    if (shape_[static_cast<size_t>(i)] != 1 && stride != expected) {
      if (!rows_apart || i != 0 || tensor->ndim != 2 || stride < expected) {
        refuse(std::string(name) + " must be C-contiguous; make a contiguous copy first");
      }
      row_stride_ = stride * element_bytes_;
    }
    expected *= shape_[static_cast<size_t>(i)];
  }
}

int64_t DeviceArray::num_elements() const {
  return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
}

void DeviceArray::check_shape(std::initializer_list<int64_t> expected) const {
  const bool fits =
      expected.size() == shape_.size() &&
      std::equal(shape_.begin(), shape_.end(), expected.begin(),
                 [](int64_t found, int64_t wanted) { return wanted == kAny || found == wanted; });
  if (!fits) {
    refuse(std::string(name_) + " must have shape " + text_of(std::vector<int64_t>(expected)) +
           ", found " + text_of(shape_));
  }
}

void DeviceArray::check_dtype(int code, size_t bytes) const {
  if (code_ == code && element_bytes_ == static_cast<int64_t>(bytes)) return;
  const char* kind = code == kFloat ? "float" : code == kUnsigned ? "uint" : "int";
  refuse(std::string(name_) + " must be " + kind + std::to_string(8 * bytes) +
         ", found DLPack type " + std::to_string(code_) + " of " + std::to_string(8 * element_bytes_) +
         " bits; convert it first");
}

device_kernels::RowType DeviceArray::row_type() const {
  using device_kernels::RowType;
  if (code_ == kFloat && element_bytes_ == 4) return RowType::float32;
  if (code_ == kFloat && element_bytes_ == 8) return RowType::float64;
  if (code_ == kFloat && element_bytes_ == 2) return RowType::float16;
  if (code_ == kBfloat && element_bytes_ == 2) return RowType::bfloat16;
  refuse(std::string(name_) + " must be float32, float64, float16 or bfloat16");
}

}  // namespace sparring::hkv
