#include "reader/counted_state.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

using sparring::packed::CountedState;

namespace {

std::atomic<int> num_alive{0};

// Two numbers that are equal until it is destroyed.
struct State {
  explicit State(int number) : first(number), second(number) { ++num_alive; }
  ~State() {
    first = -1;
    --num_alive;
  }
  int first;
  int second;
};

void a_state_lives_until_its_last_reader_has_left() {
  {
    CountedState<State> counted;
    counted.store(std::make_unique<State>(1));
    {
      CountedState<State>::Hold one(counted);
      CountedState<State>::Hold two(counted);
      counted.store(std::make_unique<State>(2));
      CHECK(num_alive == 2);
      CHECK(one->first == 1 && two->second == 1);
      CHECK(CountedState<State>::Hold(counted)->first == 2);
    }
    CHECK(num_alive == 1);
    counted.store(std::make_unique<State>(3));
    CHECK(num_alive == 1);
  }
  CHECK(num_alive == 0);
}

void readers_see_whole_states_while_a_writer_replaces_them() {
  {
    CountedState<State> counted;
    counted.store(std::make_unique<State>(0));
    std::atomic<bool> is_done{false};
    std::atomic<int> num_wrong{0};
    std::vector<std::thread> readers;
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back([&] {
        int last = 0;
        while (!is_done) {
          const CountedState<State>::Hold state(counted);
          num_wrong += state->first != state->second || state->first < last;
          last = state->first;
        }
      });
    }
    for (int number = 1; number <= 20'000; ++number) {
      counted.store(std::make_unique<State>(number));
    }
    is_done = true;
    for (std::thread& reader : readers) reader.join();
    CHECK(num_wrong == 0);
    CHECK(num_alive == 1);
  }
  CHECK(num_alive == 0);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"a state lives until its last reader has left", a_state_lives_until_its_last_reader_has_left},
      {"readers see whole states while a writer replaces them",
       readers_see_whole_states_while_a_writer_replaces_them},
  });
}
