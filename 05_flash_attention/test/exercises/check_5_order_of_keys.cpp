// Checks exercise 05.5. Not part of the task.
// Shipped: the keys are taken in their order
#include <array>

#include "test/exercises/checks.hpp"

using flash_attention::Values;
using tile::Expected;

namespace {

constexpr int kQueries = 16, kKeys = 32, kColumns = 8;

constexpr const char* kNoKey = "\nHint: does key_at() give a key that is not there?";

using KeyAt = int (*)(int place);
int right_key(int place) {
  return place / 16 * 16 + place % 4 / 2 * 8 + place % 16 / 4 * 2 + place % 2;
}

/// O, where the value of key_at(place) meets the weight that stands at the place.
Values product(const Values& p, const Values& v, KeyAt key_at) {
  Values o(kQueries * kColumns);
  for (int i = 0; i < kQueries * kColumns; ++i) {
    for (int place = 0; place < kKeys; ++place) {
      o[static_cast<std::size_t>(i)] +=
          p[static_cast<std::size_t>(i / kColumns * kKeys + right_key(place))] *
          v[static_cast<std::size_t>(key_at(place) * kColumns + i % kColumns)];
    }
  }
  return o;
}

struct Guess {
  const char* explanation;
  KeyAt key_at;
};
const Guess kGuesses[] = {
    {"the keys are taken in their order. A lane has four neighbouring places, and two keys of 8 "
     "and two of the next 8",
     [](int place) { return place; }},
    {"that is the place at which a key stands. Asked is the key that stands at a place",
     [](int key) { return key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2; }},
    {"a lane's third and fourth place have keys of the next 8 keys, not of the next 16",
     [](int place) {
       return place / 16 * 8 + place % 4 / 2 * 16 + place % 16 / 4 * 2 + place % 2;
     }},
    {"places 16 to 31 have keys 16 to 31", [](int place) { return right_key(place) % 16; }},
    {"the first two places of a lane have keys of the first 8, and the others of the next 8",
     [](int place) { return right_key(place) ^ 8; }},
};

void check(const Values& p, const Values& v) {
  const Values right = product(p, v, right_key);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const tile::DeviceBuffer weights = flash_attention::input("p", p);
    const tile::DeviceBuffer values = flash_attention::input("v", v);
    const tile::DeviceBuffer buffer = flash_attention::output("o", right.size(), poison);
    tile::run_answer(
        [&] {
          return flash_attention::order_of_keys(flash_attention::floats(weights),
                                                flash_attention::floats(values),
                                                flash_attention::floats(buffer));
        },
        std::array{&weights, &values, &buffer}, kNoKey);
    const Values got = buffer.download();
    tile::require_right("o", got, Expected{{kQueries, kColumns}, right, Values(right.size(), 0)},
                        [&]() -> std::string {
                          if (!std::ranges::all_of(got, [](double x) { return std::isfinite(x); }))
                            return kNoKey;
                          for (const Guess& guess : kGuesses) {
                            if (got == product(p, v, guess.key_at))
                              return std::string("\nHint: ") + guess.explanation;
                          }
                          return {};
                        });
  }
}

}  // namespace

TEST_CASE("05.5 the order of keys") {
  // Query i sees key i, or i + 16, alone, and column j of a value is bit j of its key.
  Values bits(kKeys * kColumns);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<double>(i / kColumns >> i % kColumns & 1);
  }
  for (const std::size_t first : {0u, 16u}) {
    Values one(kQueries * kKeys);
    for (std::size_t query = 0; query < kQueries; ++query) one[query * (kKeys + 1) + first] = 1;
    check(one, bits);
  }
  Values p(kQueries * kKeys), v(kKeys * kColumns);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = static_cast<double>(i * 7 % 5);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i * 11 % 13) - 6;
  check(p, v);
}
