#include "format/manifest.h"

#include <string>
#include <vector>

#include "check.h"
#include "format/json.h"
#include "format/xxh3.h"
#include "sparring/storage_border.h"

using sparring::border::StatusError;
using namespace sparring::packed;

namespace {

// For the bytes 0, 1, …, 250, 0, 1, …; computed with the xxhash package.
void xxh3_has_its_published_values() {
  std::vector<unsigned char> bytes(4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  CHECK(xxh3_128(bytes.data(), 241) == "1da1cb61bcb8a2a102e8cd95421c6d02");
  CHECK(xxh3_128(bytes.data(), 256) == "96c36c85d00e5bc544f5d90dacde463a");
  CHECK(xxh3_128(bytes.data(), 1023) == "4325711b0ed4d742d3d91d80ac495685");
  CHECK(xxh3_128(bytes.data(), 1024) == "d0ac1f7b93bf57b9e5d78bafa45b2aa5");
  CHECK(xxh3_128(bytes.data(), 1025) == "2882ebca04ec915ce95c42288f28186e");
  CHECK(xxh3_128(bytes.data(), 1088) == "295519bc52981c5c1a848d807034c403");
  CHECK(xxh3_128(bytes.data(), 2048) == "a5141efedfefc1af25339063db861586");
  CHECK(xxh3_128(bytes.data(), 2049) == "39a54bc93f74921b6c9600c0e506e2ae");
  CHECK(xxh3_128(bytes.data(), 4096) == "e12cd72144990fe57135ffa504f1bc71");
}

void json_is_parsed_exactly() {
  const Json json = Json::parse(R"({"a": [1, -2, 1.5e3, true, null, "x\"y"], "b": {}})");
  CHECK(json.at("a").array("a").size() == 6);
  CHECK(json.at("a").array("a")[1].whole("", -5, 5) == -2);
  CHECK(json.at("a").array("a")[2].number("") == 1500.0);
  CHECK(json.at("a").array("a")[4].is_null());
  CHECK(json.at("a").array("a")[5].text("") == "x\"y");
  CHECK(json.at("b").object("b").empty());
}

void invalid_json_is_rejected() {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "01x", "nul", "\"", "1 2", "{1:2}",
                           "[\"\n\"]", "\"\\"}) {
    CHECK_THROWS(Json::parse(text), StatusError);
  }
  CHECK_THROWS(Json::parse(std::string(10'000, '[')), StatusError);
}

void values_of_another_type_are_rejected() {
  const Json json = Json::parse("{\"a\": 1}");
  CHECK_THROWS(json.at("b"), StatusError);
  CHECK_THROWS(json.at("a").text("a"), StatusError);
  CHECK_THROWS(json.at("a").array("a"), StatusError);
  CHECK_THROWS(json.at("a").whole("a", 2, 3), StatusError);
  CHECK_THROWS(json.array("it"), StatusError);
}

void a_text_without_its_hash_is_not_a_manifest() {
  CHECK_THROWS(parse_manifest(""), StatusError);
  CHECK_THROWS(parse_manifest(std::string(1000, ' ')), StatusError);
  const std::string tail = "\n \"hash\": \"" + std::string(32, '0') + "\"\n}\n";
  CHECK_THROWS(parse_manifest("{" + std::string(1000, ' ') + tail), StatusError);
  CHECK_THROWS(parse_manifest(tail), StatusError);
}

std::string manifest_text(int version, const std::string& model) {
  const std::string body =
      R"({"format": "sparring serving snapshot", "version": )" + std::to_string(version) +
      R"(, "step": 7, "published": 1.5, "source": {"name": "a", "hash": ")" + std::string(32, '0') +
      R"("}, "base": null, "tables": [{"name": "item", "dim": 4, "dtype": "fp32", )"
      R"("trained_dtype": "fp32", "seed": 0, "initializer": )"
      R"({"kind": "zeros", "first": 0.0, "second": 0.0}}], "files": [])" +
      model + ",";
  return body + "\n \"hash\": \"" + xxh3_128(body.data(), body.size()) + "\"\n}\n";
}

std::string model_file(const std::string& name, int size_bytes) {
  return R"({"name": ")" + name + R"(", "kind": "parameters", "size_bytes": )" +
         std::to_string(size_bytes) + R"(, "hash": ")" + std::string(32, 'a') + R"("})";
}

void files_of_the_model_need_version_2() {
  const std::string parameters = model_file("parameters.safetensors", 300);
  const Manifest manifest = parse_manifest(manifest_text(2, ", \"model\": [" + parameters + "]"));
  CHECK(manifest.model.size() == 1);
  CHECK(manifest.model[0].name == "parameters.safetensors");
  CHECK(manifest.model[0].kind == "parameters");
  CHECK(manifest.model[0].size_bytes == 300);
  CHECK(parse_manifest(manifest_text(1, "")).model.empty());
  CHECK_THROWS(parse_manifest(manifest_text(2, "")), StatusError);
  CHECK_THROWS(parse_manifest(manifest_text(2, ", \"model\": []")), StatusError);
  CHECK_THROWS(parse_manifest(manifest_text(4, ", \"model\": [" + parameters + "]")), StatusError);
  for (const std::string& bad :
       {parameters + ", " + parameters, model_file("../a", 300), model_file("a", 10)}) {
    CHECK_THROWS(parse_manifest(manifest_text(2, ", \"model\": [" + bad + "]")), StatusError);
  }
}

void a_generation_needs_version_3() {
  const auto parsed = [](int version, const std::string& fields) {
    return parse_manifest(manifest_text(version, ", \"model\": []" + fields));
  };
  CHECK(parsed(3, ", \"generation\": 4").generation == 4);
  CHECK(parse_manifest(manifest_text(1, "")).generation == 0);
  CHECK_THROWS(parsed(3, ""), StatusError);
  CHECK_THROWS(parsed(3, ", \"generation\": 0"), StatusError);
  CHECK_THROWS(parsed(4, ", \"generation\": 4"), StatusError);
  CHECK_THROWS(parse_manifest(manifest_text(3, ", \"generation\": 4")), StatusError);
}

}  // namespace

int main() {
  return sparring::testing::run({
      {"xxh3 has its published values", xxh3_has_its_published_values},
      {"JSON is parsed exactly", json_is_parsed_exactly},
      {"invalid JSON is rejected", invalid_json_is_rejected},
      {"values of another type are rejected", values_of_another_type_are_rejected},
      {"a text without its hash is not a manifest", a_text_without_its_hash_is_not_a_manifest},
      {"files of the model need version 2", files_of_the_model_need_version_2},
      {"a generation needs version 3", a_generation_needs_version_3},
  });
}
