#include "storage.h"

#include <utility>

#include "sparring/storage_border.h"

namespace sparring::hkv {

SparringStorage* make_storage(std::unique_ptr<Table> table, const std::string& distribution) {
  return border::make_storage<Table>(std::move(table), distribution);
}

}  // namespace sparring::hkv
