// Checks exercise 04.3. Not part of the task.
#include <algorithm>
#include <array>

#include "test/exercises/checks.hpp"

using layernorm::Grouped;
using layernorm::kUnit;
using layernorm::Values;
using tile::DeviceBuffer;
using tile::Expected;

namespace {

constexpr std::int64_t kWarp = 32;

struct Task {
  Grouped shape;
  Values x, gamma, beta;

  explicit Task(Grouped s, double center = 0)
      : shape(s),
        x(tile::normal(s.batch * s.channels * s.positions, tile::DType::fp64, 1)),
        gamma(tile::uniform(s.channels, tile::DType::fp32, 2, 0.5, 2)),
        beta(tile::uniform(s.channels, tile::DType::fp32, 3, -2, 2)) {
    // Channels and images differ, or it would not matter much which of them make a group.
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto row = static_cast<double>(i / static_cast<std::size_t>(s.positions));
      x[i] = center + x[i] * (1 + std::fmod(row * 0.37, 1.0)) + std::fmod(row * 0.61, 1.0);
    }
    x = tile::rounded(x, tile::DType::fp32);
  }

  std::string text() const {
    return "batch = " + std::to_string(shape.batch) +
           ", channels = " + std::to_string(shape.channels) +
           ", positions = " + std::to_string(shape.positions) +
           ", groups = " + std::to_string(shape.groups) + ", eps = " + std::to_string(shape.eps);
  }
};

// What comes out if channel c belongs to group group_of(c), c = 0, 1 and so on, of `groups` groups
// of the same size; and if an element of channel c, which is the group's i-th, has the gamma and
// beta of channel parameter_of(c, i). To each group the reference of LayerNorm is given as a row.
template <class GroupOf, class ParameterOf>
Expected if_it_were(const Task& t, std::int64_t groups, GroupOf group_of,
                    ParameterOf parameter_of) {
  const Grouped& s = t.shape;
  Expected expected{{s.batch, s.channels, s.positions}, Values(t.x.size()), Values(t.x.size())};
  for (std::int64_t group = 0; group < groups; ++group) {
    // Of one image; those of the others lie as far apart as the images.
    std::vector<std::size_t> places;
    Values x, gamma, beta;
    for (std::int64_t channel = 0; channel < s.channels; ++channel) {
      if (group_of(channel) != group) continue;
      for (std::int64_t position = 0; position < s.positions; ++position) {
        const auto parameter =
            static_cast<std::size_t>(parameter_of(channel, std::ssize(places)) % s.channels);
        places.push_back(static_cast<std::size_t>(channel * s.positions + position));
        gamma.push_back(t.gamma[parameter]);
        beta.push_back(t.beta[parameter]);
      }
    }
    const auto image = static_cast<std::size_t>(s.channels * s.positions);
    for (std::size_t first = 0; first < t.x.size(); first += image) {
      for (const std::size_t place : places) x.push_back(t.x[first + place]);
    }
    const Expected y =
        layernorm::reference(
            {.type = tile::DType::fp32, .rows = s.batch, .cols = std::ssize(places), .eps = s.eps},
            x, gamma, beta, layernorm::Origin::zero)
            .y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t to = i / places.size() * image + places[i % places.size()];
      expected.value[to] = y.value[i];
      expected.bound[to] = y.bound[i];
    }
  }
  return expected;
}

std::int64_t own_channel(std::int64_t channel, std::int64_t) { return channel; }

Expected right(const Task& t) {
  const std::int64_t group_channels = t.shape.channels / t.shape.groups;
  return if_it_were(
      t, t.shape.groups, [=](std::int64_t c) { return c / group_channels; }, own_channel);
}

// What comes out if element i is what `element` makes of mean, rstd, x, gamma and beta.
template <class Element>
Expected of_statistics(const Task& t, Element element) {
  const Grouped& s = t.shape;
  Expected expected = right(t);
  const auto count = static_cast<std::size_t>(s.numbers());
  for (std::size_t first = 0; first < t.x.size(); first += count) {
    double mean = 0, variance = 0;
    for (std::size_t i = first; i < first + count; ++i) mean += t.x[i];
    mean /= static_cast<double>(count);
    for (std::size_t i = first; i < first + count; ++i) {
      variance += (t.x[i] - mean) * (t.x[i] - mean);
    }
    variance /= static_cast<double>(count);
    for (std::size_t i = first; i < first + count; ++i) {
      const std::size_t channel = i / static_cast<std::size_t>(s.positions) % t.gamma.size();
      expected.value[i] = element(t.x[i] - mean, mean, variance, t.gamma[channel], t.beta[channel]);
      expected.bound[i] = 8 * expected.bound[i] + 64 * kUnit * std::abs(expected.value[i]);
    }
  }
  return expected;
}

std::string explain(const Task& t, const Values& got, bool far_from_zero) {
  if (far_from_zero) return layernorm::kLostToRounding;
  const Grouped& s = t.shape;
  const std::int64_t group_channels = s.channels / s.groups;
  auto own_group = [=](std::int64_t c) { return c / group_channels; };
  const double n = static_cast<double>(s.numbers());

  std::vector<tile::Mistake> mistakes;
  auto it_is = [&](std::string_view explanation, Expected result) {
    mistakes.push_back({explanation, std::move(result)});
  };
  it_is("mean and rstd are those of the whole image: that is LayerNorm, with one group",
        if_it_were(
            t, 1, [](auto) { return 0; }, own_channel));
  it_is("every channel has its own mean and rstd: a group has several channels",
        if_it_were(
            t, s.channels, [](auto c) { return c; }, own_channel));
  it_is("the channels of a group lie `groups` apart: those of a group are neighbours",
        if_it_were(
            t, s.groups, [&](auto c) { return c % s.groups; }, own_channel));
  it_is("every group begins again with the gamma and beta of channel 0",
        if_it_were(t, s.groups, own_group, [=](auto c, auto) { return c % group_channels; }));
  it_is("gamma and beta are those of the group's number, not of the channel",
        if_it_were(t, s.groups, own_group, [=](auto c, auto) { return c / group_channels; }));
  it_is("all channels of a group have the gamma and beta of its first one",
        if_it_were(t, s.groups, own_group,
                   [=](auto c, auto) { return c / group_channels * group_channels; }));
  it_is(
      "every position has its own gamma and beta, as in LayerNorm: here all positions of a channel "
      "share them",
      if_it_were(t, s.groups, own_group, [=](auto c, auto i) {
        return c / group_channels * group_channels + i % group_channels;
      }));
  it_is("gamma and beta are missing", of_statistics(t, [&](double d, auto, double v, auto, auto) {
          return d / std::sqrt(v + s.eps);
        }));
  it_is("the sums are divided by the number of positions: a group has more numbers",
        of_statistics(t, [&](double d, double mean, double v, double gamma, double beta) {
          const double wrong = mean * static_cast<double>(group_channels), off = mean - wrong;
          const double squares = (v + off * off) * static_cast<double>(group_channels);
          return gamma * (d + off) / std::sqrt(squares + s.eps) + beta;
        }));
  it_is("the squares are divided by the count less 1",
        of_statistics(t, [&](double d, auto, double v, double gamma, double beta) {
          return gamma * d / std::sqrt(v * n / (n - 1) + s.eps) + beta;
        }));
  it_is("eps is added to the root: it belongs under it",
        of_statistics(t, [&](double d, auto, double v, double gamma, double beta) {
          return gamma * d / (std::sqrt(v) + s.eps) + beta;
        }));
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;
  const auto image = static_cast<std::size_t>(s.channels * s.positions);
  const Expected expected = right(t);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (tile::matches(got[i], expected.value[i], expected.bound[i])) continue;
    if (i >= image) {
      return "\nHint: the first image is right and others are not: where does the next one begin, "
             "and which gamma has its first channel?";
    }
    break;
  }
  if (s.numbers() > kWarp) {
    return "\nHint: small groups were right. Is every sum complete in all threads before anybody "
           "uses it, and has each a shared array of its own?";
  }
  return {};
}

void check(const Task& t, bool far_from_zero = false) {
  INFO(t.text());
  const DeviceBuffer x = layernorm::input("x", t.x), gamma = layernorm::input("gamma", t.gamma),
                     beta = layernorm::input("beta", t.beta);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer y = layernorm::output("y", std::ssize(t.x), poison);
    auto launch = [&] {
      using layernorm::floats;
      return layernorm::group_norm(t.shape, floats(x), floats(gamma), floats(beta), floats(y));
    };
    tile::run_answer(launch, std::array{&x, &gamma, &beta, &y});
    const Values got = y.download();
    tile::require_right("y", got, right(t), [&] { return explain(t, got, far_from_zero); });
  }
}

}  // namespace

TEST_CASE("04.3 GroupNorm") {
  check(Task({1, 6, 8, 2}));           // one image
  check(Task({2, 6, 8, 2}));           // two
  check(Task({3, 6, 5, 3, 0.25f}));    // as many groups as images
  check(Task({2, 12, 16 * 16, 4}));    // more numbers than threads
  check(Task({3, 35, 7 * 11, 5, 0}));  // odd
  check(Task({2, 64, 33, 2}));
  check(Task({2, 7, 10, 7}));  // a channel for each group
  check(Task({4, 9, 13, 1}));  // and one group
  check(Task({5, 40, 1, 4}));  // a single position
  check(Task({1, 2, 1, 2}));   // and a single number
  for (const double center : {100.0, 1000.0, -1000.0}) check(Task({4, 32, 50, 8}, center), true);
}
