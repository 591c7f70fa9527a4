// The limit of the native server: replies to each call with the same number of bytes, and does nothing else.
//
//   echo NUM_BYTES [CERTIFICATE KEY]
//
// It prints its port on 127.0.0.1, and ends when its input ends.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

namespace {

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Reply final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Reply(const grpc::Slice& bytes) : reply_(&bytes, 1) { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
    } else {
      Finish(grpc::Status::CANCELLED);
    }
  }
  void OnDone() override { delete this; }

  grpc::ByteBuffer request_;
  grpc::ByteBuffer reply_;
};

class Echo final : public grpc::CallbackGenericService {
 public:
  explicit Echo(size_t size) : bytes_(std::string(size, 'x')) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Reply(bytes_);
  }

 private:
  const grpc::Slice bytes_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) return 2;
  Echo echo(static_cast<size_t>(std::atoll(argv[1])));
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (argc == 4) {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({read_file(argv[3]), read_file(argv[2])});
    credentials = grpc::SslServerCredentials(options);
  }
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", credentials, &port);
  builder.RegisterCallbackGenericService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::printf("%d\n", port);
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  server->Shutdown(std::chrono::system_clock::now());
  return server == nullptr ? 1 : 0;
}
