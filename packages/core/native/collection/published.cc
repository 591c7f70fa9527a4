#include "collection/published.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>

#include "collection/lookup.h"
#include "execution/pool.h"

namespace sparring::collection {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::condition_variable_any changed;  // the members below, or the rows of a table
  std::map<int64_t, Published> collections;
  std::map<int64_t, std::string> refusals;  // reasons, for numbers without a collection
  int64_t next = 1;
};

Registry& registry();

// Tables belong to the process that opened them, so a forked child starts without collections and may
// publish its own. In the child, threads of the parent may appear to hold the mutex or to wait for
// changes forever, so everything is constructed again in place.
void after_fork_in_child() {
  Registry& known = registry();
  new (&known.mutex) std::shared_mutex;
  new (&known.changed) std::condition_variable_any;
  new (&known.collections) std::map<int64_t, Published>;
  new (&known.refusals) std::map<int64_t, std::string>;
}

// Never destroyed, because a thread of the framework may look up while the process exits.
Registry& registry() {
  static auto* const made = [] {
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    return new Registry;
  }();
  return *made;
}

[[noreturn]] void refuse(SparringStatus status, const std::string& message) {
  throw abi::StorageError(status, message);
}

void check_equal(const char* what, int64_t wanted, int64_t found) {
  if (wanted == found) return;
  refuse(SPARRING_INVALID_ARGUMENT, std::string(what) + " must be " + std::to_string(wanted) +
                                        ", found " + std::to_string(found));
}

void release_message(SparringError* error) {
  delete[] error->message;
  error->message = nullptr;
}

void set_error(SparringError& error, const char* message) {
  const size_t size = std::strlen(message) + 1;
  auto* const copy = new (std::nothrow) char[size];
  if (copy != nullptr) std::memcpy(copy, message, size);
  error = {copy, &release_message, nullptr};
}

// No exception leaves this function.
template <class Function>
SparringStatus guarded(SparringError& error, Function&& function) {
  try {
    function();
    return SPARRING_OK;
  } catch (const abi::StorageError& refused) {
    set_error(error, refused.what());
    return refused.status;
  } catch (const std::bad_alloc&) {
    set_error(error, "lookup: the system has no memory left; use smaller batches");
    return SPARRING_OUT_OF_MEMORY;
  } catch (const std::exception& failed) {
    set_error(error, failed.what());
    return SPARRING_INTERNAL;
  }
}

bool is_any(const Published& collection, Rows rows) {
  return std::any_of(collection.features.begin(), collection.features.end(),
                     [&](const PublishedFeature& feature) { return feature.table->rows == rows; });
}

// REQUIRES: the caller holds the mutex.
const Published& find_usable(const Registry& known, int64_t number) {
  const auto found = known.collections.find(number);
  if (found == known.collections.end()) {
    const auto refusal = known.refusals.find(number);
    if (refusal != known.refusals.end()) refuse(SPARRING_INVALID_ARGUMENT, refusal->second);
    refuse(SPARRING_CLOSED,
           "lookup: the tables do not exist, because their layer was deleted or was created in another "
           "process; create the layer again, or load the model again");
  }
  for (const PublishedFeature& feature : found->second.features) {
    if (feature.table->is_closed) {
      refuse(SPARRING_CLOSED,
             "lookup: the container of the tables is closed; create another one");
    }
  }
  return found->second;
}

// Waits until all rows of the collection are loaded, and calls function(collection). The collection
// is not withdrawn during the call.
template <class Function>
void with_collection(int64_t number, Function&& function) {
  Registry& known = registry();
  std::shared_lock<std::shared_mutex> lock(known.mutex);
  const Published* collection = &find_usable(known, number);
  while (is_any(*collection, Rows::coming)) {
    known.changed.wait(lock);
    collection = &find_usable(known, number);
  }
  if (is_any(*collection, Rows::cut_short)) {
    refuse(SPARRING_CLOSED,
           "lookup: a load into the tables was cut short, and they contain only a part of the rows; load "
           "a snapshot again (container.load) before continuing");
  }
  function(*collection);
}

void check_type(const TableView& table, int32_t type) {
  const bool is_double = table.layout.type == kernels::RowType::float64;
  check_equal("the type of embeddings", is_double ? SPARRING_FLOAT64 : SPARRING_FLOAT32, type);
}

template <class T>
void gather_as(const Published& collection, const SparringGather& asked) {
  FeatureLookup<T> lookup{};
  lookup.input = {collection.features.front().table, asked.ids, nullptr, asked.count, nullptr,
                  false};
  lookup.out = static_cast<T*>(asked.out);
  lookup.stride = asked.dim;
  look_up<T>(execution::process_executor(), {lookup});
}

SparringStatus gather(int64_t number, SparringGather* asked) {
  return guarded(asked->error, [&] {
    with_collection(number, [&](const Published& collection) {
      check_equal("the number of features in a lookup without bags", 1,
                  static_cast<int64_t>(collection.features.size()));
      const TableView& table = *collection.features.front().table;
      check_equal("dim", table.layout.dim, asked->dim);
      check_type(table, asked->type);
      if (asked->type == SPARRING_FLOAT64) {
        gather_as<double>(collection, *asked);
      } else {
        gather_as<float>(collection, *asked);
      }
    });
  });
}

// The offsets of bags in the ids: (num_features * num_bags + 1).
std::vector<int64_t> offsets_of(const SparringPool& asked) {
  const int64_t num_bags = asked.num_features * asked.num_bags;
  std::vector<int64_t> offsets(static_cast<size_t>(num_bags + 1));
  int64_t end = 0;
  for (int64_t bag = 0; bag < num_bags; ++bag) {
    const int64_t length = asked.lengths[bag];
    if (length < 0 || length > asked.count - end) {
      refuse(SPARRING_INVALID_ARGUMENT,
             "bag " + std::to_string(bag) + " has length " + std::to_string(length) + ", but only " +
                 std::to_string(asked.count - end) + " of the " + std::to_string(asked.count) +
                 " ids are left");
    }
    end += length;
    offsets[static_cast<size_t>(bag + 1)] = end;
  }
  check_equal("the sum of the lengths of bags", asked.count, end);
  return offsets;
}

template <class T>
void pool_as(const Published& collection, const SparringPool& asked) {
  const std::vector<int64_t> offsets = offsets_of(asked);
  std::vector<FeatureLookup<T>> wanted;
  const int64_t* from = offsets.data();
  for (const PublishedFeature& feature : collection.features) {
    wanted.push_back({{feature.table, asked.ids, from, asked.num_bags,
                       static_cast<const T*>(asked.weights), feature.is_mean},
                      static_cast<T*>(asked.out) + feature.column, asked.width});
    from += asked.num_bags;
  }
  look_up<T>(execution::process_executor(), wanted);
}

SparringStatus pool(int64_t number, SparringPool* asked) {
  return guarded(asked->error, [&] {
    with_collection(number, [&](const Published& collection) {
      check_equal("the number of features", static_cast<int64_t>(collection.features.size()),
                  asked->num_features);
      check_equal("the sum of dims", collection.width, asked->width);
      check_type(*collection.features.front().table, asked->type);
      if (asked->type == SPARRING_FLOAT64) {
        pool_as<double>(collection, *asked);
      } else {
        pool_as<float>(collection, *asked);
      }
    });
  });
}

}  // namespace

int64_t new_number() {
  Registry& known = registry();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  return known.next++;
}

void publish(int64_t number, Published collection) {
  Registry& known = registry();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  known.collections.insert_or_assign(number, std::move(collection));
  known.refusals.erase(number);
  known.changed.notify_all();
}

void withdraw(int64_t number) {
  Registry& known = registry();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  known.collections.erase(number);
  known.refusals.erase(number);
  known.changed.notify_all();
}

void refuse_lookups(int64_t number, std::string reason) {
  Registry& known = registry();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  known.collections.erase(number);
  known.refusals.insert_or_assign(number, std::move(reason));
  known.changed.notify_all();
}

void begin_load(TableView& table) {
  const std::unique_lock<std::shared_mutex> lock(registry().mutex);
  table.rows = Rows::coming;
}

void end_load(TableView& table, bool is_whole) {
  Registry& known = registry();
  const std::unique_lock<std::shared_mutex> lock(known.mutex);
  table.rows = is_whole ? Rows::whole : Rows::cut_short;
  known.changed.notify_all();
}

const SparringLookups* lookups() {
  static const SparringLookups made{
      {SPARRING_LOOKUPS_ABI_MAJOR, SPARRING_LOOKUPS_ABI_MINOR}, sizeof(SparringLookups), &gather,
      &pool};
  return &made;
}

}  // namespace sparring::collection
