// Python module `_native`: the endpoint of a rank, see endpoint.h.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <optional>

#include "endpoint.h"

namespace py = pybind11;
using sparring::shm::Endpoint;
using sparring::shm::Event;
using sparring::shm::Notice;
using sparring::shm::Request;
using sparring::shm::RequestState;

namespace {

// Returns the number at an address of another process, or None if the kernel does not allow to read it.
std::optional<std::uint64_t> read_number(int pid, std::uint64_t address) {
  std::uint64_t found = 0;
  const iovec target{&found, sizeof(found)};
  const iovec source{reinterpret_cast<void*>(address), sizeof(found)};
  if (process_vm_readv(pid, &target, 1, &source, 1, 0) != sizeof(found)) return std::nullopt;
  return found;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.attr("__version__") = SPARRING_SHM_VERSION;
  module.def("inbox_bytes", &sparring::shm::inbox_bytes);
  module.def("read_number", &read_number);
  module.def("allow_reads_of_family", [](int pid) {
    return prctl(PR_SET_PTRACER, static_cast<unsigned long>(pid), 0, 0, 0) == 0;
  });

  py::class_<Request, std::shared_ptr<Request>>(module, "Request")
      .def_property_readonly("is_pending",
                             [](const Request& r) { return r.state == RequestState::kPending; })
      .def_property_readonly("is_lost",
                             [](const Request& r) { return r.state == RequestState::kLost; })
      .def_property_readonly("wrong_bytes",
                             [](const Request& r) -> std::optional<std::uint64_t> {
                               if (r.state != RequestState::kWrongSize) return std::nullopt;
                               return r.found_bytes;
                             });

  py::class_<Endpoint>(module, "Endpoint")
      .def(py::init<const std::vector<int>&, std::size_t, std::size_t, std::size_t, std::uint32_t>())
      .def("set_peer", &Endpoint::set_peer)
      .def("send",
           [](Endpoint& self, const py::array& buffer, std::size_t peer, std::uint32_t tag) {
             const auto* source = static_cast<const char*>(buffer.data());
             const auto num_bytes = static_cast<std::uint64_t>(buffer.nbytes());
             py::gil_scoped_release released;
             return self.send(source, num_bytes, peer, tag);
           })
      .def("receive",
           [](Endpoint& self, py::array& buffer, std::size_t peer, std::uint32_t tag) {
             auto* target = static_cast<char*>(buffer.mutable_data());
             const auto num_bytes = static_cast<std::uint64_t>(buffer.nbytes());
             py::gil_scoped_release released;
             return self.receive(target, num_bytes, peer, tag);
           })
      .def("test",
           [](Endpoint& self, const Request& request) {
             if (request.state == RequestState::kPending) {
               py::gil_scoped_release released;
               self.progress();
             }
             return request.state != RequestState::kPending;
           })
      .def("progress", &Endpoint::progress, py::call_guard<py::gil_scoped_release>())
      .def("wait", &Endpoint::wait, py::call_guard<py::gil_scoped_release>())
      .def("take_event",
           [](Endpoint& self) -> std::optional<std::pair<std::size_t, std::optional<Notice>>> {
             Event event{};
             if (!self.take_event(event)) return std::nullopt;
             if (event.has_ended) return std::pair{event.peer, std::optional<Notice>()};
             return std::pair{event.peer, std::optional<Notice>(event.notice)};
           })
      .def("close", &Endpoint::close, py::call_guard<py::gil_scoped_release>());
}
