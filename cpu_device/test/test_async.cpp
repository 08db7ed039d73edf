// cp.async: what PTX promises of copies, groups and waits.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "async_kernels.hpp"
#include "device_array.hpp"

using namespace device_test;

namespace {

constexpr int kThreads = 70;  // of two warps and a part of one

/// What each read of a script gives: the number of the copy that landed there.
void check_script(const std::string& steps, const std::vector<int>& expected) {
  CAPTURE(steps);
  Script script;
  REQUIRE(steps.size() <= kScriptLength);
  steps.copy(script.steps, kScriptLength);
  const std::size_t count = std::size_t{kScriptLength} * kThreads;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  const DeviceArray<float> in(values), out(count);
  run_script(script, in.data(), out.data(), kThreads);
  const std::vector<float> got = out.download();
  for (std::size_t read = 0; read < expected.size(); ++read) {
    CAPTURE(read);
    for (std::size_t t = 0; t < kThreads; ++t) {
      const float copied = values[static_cast<std::size_t>(expected[read]) * kThreads + t];
      CHECK(got[read * kThreads + t] == copied);
    }
  }
}

std::vector<unsigned char> bytes_of(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 37 + 1);
  return bytes;
}

}  // namespace

TEST_CASE("a wait lands all groups but the latest ones") {
  check_script("a,0A", {0});
  check_script("ab,0AB", {0, 1});
  check_script("a,b,1A", {0});
  check_script("a,b,1A0B", {0, 1});
  check_script("a,b,c,d,3A2B1C0D", {0, 1, 2, 3});
  check_script("a,b,c,d,1ABC", {0, 1, 2});
  check_script("ab,cd,1AB0CD", {0, 1, 2, 3});
}

TEST_CASE("groups that were waited for count no more, and a second wait lands nothing new") {
  check_script("a,0b,0AB", {0, 1});
  check_script("a,1b,1A1A", {0, 0});
  check_script("a,b,1c,1AB", {0, 1});
  check_script("a,0a,0b,c,1AB", {1, 2});
}

TEST_CASE("an empty group counts") {
  check_script("a,,1A", {0});
  check_script("a,b,,1AB", {0, 1});
  check_script(",,,a,0A", {0});
  check_script("a,,,,3A", {0});
  check_script("a,b,,,2AB", {0, 1});
}

TEST_CASE("a wait for all includes what is not committed") {
  check_script("a*A", {0});
  check_script("a,b*AB", {0, 1});
  check_script("a,b*c,0ABC", {0, 1, 2});
  check_script("*a*A", {0});
}

TEST_CASE("a place can be copied to again") {
  check_script("a,0Aa,0A", {0, 1});
  check_script("a,0A a,0A a,0A", {0, 1, 2});
}

TEST_CASE("4, 8 and 16 bytes arrive, and nothing else") {
  for (const int bytes : {4, 8, 16}) {
    CAPTURE(bytes);
    const std::vector<unsigned char> values = bytes_of(static_cast<std::size_t>(bytes) * kThreads);
    const DeviceArray<unsigned char> in(values), out(values.size());
    copy_pieces(bytes, in.data(), out.data(), kThreads);
    CHECK(out.download() == values);
  }
}

TEST_CASE("of every number of source bytes the rest becomes zero") {
  for (const int bytes : {4, 8, 16}) {
    CAPTURE(bytes);
    const auto size = static_cast<std::size_t>(bytes);
    const std::vector<unsigned char> values = bytes_of(size * kThreads);
    const DeviceArray<unsigned char> in(values), out(values.size());
    copy_part(bytes, in.data(), out.data(), kThreads);
    const std::vector<unsigned char> got = out.download();
    for (std::size_t t = 0; t < kThreads; ++t) {
      for (std::size_t i = 0; i < size; ++i) {
        CAPTURE(t);
        CAPTURE(i);
        CHECK(int{got[t * size + i]} == (i < t % (size + 1) ? int{values[t * size + i]} : 0));
      }
    }
  }
}

TEST_CASE("of a copy of nothing the source is not read") {
  const DeviceArray<unsigned char> out(bytes_of(std::size_t{16} * kThreads));
  copy_nothing(out.data(), kThreads);
  CHECK(out.download() == std::vector<unsigned char>(std::size_t{16} * kThreads));
}

TEST_CASE("a pipeline of three stages computes what it should, in every block") {
  constexpr std::size_t kBlocks = 5;
  for (const std::size_t tiles :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{40}}) {
    CAPTURE(tiles);
    std::vector<float> values(kBlocks * tiles * kTile);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 101);
    const DeviceArray<float> in(values), out(kBlocks * kTile);
    sum_tiles(in.data(), out.data(), static_cast<int>(kBlocks), static_cast<int>(tiles));
    std::vector<float> expected(kBlocks * kTile);
    for (std::size_t b = 0; b < kBlocks; ++b) {
      for (std::size_t k = 0; k < tiles; ++k) {
        for (std::size_t t = 0; t < kTile; ++t) {
          expected[b * kTile + t] += values[(b * tiles + k) * kTile + kTile - 1 - t];
        }
      }
    }
    CHECK(out.download() == expected);
  }
}
