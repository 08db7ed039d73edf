// Each mistake of the table in beginners.txt has the message meant for it, and no other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>

#include "beginner_kernels.hpp"
#include "harness/buffer.hpp"
#include "harness/compare.hpp"
#include "harness/inputs.hpp"
#include "marks.hpp"
#include "report.hpp"

using namespace device_test;
using cpu_device::options;
using tile::DeviceBuffer;
using tile::DType;

namespace {

/// By kernel and mistake, what stands after "check", "result" and "not".
std::map<std::string, std::map<std::string, std::string>> read_table() {
  std::ifstream file(DEVICE_TEST_ROOT "/cpu_device/test/beginners.txt");
  static const std::regex mistake("== ([a-z_.]+): .*"), wanted("(check|result|not): (.*)");
  std::map<std::string, std::map<std::string, std::string>> rows;
  std::string last;
  for (std::string line; std::getline(file, line);) {
    std::smatch m;
    if (std::regex_match(line, m, mistake)) rows[last = m[1]] = {};
    if (std::regex_match(line, m, wanted)) rows.at(last)[m[1]] = m[2];
  }
  return rows;
}

struct Outcome {
  std::string report;
  std::vector<double> y, c;
  std::string damage;
};

Outcome run(void (*launch)(const BeginnerMemory& memory)) {
  constexpr DType kType = DType::fp32;
  const auto vector = tile::vector_layout(kType, kBeginnerCount);
  const auto matrix = [](int ld) { return tile::matrix_layout(kType, kSide, kSide, ld); };
  const auto values = [](int count, int seed) {
    return tile::normal(count, kType, static_cast<std::uint64_t>(seed));
  };
  const DeviceBuffer x = DeviceBuffer::input("x", vector, values(kBeginnerCount, 1));
  const DeviceBuffer y = DeviceBuffer::in_out("y", vector, values(kBeginnerCount, 2));
  const DeviceBuffer one = DeviceBuffer::in_out("one", tile::vector_layout(kType, 1), values(1, 2));
  const DeviceBuffer a = DeviceBuffer::input("a", matrix(kLdA), values(kSide * kSide, 3));
  const DeviceBuffer b = DeviceBuffer::input("b", matrix(kLdB), values(kSide * kSide, 4));
  const DeviceBuffer c = DeviceBuffer::output("c", matrix(kLdC), tile::Poison::unwritten_finite);
  launch({static_cast<const float*>(x.raw()), static_cast<float*>(y.raw()),
          static_cast<float*>(one.raw()), static_cast<const float*>(a.raw()),
          static_cast<const float*>(b.raw()), static_cast<float*>(c.raw())});
  Outcome outcome{take_failure().report, y.download(), c.download(), {}};
  for (const DeviceBuffer* buffer : {&x, &y, &a, &b, &c}) {
    if (const tile::Status status = buffer->check(); !status.ok()) {
      outcome.damage += status.message + "\n";
    }
  }
  return outcome;
}

std::string difference(const char* name, std::vector<std::int64_t> shape,
                       const std::vector<double>& got, const std::vector<double>& right) {
  tile::Expected expected{std::move(shape), right, {}};
  for (const double value : right) expected.bound.push_back(1e-5 * (1 + std::abs(value)));
  const tile::Comparison comparison = tile::compare(name, got, expected);
  return comparison.ok() ? "" : comparison.message + "\n";
}

/// All that a learner reads, by the build.
std::string message(const Beginner& beginner) {
  const Outcome got = run(beginner.launch);
  if (!got.report.empty() || cpu_device::kChecking) return got.report;
  const Outcome right = run(beginner.launch_right);
  return difference("y", {kBeginnerCount}, got.y, right.y) +
         difference("c", {kSide, kSide}, got.c, right.c) + got.damage;
}

bool says(std::string message, const std::string& pattern) {
  std::ranges::replace(message, '\n', ' ');
  return std::regex_search(message, std::regex(pattern));
}

}  // namespace

TEST_CASE("right kernels are silent") {
  const OptionsGuard guard;
  for (const Beginner& beginner : kBeginners) {
    const Outcome right = run(beginner.launch_right);
    CHECK(right.report == "");
    CHECK(right.damage == "");
  }
}

TEST_CASE("beginners' mistakes have the messages meant for them" *
          doctest::skip(cpu_device::kAsan)) {
  const OptionsGuard guard;
  const auto table = read_table();
  CHECK(table.size() == kBeginners.size());
  for (const Beginner& beginner : kBeginners) {
    const std::string name = std::string(beginner.kernel) + "." + beginner.mistake;
    const auto& wanted = table.at(name);
    const auto pattern = wanted.find(cpu_device::kChecking ? "check" : "result");
    if (pattern == wanted.end()) continue;
    for (const NamedOrder& order : kOrders) {
      options().order = order.order;
      options().seed = order.seed;
      CAPTURE(std::string(order.name));
      const std::string said = message(beginner);
      CHECK_MESSAGE(says(said, pattern->second), name, " is to say: ", pattern->second,
                    "\nbut says: ", said);
      CHECK_MESSAGE(!says(said, wanted.at("not")), name, " is not to say: ", wanted.at("not"),
                    "\nbut says: ", said);
    }
  }
}

TEST_CASE("(table) of what is said of beginners' mistakes" * doctest::skip()) {
  const OptionsGuard guard;
  for (const Beginner& beginner : kBeginners) {
    std::printf("== %s.%s\n%s\n", beginner.kernel, beginner.mistake, message(beginner).c_str());
  }
}
