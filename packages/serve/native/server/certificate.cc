#include "server/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <stdexcept>

#include "server/log.h"

namespace sparring::serve {

namespace {

constexpr double kWarningSeconds = 14 * 86400.0;

}  // namespace

double read_expiry(const std::string& content) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> source(
      BIO_new_mem_buf(content.data(), static_cast<int>(content.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> found(
      PEM_read_bio_X509(source.get(), nullptr, nullptr, nullptr), X509_free);
  std::tm moment = {};
  if (found == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(found.get()), &moment) != 1) {
    throw std::runtime_error("server.tls.certificate_file: found no certificate, expected one in PEM format");
  }
  const std::time_t expiry = timegm(&moment);
  const double rest = std::difftime(expiry, std::time(nullptr));
  if (rest < kWarningSeconds) {
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &moment);
    log(LogLevel::kWarning, std::string("the certificate of server.tls.certificate_file ") +
                                (rest < 0 ? "expired" : "expires") + " at " + text +
                                "; replace the file, which is read again while the server runs");
  }
  return static_cast<double>(expiry);
}

}  // namespace sparring::serve
