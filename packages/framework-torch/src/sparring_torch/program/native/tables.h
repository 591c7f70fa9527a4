// Tables of serving snapshots that are bound to programs of this process.
#ifndef SPARRING_PROGRAM_TABLES_H_
#define SPARRING_PROGRAM_TABLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "sparring_packed.h"

namespace sparring::program {

struct Table {
  int32_t number;
  int32_t dim;
};

// Opened serving snapshots of one program. Any thread may look up.
class Tables {
 public:
  explicit Tables(const std::string& served);
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Throws std::runtime_error where there is no such table, or it has another dim.
  Table table(const std::string& name, int64_t dim) const;

  // As in sparring_packed.h; throw std::runtime_error.
  void lookup(SparringPackedRequest request) const;
  void pool(SparringPackedRequest request) const;
  bool refresh();

  struct Version {
    std::string hash;
    int64_t step;
  };
  Version version() const;
  const std::unordered_map<std::string, Table>& all() const { return tables_; }

 private:
  SparringPacked* packed_ = nullptr;
  std::unordered_map<std::string, Table> tables_;  // numbers and dims stay until the close
};

// The tables that are bound to `handle`; throws std::runtime_error where there are none.
std::shared_ptr<const Tables> bound(const std::string& handle);

}  // namespace sparring::program

#endif  // SPARRING_PROGRAM_TABLES_H_
