// The one exception type inside this library; the C border turns it into a
// status and a message.
#ifndef SPARRING_HKV_TABLE_STATUS_H_
#define SPARRING_HKV_TABLE_STATUS_H_

#include <stdexcept>
#include <string>

#include "sparring/storage_abi.h"

namespace sparring::hkv {

class StatusError : public std::runtime_error {
 public:
  StatusError(SparringStatus status, const std::string& message)
      : std::runtime_error(message), status_(status) {}

  SparringStatus status() const { return status_; }

 private:
  SparringStatus status_;
};

}  // namespace sparring::hkv

#endif  // SPARRING_HKV_TABLE_STATUS_H_
