// Checks exercise 07.2. Not part of the task.
// Shipped: the distance goes on to grow by 1 with each key
#include <cstdint>

#include "rotary/frequencies.hpp"
#include "test/exercises/checks.hpp"

using namespace windowed_rope;

namespace {

/// A distance that the rotation sees between a query and a key at these positions.
using Distance = std::function<double(const LeakyRows&, int i, int j)>;

double near_distance(const LeakyRows&, int i, int j) { return i - j; }
double leaky_distance(const LeakyRows& r, int i, int j) {
  return r.window + (i - j - r.window) / static_cast<double>(r.factor);
}

struct Task {
  LeakyRows rows;  // its numbers
  Values q, k, frequencies;

  Task(int first, int count, int dim, int window, int factor)
      : rows{first, count, dim, window, factor, {}, {}, {}, {}, {}, {}},
        q(tile::normal(count * dim, DType::fp32, 1)),
        k(tile::normal(count * dim, DType::fp32, 2)),
        frequencies(rope::frequencies({.rotary_dim = dim})) {}

  std::string text() const {
    return "positions from " + std::to_string(rows.first) + ", " + std::to_string(rows.count) +
           " of them, dim = " + std::to_string(rows.dim) +
           ", window = " + std::to_string(rows.window) +
           ", factor = " + std::to_string(rows.factor);
  }
  int pairs() const { return rows.dim / 2; }
  std::size_t at(int row, int pair) const {
    return static_cast<std::size_t>(row * rows.dim + pair);
  }
};

// Scores of queries with the keys that are far from them, or only with those that stand just as far
// before them as the window is wide. [count][count], and all others are 0.
enum class Which { border, all };
bool is_one(const Task& t, Which which, int query, int key) {
  return which == Which::all ? query - key >= t.rows.window : query - key == t.rows.window;
}

/// What they are if the rotation sees this distance. The places may be chosen in any way,
/// and each may be off by `place_error`.
///
/// A turned element, x c - y s, has a rounded cosine and sine, two products and a sum: it is off by
/// 3 kUnit of |x c| + |y s|, which is at most the length of its pair. An angle in double is off by
/// at most 2^-46 of itself, as in exercise 06.3, and an answer's places may be four times those of
/// the formula. So both elements of a pair together are off by sqrt(2) times that. A score is a sum
/// of products of such pairs, either of which may be off; it is added up in double.
Expected scores(const Task& t, Which which, const Distance& distance, double place_error = 0) {
  Expected expected{{t.rows.count, t.rows.count}, {}, {}};
  const double places = 4. * (t.rows.first + t.rows.count + t.rows.window * t.rows.factor);
  for (int query = 0; query < t.rows.count; ++query) {
    for (int key = 0; key < t.rows.count; ++key) {
      double sum = 0, bound = 0;
      for (int pair = 0; is_one(t, which, query, key) && pair < t.pairs(); ++pair) {
        const double f = t.frequencies[static_cast<std::size_t>(pair)];
        const double d = distance(t.rows, t.rows.first + query, t.rows.first + key);
        const double qx = t.q[t.at(query, pair)], qy = t.q[t.at(query, pair + t.pairs())];
        const double kx = t.k[t.at(key, pair)], ky = t.k[t.at(key, pair + t.pairs())];
        sum += (qx * kx + qy * ky) * std::cos(d * f) + (qx * ky - qy * kx) * std::sin(d * f);
        const double error = 3 * kUnit + (0x1p-46 * places + place_error) * f;
        bound += 3 * error * std::hypot(qx, qy) * std::hypot(kx, ky);
      }
      expected.value.push_back(sum);
      expected.bound.push_back(bound);
    }
  }
  return expected;
}

/// Those of turned rows.
Values scores_of(const Task& t, Which which, const Values& q2, const Values& k2) {
  Values found;
  for (int query = 0; query < t.rows.count; ++query) {
    for (int key = 0; key < t.rows.count; ++key) {
      double sum = 0;
      for (int d = 0; is_one(t, which, query, key) && d < t.rows.dim; ++d) {
        sum += q2[t.at(query, d)] * k2[t.at(key, d)];
      }
      found.push_back(sum);
    }
  }
  return found;
}

double window_times_rest(const LeakyRows& r) { return r.window * (r.factor - 1.); }

std::string explain(const Task& t, const Values& got) {
  std::vector<tile::Mistake> mistakes;
  const auto distance_is = [&](const char* explanation, const Distance& distance) {
    mistakes.push_back({explanation, scores(t, Which::all, distance)});
  };
  distance_is(
      "the distance goes on to grow by 1 with each key, as if it were near: from W on it should "
      "grow by 1 / factor",
      near_distance);
  distance_is(
      "the distance is (i - j) / factor, which is W / factor at the border. Some of W is missing: "
      "has it been added to the query's place, and to that alone?",
      [](const LeakyRows& r, int i, int j) { return (i - j) / static_cast<double>(r.factor); });
  distance_is(
      "the key's place is its position, and the query's is scaled: the distance depends on where "
      "in the text the two stand. Keys are scaled as well",
      [](const LeakyRows& r, int i, int j) { return (i + window_times_rest(r)) / r.factor - j; });
  distance_is(
      "the query's place is its position, and the key's is scaled: the distance depends on where "
      "in the text the two stand. Queries are scaled as well",
      [](const LeakyRows& r, int i, int j) { return i - j / static_cast<double>(r.factor); });
  distance_is(
      "the distance is W + (i - j) / factor, which is too much at the border. (i - j - W) / factor "
      "is 0 there: what becomes of that W?",
      [](const LeakyRows& r, int i, int j) {
        return r.window + (i - j) / static_cast<double>(r.factor);
      });
  distance_is(
      "the query's place is i / factor + W (factor - 1): is all of the sum divided by the factor?",
      [](const LeakyRows& r, int i, int j) {
        return (i - j) / static_cast<double>(r.factor) + window_times_rest(r);
      });
  distance_is(
      "W (factor - 1) / factor is taken off the distance, and should be added: it belongs to the "
      "query's place",
      [](const LeakyRows& r, int i, int j) { return (i - j - window_times_rest(r)) / r.factor; });
  distance_is("the distance is W for all far keys: that is ReRoPE, and nothing leaks",
              [](const LeakyRows& r, int, int) { return r.window; });
  distance_is("the distance grows by `factor` with each key: divide where you have multiplied",
              [](const LeakyRows& r, int i, int j) {
                return r.window + (i - j - r.window) * static_cast<double>(r.factor);
              });
  distance_is(
      "both places are quotients of integers, so `factor` keys share one. That is for groups, as "
      "in Self-Extend. Here places lie between, and one of the numbers must be a double",
      [](const LeakyRows& r, int i, int j) {
        return (i + r.window * (r.factor - 1)) / r.factor - j / r.factor;
      });
  distance_is(
      "the key's place is a quotient of integers, so `factor` keys share one: one of the numbers "
      "must be a double",
      [](const LeakyRows& r, int i, int j) {
        return (i + window_times_rest(r)) / r.factor - j / r.factor;
      });
  distance_is(
      "the query's place is a quotient of integers, so `factor` queries share one: one of the "
      "numbers must be a double",
      [](const LeakyRows& r, int i, int j) {
        return (i + r.window * (r.factor - 1)) / r.factor - j / static_cast<double>(r.factor);
      });
  if (std::string found = tile::explain_mistake(got, mistakes); !found.empty()) return found;

  // Two operations in fp32: the sum, which is `factor` times the place, and the quotient.
  const double place = (t.rows.first + t.rows.count + window_times_rest(t.rows)) / t.rows.factor;
  const tile::Mistake of_fp32[] = {
      {"all are near, but not near enough: was a place rounded to fp32?",
       scores(t, Which::all, leaky_distance, 2 * kUnit * place)}};
  return tile::explain_mistake(got, of_fp32);
}

void check(const Task& t) {
  INFO(t.text());
  const std::int64_t elements = std::ssize(t.q);
  const DeviceBuffer q = input("q", t.q), k = input("k", t.k);
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer cos = output("cos", elements, poison), sin = output("sin", elements, poison),
                       q2 = output("q2", elements, poison), k2 = output("k2", elements, poison);
    LeakyRows rows = t.rows;
    rows.q = floats(q), rows.k = floats(k), rows.cos = floats(cos), rows.sin = floats(sin);
    rows.q2 = floats(q2), rows.k2 = floats(k2);
    tile::run_answer([&] { return leaky_tables(rows); }, std::array{&q, &k, &cos, &sin, &q2, &k2});
    const Values got_q2 = q2.download(), got_k2 = k2.download();
    const auto scores_are = [&](const char* name, Which which, const Distance& distance) {
      const Values got = scores_of(t, which, got_q2, got_k2);
      tile::require_right(name, got, scores(t, which, distance), [&] {
        const std::string found = explain(t, scores_of(t, Which::all, got_q2, got_k2));
        if (which == Which::all) return found;
        return "\nThese are the scores of keys that stand W before their query. Near and far "
               "scores should agree there." +
               found;
      });
    };
    scores_are("border", Which::border, near_distance);
    scores_are("far", Which::all, leaky_distance);
  }
}

}  // namespace

TEST_CASE("07.2 a window that leaks") {
  check(Task(0, 24, 8, 6, 4));
  check(Task(0, 24, 8, 7, 4));
  check(Task(0, 40, 16, 8, 3));
  check(Task(0, 20, 8, 0, 4));  // nothing is near
  check(Task(0, 20, 8, 5, 1));  // everything leaks
  check(Task(0, 80, 64, 33, 16));
  check(Task(5, 70, 6, 1, 7));
  check(Task(3000, 40, 32, 20, 8));  // further on in a text
  check(Task(131000, 40, 64, 12, 5));
}
