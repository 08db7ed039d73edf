// Checks exercise 06.3. Not part of the task.
#include <functional>
#include <tuple>

#include "test/exercises/checks.hpp"

using namespace rope;

namespace {

std::string text(const NtkTables& t) {
  return "positions from " + std::to_string(t.first) + ", " + std::to_string(t.count) +
         " of them, rotary_dim = " + std::to_string(t.rotary_dim) +
         ", base = " + std::to_string(t.base) + ", factor = " + std::to_string(t.factor);
}

using Frequency = std::function<double(const NtkTables&, double pair)>;
double ntk(const NtkTables& t, double i) {
  const auto d = static_cast<double>(t.rotary_dim);
  return std::pow(t.base * std::pow(t.factor, d / (d - 2)), -2 * i / d);
}

using Function = double (*)(double);

/// What comes out with these frequencies, and angles that are rounded like this.
template <class Angle>
Expected table_of(const NtkTables& t, const Frequency& frequency, Function function,
                  Angle angle_of) {
  const std::int64_t pairs = t.rotary_dim / 2;
  Expected expected{{t.count, pairs}, {}, {}};
  for (std::int64_t row = 0; row < t.count; ++row) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle =
          angle_of(static_cast<double>(t.first + row), frequency(t, static_cast<double>(i)));
      const double value = function(angle);
      expected.value.push_back(value);
      // Rounded to fp32 once. In double a frequency may be off by 2^-46 of itself: as a power of 2
      // its exponent has up to 5 bits before the point, and each of a few operations leaves 2^-53.
      expected.bound.push_back(kUnit * std::abs(value) + 0x1p-46 * std::abs(angle) + 0x1p-149);
    }
  }
  return expected;
}
double exact(double position, double frequency) { return position * frequency; }

std::string explain(const NtkTables& t, Function function, const Values& got) {
  std::vector<tile::Mistake> mistakes;
  const auto it_is = [&](std::string_view explanation, const Frequency& frequency,
                         Function of = nullptr) {
    mistakes.push_back({explanation, table_of(t, frequency, of ? of : function, exact)});
  };
  const auto d = static_cast<double>(t.rotary_dim);
  const auto with_base = [d](auto base_of) {
    return [d, base_of](const NtkTables& u, double i) { return std::pow(base_of(u), -2 * i / d); };
  };
  it_is("this is the table without scaling: the base is the old one",
        with_base([](const NtkTables& u) { return u.base; }));
  it_is("all frequencies are divided by the factor, the first one too: that is linear scaling",
        [d](const NtkTables& u, double i) { return std::pow(u.base, -2 * i / d) / u.factor; });
  it_is(
      "the base is multiplied by the factor itself, so the slowest pair stays too fast: which "
      "power of b' has it?",
      with_base([](const NtkTables& u) { return u.base * u.factor; }));
  it_is("the exponent of the factor is upside down",
        with_base([d](const NtkTables& u) { return u.base * std::pow(u.factor, (d - 2) / d); }));
  it_is("pair i has the frequency of half its number: the exponent is -2 i / d",
        [](const NtkTables& u, double i) { return ntk(u, i / 2); });
  it_is("the frequencies grow from pair to pair: the exponent is negative",
        [](const NtkTables& u, double i) { return 1 / ntk(u, i); });
  it_is("cosine and sine are exchanged", ntk,
        function == static_cast<Function>(std::cos) ? static_cast<Function>(std::sin)
                                                    : static_cast<Function>(std::cos));
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;

  // A factor of 2^-21 of the angle: a product in fp32 of a frequency in fp32, by whatever route.
  const auto pairs = static_cast<std::size_t>(t.rotary_dim / 2);
  bool as_in_fp32 = true;
  const Expected right = table_of(t, ntk, function, exact);
  for (std::size_t k = 0; k < got.size(); ++k) {
    const double angle = static_cast<double>(t.first + static_cast<std::int64_t>(k / pairs)) *
                         ntk(t, static_cast<double>(k % pairs));
    as_in_fp32 &= std::abs(got[k] - right.value[k]) <= right.bound[k] + 0x1p-21 * angle + 4 * kUnit;
  }
  if (as_in_fp32) {
    return "\nHint: all are near, and the greater the angle, the farther off: was a frequency or "
           "an angle rounded to fp32?";
  }
  if (t.count > 1 && pairs > 1) {
    Values exchanged(got.size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      exchanged[k % pairs * static_cast<std::size_t>(t.count) + k / pairs] = right.value[k];
    }
    Expected other = right;
    other.value = exchanged;
    other.bound.assign(got.size(), 0x1p-20);
    const tile::Mistake mistake[] = {
        {"position and pair are exchanged: a row of a table is a position", other}};
    return tile::explain_mistake(got, mistake);
  }
  return {};
}

void check(const NtkTables& t) {
  INFO(text(t));
  const std::int64_t entries = t.count * t.rotary_dim / 2;
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer cos = output("cos", entries, poison), sin = output("sin", entries, poison);
    tile::run_answer([&] { return ntk_tables(t, floats(cos), floats(sin)); },
                     std::array{&cos, &sin});
    for (const auto& [name, buffer, function] :
         {std::tuple{"cos", &cos, static_cast<Function>(std::cos)},
          {"sin", &sin, static_cast<Function>(std::sin)}}) {
      const Values got = buffer->download();
      tile::require_right(name, got, table_of(t, ntk, function, exact),
                          [&, f = function] { return explain(t, f, got); });
    }
  }
}

}  // namespace

TEST_CASE("06.3 a base for longer texts") {
  check({0, 5, 8, 1e4, 4});
  check({0, 100, 64, 1e4, 8});
  check({3, 37, 18, 500, 1.5});
  check({1, 9, 4, 1e4, 1});          // no scaling
  check({131000, 72, 128, 1e4, 8});  // far out, and with a large base
  check({131071, 1, 128, 5e5, 16});
}
