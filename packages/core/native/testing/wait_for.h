// Blocks a test until a sender that completes on another thread has completed.
#pragma once

#include <exception>
#include <future>
#include <memory>
#include <utility>

#include "execution/detached_task.h"

namespace sparring::testing {

template <execution::sender S>
execution::detached_task tell(S input, std::shared_ptr<std::promise<void>> told) {
  try {
    co_await std::move(input);
    told->set_value();
  } catch (...) {
    told->set_exception(std::current_exception());
  }
}

// Throws its error.
template <execution::sender S>
void wait_for(S&& input) {
  const auto told = std::make_shared<std::promise<void>>();
  std::future<void> ended = told->get_future();
  tell(std::forward<S>(input), told);
  ended.get();
}

}  // namespace sparring::testing
