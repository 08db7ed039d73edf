#include "harness/tour_arguments.hpp"

#include <doctest/doctest.h>

#include <string>

namespace tile {
namespace {

// Of literals, which outlive the request, as the arguments of main() do.
Request parse(std::vector<const char*> words) {
  words.insert(words.begin(), "tour");
  return parse_arguments(static_cast<int>(words.size()), const_cast<char**>(words.data()));
}

std::string refusal(const std::vector<const char*>& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "not refused";
}

TEST_CASE("tour arguments: a step, its size and its type") {
  const Request request = parse({"run", "2", "naive", "--size", "3x4x5", "--type", "fp16"});
  CHECK(request.command == "run");
  REQUIRE(request.chapter);
  CHECK(request.chapter->name == "02_matmul");
  CHECK(request.step == 0);
  CHECK(request.size == std::vector<std::int64_t>{3, 4, 5});
  CHECK(request.type == DType::fp16);
  CHECK(parse({"run", "02", "--size", "7"}).size == std::vector<std::int64_t>{7, 7, 7});
  CHECK(parse({}).command == "tour");
  CHECK_FALSE(parse({}).chapter);
}

TEST_CASE("tour arguments: a ladder is named, or it is the first") {
  const Request backward = parse({"run", "04", "backward", "2"});
  REQUIRE(backward.ladder);
  CHECK(backward.ladder->name == "backward");
  CHECK(backward.step == 1);
  const Request forward = parse({"run", "04", "2"});
  REQUIRE(forward.ladder);
  CHECK(forward.ladder->name == "forward");
  CHECK(forward.step == 1);
  CHECK(parse({"run", "04", "atomics"}).ladder == backward.ladder);  // only that one has it
  CHECK(parse({"run", "04", "backward"}).ladder == backward.ladder);
  CHECK_FALSE(parse({"run", "04", "backward"}).step);
  CHECK_FALSE(parse({"run", "04"}).ladder);
  CHECK(parse({"bench", "04", "backward"}).ladder == backward.ladder);
  CHECK(refusal({"run", "04", "backward", "welford"}).find("Other ladders: forward") !=
        std::string::npos);
}

TEST_CASE("tour arguments: what is compared, and the sizes of its ladder") {
  const Request request = parse({"run", "07", "--compare", "--size", "1x2x3x4x5x6x7"});
  CHECK(request.compare);
  REQUIRE(request.ladder);
  CHECK(request.ladder->name == "hidden");
  CHECK(request.size.size() == 7);
  CHECK(refusal({"run", "01", "--compare"}) == "01_vector_add has nothing to --compare");
  CHECK(refusal({"run", "07", "1", "--compare"}).rfind("--compare goes with run CHAPTER", 0) == 0);
  CHECK(parse({"bench", "02", "3", "--why"}).why);
  CHECK(*parse({"bench", "02", "3", "--why"}).step == 2);
  CHECK(refusal({"run", "02", "3", "--why"}) == "--why goes with bench");
  CHECK(refusal({"bench", "07", "--compare"}).rfind("--compare goes with run CHAPTER", 0) == 0);
}

TEST_CASE("tour arguments: what makes no sense is refused by name") {
  CHECK(refusal({"list", "x"}).starts_with("There is no chapter 'x'"));
  CHECK(refusal({"list", "--size", "5"}) == "list takes no --size or --type: it runs nothing");
  CHECK(refusal({"list", "--type", "fp16"}) == "list takes no --size or --type: it runs nothing");
  CHECK(refusal({"run", "01", "1", "x"}) == "'x' is one word too many after run");
  CHECK(refusal({"walk"}).rfind("There is no command 'walk'", 0) == 0);
  CHECK(refusal({"run"}).rfind("run needs a chapter: 01_vector_add, ", 0) == 0);
  CHECK(refusal({"run", "99"}).rfind("There is no chapter '99'", 0) == 0);
  CHECK(refusal({"run", "01", "tiled"}).rfind("01_vector_add has no step 'tiled'", 0) == 0);
  CHECK(refusal({"run", "01", "--size"}) == "--size needs a value");
  CHECK(refusal({"run", "02", "--size", "1x2"}) ==
        "--size '1x2': 02_matmul takes 3 whole numbers, m, n, k: op(A) is m x k, op(B) is k x n, C "
        "is "
        "m x n. For example: --size 100x200x300");
  CHECK(refusal({"run", "01", "--size", "1000x2"}) ==
        "--size '1000x2': 01_vector_add takes one whole number, n: the elements of each vector. "
        "For example: --size 100");
  CHECK(refusal({"run", "01", "--size", "-1"}).rfind("--size '-1': ", 0) == 0);
  CHECK(refusal({"--size", "5"}) == "--size needs a chapter");
  CHECK(refusal({"run", "01", "--type", "fp8"}).rfind("--type 'fp8' is none of fp32, ", 0) == 0);
  CHECK(refusal({"run", "01", "--json", "x"}) == "--json and --commit go with bench");
  CHECK(refusal({"bench", "--json", "x"}).rfind("--json FILE and --commit ID go together", 0) == 0);
}

}  // namespace
}  // namespace tile
