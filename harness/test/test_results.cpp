#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "harness/results.hpp"

using tile::merge_results;
using tile::Origin;
using tile::Result;
using tile::to_json;

namespace {

const Origin kOrigin{"NVIDIA H200", "13.0", "13.0", "abc123", "2026-11-21"};

Result row(const std::string& step, double value, const std::string& peer = "copy") {
  Result result;
  result.chapter = "01_vector_add";
  result.step = step;
  result.direction = "forward";
  result.workload = "fp32 n16777216";
  result.metric = "bandwidth burst";
  result.value = value;
  result.unit = "TB/s";
  result.peer = peer;
  return result;
}

/// A file in the temporary folder that is gone at the end.
class TemporaryFile {
 public:
  TemporaryFile() : path("/tmp/tile_test_results_" + std::to_string(getpid()) + ".json") {
    std::remove(path.c_str());
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string read() const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  const std::string path;
};

}  // namespace

TEST_CASE("a row is one line of JSON with the fields in order") {
  Result result = row("step \"1\"", 4.36251);
  result.ratio = 1.02;
  CHECK(to_json(result, kOrigin) ==
        R"({"chapter": "01_vector_add", "step": "step \"1\"", "direction": "forward", )"
        R"("case": "fp32 n16777216", "metric": "bandwidth burst", "value": 4.363, )"
        R"("unit": "TB/s", "ceiling": null, "peer": "copy", "peer_value": null, "ratio": 1.02, )"
        R"("low": 0, "high": 0, "sm_clock": 0, "gpu": "NVIDIA H200", "driver": "13.0", )"
        R"("cuda": "13.0", "commit": "abc123", "date": "2026-11-21"})");
}

TEST_CASE("rows with the same key are replaced, others are kept in order") {
  const TemporaryFile file;
  merge_results(file.path, {row("a", 1), row("b", 2)}, kOrigin);
  merge_results(file.path, {row("a", 3), row("c", 4), row("a", 5, "torch")}, kOrigin);
  CHECK(file.read() == "[\n" + to_json(row("a", 3), kOrigin) + ",\n" +
                           to_json(row("b", 2), kOrigin) + ",\n" + to_json(row("c", 4), kOrigin) +
                           ",\n" + to_json(row("a", 5, "torch"), kOrigin) + "\n]\n");
}

TEST_CASE("merging the same rows again changes nothing") {
  const TemporaryFile file;
  merge_results(file.path, {row("a \"quoted\" \\ name", 1), row("b", 2)}, kOrigin);
  const std::string before = file.read();
  merge_results(file.path, {row("a \"quoted\" \\ name", 1)}, kOrigin);
  CHECK(file.read() == before);
}

TEST_CASE("a file of another kind is refused and left alone") {
  for (const std::string text : {"[{\"chapter\": 1},\n", "{\"a\": \"b\"}\n", "hello\n"}) {
    const TemporaryFile file;
    std::ofstream(file.path) << text;
    CHECK_THROWS_AS(merge_results(file.path, {row("a", 1)}, kOrigin), std::runtime_error);
    CHECK(file.read() == text);
  }
}

TEST_CASE("a folder that does not exist is an error that names the file") {
  CHECK_THROWS_WITH(merge_results("/nonexistent/results.json", {row("a", 1)}, kOrigin),
                    "cannot write /nonexistent/results.json");
}
