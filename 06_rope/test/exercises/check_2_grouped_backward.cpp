// Checks exercise 06.2. Not part of the task.
#include <algorithm>

#include "test/exercises/checks.hpp"

using namespace rope;

namespace {

struct Task {
  Turned turned;  // its heads are those of dy
  std::int64_t kv_heads;
  Values dy;

  Task(std::int64_t count, std::int64_t kv_heads_, std::int64_t group, std::int64_t head_dim,
       std::int64_t rotary_dim, double factor = 1)
      : turned{count, kv_heads_ * group, head_dim, rotary_dim, factor}, kv_heads(kv_heads_) {
    turned.place();
    dy = tile::normal(count * turned.heads * head_dim, DType::fp32, 1, 0.5);
  }
  std::string text() const {
    return turned.text() + ", kv_heads = " + std::to_string(kv_heads) +
           ", attention factor = " + std::to_string(turned.factor);
  }
  std::int64_t group() const { return turned.heads / kv_heads; }
  /// Whether this head of dy used the key of this head of k.
  static bool neighbours(const Task& t, std::int64_t head, std::int64_t kv_head) {
    return head / t.group() == kv_head;
  }

  struct Way {
    bool (*belongs)(const Task&, std::int64_t head, std::int64_t kv_head) = neighbours;
    double sign = -1;            // of the sine in x c - y s
    bool is_inverse = false;     // 1 / a in place of a
    bool is_plain = false;       // no turn at all
    bool is_mean = false;        // of the group
    bool rest_is_first = false;  // elements that do not turn come from the group's first head
  };
  /// Values and the sums of what the terms' roundings are relative to.
  struct Result {
    Values value, size;
  };
  Result result(const Way& way) const {
    Result r;
    const TestTables tables = turned.tables();
    const std::size_t pairs = turned.pairs();
    const auto dim = turned.head_dim;
    const double a2 = turned.factor * turned.factor;
    for (std::int64_t token = 0; token < turned.count; ++token) {
      for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        Values sum(static_cast<std::size_t>(dim)), size = sum, first = sum;
        for (std::int64_t head = turned.heads - 1; head >= 0; --head) {
          if (!way.belongs(*this, head, kv_head)) continue;
          for (std::size_t d = 0; d < sum.size(); ++d) {
            const double each =
                dy[static_cast<std::size_t>((token * turned.heads + head) * dim) + d];
            sum[d] += each, size[d] += std::abs(each), first[d] = each;
          }
        }
        if (way.is_mean) {
          for (double& each : sum) each /= static_cast<double>(group());
        }
        for (std::size_t d = 2 * pairs; way.rest_is_first && d < sum.size(); ++d) sum[d] = first[d];
        for (std::size_t i = 0; i < pairs && !way.is_plain; ++i) {
          const std::size_t entry =
              static_cast<std::size_t>(turned.position[static_cast<std::size_t>(token)]) * pairs +
              i;
          const double by = way.is_inverse ? 1 / a2 : 1;
          const double c = by * tables.cos[entry], s = by * way.sign * tables.sin[entry];
          const double x = sum[i], y = sum[i + pairs];
          sum[i] = x * c - y * s, sum[i + pairs] = y * c + x * s;
          const double of_x = size[i], of_y = size[i + pairs];
          size[i] = of_x * std::abs(c) + of_y * std::abs(s);
          size[i + pairs] = of_y * std::abs(c) + of_x * std::abs(s);
        }
        r.value.insert(r.value.end(), sum.begin(), sum.end());
        r.size.insert(r.size.end(), size.begin(), size.end());
      }
    }
    return r;
  }
  /// Each term dy c or dy s is rounded as a product, with the pair's sum, and with at most as many
  /// additions as the group has heads, whether the turn or the sum comes first. The tables are as
  /// the kernel has them.
  Expected right() const {
    Result r = result({});
    Expected expected{{turned.count, kv_heads, turned.head_dim}, std::move(r.value), {}};
    const double n = static_cast<double>(group()) + 2;
    for (const double size : r.size) expected.bound.push_back(std::expm1(n * kUnit) * size);
    return expected;
  }
  Expected if_it_were(const Way& way) const {
    Expected expected = right();
    expected.value = result(way).value;
    for (std::size_t i = 0; i < expected.bound.size(); ++i) {
      expected.bound[i] = 4 * expected.bound[i] + 16 * kUnit * std::abs(expected.value[i]);
    }
    return expected;
  }
};

std::string explain(const Task& t, const Values& got) {
  using Way = Task::Way;
  std::vector<tile::Mistake> mistakes;
  const auto it_is = [&](std::string_view explanation, const Way& way) {
    mistakes.push_back({explanation, t.if_it_were(way)});
  };
  it_is("dy is turned on and not back: the transpose has the sines' other sign", {.sign = 1});
  it_is("dy is added up and not turned", {.is_plain = true});
  if (t.turned.factor != 1) {
    it_is("this is the inverse, which divides by the attention factor: the transpose multiplies",
          {.is_inverse = true});
  }
  if (t.group() > 1) {
    it_is("this is the group's first head alone: each head that used the key adds its part",
          {.belongs = [](const Task& task, std::int64_t head, std::int64_t kv_head) {
            return head == kv_head * task.group();
          }});
    it_is("this is the group's mean: every head counts in full", {.is_mean = true});
    it_is("the elements that do not turn come from one head: they are shared as the others are",
          {.rest_is_first = true});
    if (t.kv_heads > 1) {
      it_is("the group's heads are taken kv_heads apart: they follow one another",
            {.belongs = [](const Task& task, std::int64_t head, std::int64_t kv_head) {
              return head % task.kv_heads == kv_head;
            }});
      it_is("head h of k got head h of dy",
            {.belongs = [](const Task&, std::int64_t head, std::int64_t kv_head) {
              return head == kv_head;
            }});
    }
  }
  return tile::explain_mistake(got, mistakes);
}

void check(const Task& t) {
  INFO(t.text());
  const Turned::OnDevice device = t.turned.on_device();
  const DeviceBuffer dy = input("dy", t.dy);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer dk = output("dk", std::ssize(t.dy) / t.group(), poison);
    tile::run_answer(
        [&] {
          return grouped_backward(t.turned.tokens(device), t.kv_heads, floats(dy), floats(dk));
        },
        std::array{&dy, &dk, &device.cos, &device.sin, &device.position});
    const Values got = dk.download();
    tile::require_right("dk", got, t.right(), [&] { return explain(t, got); });
  }
}

}  // namespace

TEST_CASE("06.2 the gradient of keys that several heads share") {
  check(Task(3, 1, 1, 8, 8));        // a head of k for each of q
  check(Task(3, 1, 1, 8, 8, 1.25));  // tables with an attention factor
  check(Task(3, 1, 4, 8, 8));        // one group
  check(Task(4, 3, 2, 8, 8));        // three
  check(Task(4, 2, 3, 13, 6));       // a part of each row turns
  check(Task(37, 2, 4, 64, 64, 0.75));
  check(Task(70, 3, 5, 34, 18, 1.5));
  check(Task(5, 2, 8, 7, 0));  // nothing turns
}
