// Quotas of clients: calls and ids per second, by token buckets, as in sparring_serve.limits.
//
// A bucket contains what a client may use in one second, and is refilled continuously. A call is admitted
// unless one of the client's buckets is empty. It takes 1 from the bucket of calls at once. Its ids are
// known only later and are taken then, so that the bucket may become negative: a call with many ids is
// admitted, and the next calls wait for the refill.
#ifndef SPARRING_SERVE_SERVER_QUOTAS_H_
#define SPARRING_SERVE_SERVER_QUOTAS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace sparring::serve {

// Calls and ids of a client since the server started.
struct ClientUse {
  std::string client;
  int64_t admitted = 0;
  int64_t rejected = 0;
  int64_t ids = 0;
};

// Thread-safe. The file of tokens limits the number of clients.
class Quotas {
 public:
  using Clock = std::chrono::steady_clock;
  class Client;

  // A rate of 0 sets no limit.
  Quotas(double calls_per_second, double ids_per_second)
      : calls_per_second_(calls_per_second), ids_per_second_(ids_per_second) {}

  // Counts a call of a client and returns the client, which exists as long as the quotas. Throws StatusError
  // (RESOURCE_EXHAUSTED) if a quota of the client is used up.
  Client& admit(const std::string& name, Clock::time_point now = Clock::now());

  std::vector<ClientUse> uses() const;

  // While it exists, `charge` on this thread counts ids of the client, which may be null.
  class Charging {
   public:
    explicit Charging(Client* client);
    Charging(const Charging&) = delete;
    Charging& operator=(const Charging&) = delete;
    ~Charging();
  };
  static void charge(int64_t num_ids);

 private:
  const double calls_per_second_;
  const double ids_per_second_;
  mutable std::mutex mutex_;  // of the map
  std::map<std::string, Client> clients_;
};

class Quotas::Client {
 public:
  Client(std::string name, double calls_per_second, double ids_per_second, Clock::time_point now);

  void admit(Clock::time_point now);
  void charge(int64_t num_ids);
  ClientUse use() const;

 private:
  struct Bucket {
    double rate;
    const char* unit;
    double level;
  };

  mutable std::mutex mutex_;
  std::vector<Bucket> buckets_;
  Clock::time_point filled_;
  ClientUse use_;
};

}  // namespace sparring::serve

#endif  // SPARRING_SERVE_SERVER_QUOTAS_H_
