// Sends the same call again and again, and prints one line: the number of calls, calls per second, the
// median and the 99th percentile of the latency in µs, the 99th percentile of the time in µs by which calls
// were sent too late, which is part of the latency, the numbers of errors, of torn rows and of mixed
// versions, and the lowest and the highest step of the replies.
//
//   load ADDRESS METHOD REQUEST RATE SECONDS TOKEN [CA]
//
// REQUEST is a file with the encoded request; or rows:NUM_ROWS:DIM:NUM_IDS:SHARE for random ids, whose
// rows are checked (numbered_rows.h).
// RATE is the number of calls per second, sent at fixed times whether or not others are complete; the
// latency then starts at the planned time. 0: 8 calls are in progress at all times. TOKEN may be empty.
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numbered_rows.h"

namespace {

using sparring::serve::NumberedRows;


using Clock = std::chrono::steady_clock;

constexpr int kChannels = 4;
constexpr int kInProgress = 8;
constexpr std::chrono::seconds kDeadline{5};
constexpr const char* kRows = "rows:";

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

double micros(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

class Load {
 public:
  Load(const std::string& address, std::string method, const std::string& request, std::string token,
       const std::string& ca)
      : method_(std::move(method)), token_(std::move(token)) {
    if (request.starts_with(kRows)) {
      rows_.emplace(request.substr(std::strlen(kRows)));
    } else {
      request_ = buffer_of(read_file(request.c_str()));
    }
    for (int i = 0; i < kChannels; ++i) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxReceiveMessageSize(-1);
      const auto credentials =
          ca.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials({ca, "", ""});
      stubs_.push_back(std::make_unique<grpc::GenericStub>(
          grpc::CreateCustomChannel(address, credentials, arguments)));
    }
  }

  void run(double rate, double seconds) {
    const auto begin = Clock::now();
    end_ = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (rate > 0) {
      const auto num_calls = static_cast<int64_t>(rate * seconds);
      for (int64_t i = 0; i < num_calls; ++i) {
        const auto planned = begin + std::chrono::duration_cast<Clock::duration>(
                                         std::chrono::duration<double>(static_cast<double>(i) / rate));
        std::this_thread::sleep_until(planned);
        late_.push_back(micros(Clock::now() - planned));
        send(planned, false);
      }
    } else {
      for (int i = 0; i < kInProgress; ++i) send(Clock::now(), true);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return in_progress_ == 0; });
    elapsed_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // Forgets what was measured.
  void forget() {
    latencies_.clear();
    late_.clear();
    num_errors_ = 0;
  }

  void print() {
    std::sort(latencies_.begin(), latencies_.end());
    std::sort(late_.begin(), late_.end());
    const auto at = [](const std::vector<double>& sorted, double share) {
      return sorted.empty() ? 0.0 : sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
    };
    std::printf("%zu %.1f %.1f %.1f %.1f %lld %lld %lld %lld %lld\n", num_calls_,
                static_cast<double>(latencies_.size()) / elapsed_, at(latencies_, 0.5),
                at(latencies_, 0.99), at(late_, 0.99), num_errors_, num_torn_, num_mixed_, first_step_,
                last_step_);
  }

 private:
  struct Sent {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer reply;
    Clock::time_point planned;
    std::vector<int64_t> keys;
  };

  static grpc::ByteBuffer buffer_of(const std::string& content) {
    const grpc::Slice slice(content);
    return grpc::ByteBuffer(&slice, 1);
  }

  void send(Clock::time_point planned, bool repeats) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++in_progress_;
    }
    auto* const sent = new Sent;
    sent->planned = planned;
    sent->context.set_deadline(std::chrono::system_clock::now() + kDeadline);
    if (!token_.empty()) sent->context.AddMetadata("authorization", "Bearer " + token_);
    if (rows_) {
      thread_local std::mt19937_64 random(std::hash<std::thread::id>()(std::this_thread::get_id()));
      sent->request = buffer_of(rows_->make_request(random, sent->keys));
    } else {
      sent->request = request_;
    }
    const size_t stub = next_.fetch_add(1) % stubs_.size();
    stubs_[stub]->UnaryCall(&sent->context, method_, {}, &sent->request, &sent->reply,
                            [this, sent, repeats](const grpc::Status& status) {
                              const auto now = Clock::now();
                              if (repeats && now < end_) send(now, true);
                              done(*sent, status, now);
                              delete sent;
                            });
  }

  void done(const Sent& sent, const grpc::Status& status, Clock::time_point now) {
    int64_t step = 0;
    auto result = NumberedRows::Result::kIntact;
    if (rows_ && status.ok()) {
      grpc::Slice reply;
      result = sent.reply.DumpToSingleSlice(&reply).ok()
                   ? rows_->check({reinterpret_cast<const char*>(reply.begin()), reply.size()}, sent.keys, step)
                   : NumberedRows::Result::kTorn;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    num_errors_ += status.ok() ? 0 : 1;
    num_torn_ += result == NumberedRows::Result::kTorn;
    num_mixed_ += result == NumberedRows::Result::kMixed;
    if (step > 0) {
      first_step_ = first_step_ == 0 ? step : std::min<long long>(first_step_, step);
      last_step_ = std::max<long long>(last_step_, step);
    }
    ++num_calls_;
    latencies_.push_back(micros(now - sent.planned));
    if (--in_progress_ == 0) changed_.notify_all();
  }

  const std::string method_;
  const std::string token_;
  std::optional<NumberedRows> rows_;
  grpc::ByteBuffer request_;  // without `rows_`
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::atomic<size_t> next_{0};
  Clock::time_point end_;
  double elapsed_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<double> latencies_;
  std::vector<double> late_;
  long long num_errors_ = 0;
  long long num_torn_ = 0;
  long long num_mixed_ = 0;
  long long first_step_ = 0;
  long long last_step_ = 0;
  size_t num_calls_ = 0;  // including those that were forgotten
  int in_progress_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) return 2;
  Load load(argv[1], argv[2], argv[3], argv[6], argc == 8 ? read_file(argv[7]) : "");
  load.run(0, 0.05);  // connects
  load.forget();
  load.run(std::atof(argv[4]), std::atof(argv[5]));
  load.print();
  return 0;
}
