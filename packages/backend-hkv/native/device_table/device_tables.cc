#include "device_tables.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "device_call_counters.h"
#include "device_state.h"
#include "sparring/storage_border.h"

namespace sparring::hkv {

using border::StatusError;

struct DeviceTable::Together {
  using Scope = void (State::*)(device::Stream, const std::string&, const std::function<void()>&);

  // Runs `body` within the scopes of all tables. The order of locking prevents deadlocks.
  static void within(std::vector<State*> states, Scope scope, device::Stream stream,
                     const std::string& what, const std::function<void()>& body) {
    std::sort(states.begin(), states.end(), std::less<>());
    states.erase(std::unique(states.begin(), states.end()), states.end());
    std::function<void(size_t)> enter = [&](size_t at) {
      if (at == states.size()) return body();
      (states[at]->*scope)(stream, what, [&] { enter(at + 1); });
    };
    enter(0);
  }

  static void visit(const std::vector<TableVisit>& visits) {
    if (visits.empty()) return;
    std::vector<State*> states;
    for (const TableVisit& each : visits) {
      states.push_back(each.table->state_.get());
      states.back()->check_count(each.call->count);
      if (each.call->columns.end > each.table->row_bytes())
        throw StatusError(SPARRING_INVALID_ARGUMENT, "visit: columns must end within a row");
    }
    const device::Stream stream = visits.front().call->call.stream;
    within(states, &State::read, stream, "visit of " + std::to_string(visits.size()) + " tables", [&] {
      device::LaunchBatch batch(states.front()->device, stream);
      for (size_t i = 0; i < visits.size(); ++i) {
        batch.begin_line();
        states[i]->show(*visits[i].call);
      }
      batch.flush();
    });
  }

  static bool update(device::ReadBack& read_back, const std::vector<TableUpdate>& updates,
                     const uint64_t* num_refused, size_t* num_done) {
    *num_done = 0;
    if (updates.empty()) return true;
    std::vector<State*> states;
    for (const TableUpdate& each : updates) {
      State* const state = each.table->state_.get();
      if (std::find(states.begin(), states.end(), state) != states.end())
        throw StatusError(SPARRING_INVALID_ARGUMENT, "update: a table occurs twice in one call; "
                                                     "combine its keys");
      state->check_count(each.call->count);
      state->check_scores(each.call->scores);
      states.push_back(state);
    }
    const device::Stream stream = updates.front().call->call.stream;
    bool is_refused = false;
    within(states, &State::write, stream, "update of " + std::to_string(updates.size()) + " tables", [&] {
      const size_t count = updates.size();
      device::Device& device = states.front()->device;
      std::vector<std::unique_ptr<State::CallCounters>> counted;
      std::vector<State::Insertion> insertions;
      const device::Buffer counters = device::make_buffer<DeviceCounters>(device, count, stream);
      device::LaunchBatch batch(device, stream);
      for (size_t i = 0; i < count; ++i) {
        SparringUpdate& call = *updates[i].call;
        call.inserted = 0;
        counted.push_back(std::make_unique<State::CallCounters>(*states[i], stream));
        batch.begin_line();
        insertions.push_back(
            states[i]->locate(call.keys, static_cast<uint64_t>(call.count), stream, true));
        device::launch(device, {1}, stream,
                       CopyCounters{states[i]->counters, counters.as<DeviceCounters>() + i});
      }
      batch.flush();
      std::vector<DeviceCounters> now(count);
      uint64_t refused = 0;
      read_back.read({{now.data(), counters.as<void>(), count * sizeof(DeviceCounters)},
                      {&refused, num_refused, num_refused == nullptr ? 0 : sizeof(refused)}},
                     stream);
      is_refused = refused != 0;
      if (is_refused) return;
      try {
        for (size_t i = 0; i < count; ++i) {
          batch.begin_line();
          if (updates[i].call->count > 0) {
            states[i]->update_located(*updates[i].call, insertions[i], now[i], *counted[i]);
          } else {
            states[i]->policy.begin_call();
            counted[i]->settled();
          }
          ++*num_done;
        }
      } catch (...) {
        batch.flush();  // for the tables before
        throw;
      }
      batch.flush();
    });
    return !is_refused;
  }
};

void visit_all(const std::vector<TableVisit>& visits) { DeviceTable::Together::visit(visits); }

bool update_all(device::ReadBack& read_back, const std::vector<TableUpdate>& updates,
                const uint64_t* num_refused, size_t* num_done) {
  return DeviceTable::Together::update(read_back, updates, num_refused, num_done);
}

}  // namespace sparring::hkv
