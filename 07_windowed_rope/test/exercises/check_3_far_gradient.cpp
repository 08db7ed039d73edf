// Checks exercise 07.3. Not part of the task.
// Shipped: dk1 gets every dS and dk2 none
#include "test/exercises/checks.hpp"

using namespace windowed_rope;

namespace {

struct Task {
  int queries, keys, dim, window;
  Values weights, dweights, delta, q1, q2;

  Task(int some_queries, int some_keys, int some_dim, int some_window)
      : queries(some_queries),
        keys(some_keys),
        dim(some_dim),
        window(some_window),
        weights(tile::uniform(queries * keys, DType::fp32, 1, 0.125, 1)),
        dweights(tile::normal(queries * keys, DType::fp32, 2)),
        delta(tile::normal(queries, DType::fp32, 3, 1)),
        q1(tile::normal(queries * dim, DType::fp32, 4)),
        q2(tile::normal(queries * dim, DType::fp32, 5)) {}
  /// What a causal mask hides has no weight.
  void hide() {
    for (int query = 0; query < queries; ++query) {
      for (int key = position(query) + 1; key < keys; ++key) {
        if (key >= 0) weights[pair(query, key)] = 0;
      }
    }
  }

  int position(int query) const { return query + keys - queries; }
  std::size_t pair(int query, int key) const {
    return static_cast<std::size_t>(query * keys + key);
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  std::string text() const {
    return "queries = " + std::to_string(queries) + ", keys = " + std::to_string(keys) +
           ", dim = " + std::to_string(dim) + ", window = " + std::to_string(window);
  }
};

using Choice = std::function<bool(const Task&, int query, int key)>;
bool is_near(const Task& t, int query, int key) {
  return std::abs(t.position(query) - key) < t.window;
}
bool is_far(const Task& t, int query, int key) { return !is_near(t, query, key); }
bool always(const Task&, int, int) { return true; }
bool never(const Task&, int, int) { return false; }

struct Way {
  Choice to_near = is_near, to_far = is_far;  // which dS goes where
  enum class Rows { own, exchanged, both_q1, both_q2 } rows = Rows::own;
};

/// dk1 followed by dk2, [2][keys][dim]. A term is a product of two factors and a row's element,
/// times the scale: in all at most four roundings, one more for the difference, or for both terms
/// of it, and as many additions as there are queries.
Expected gradients(const Task& t, const Way& way) {
  Expected expected{{2, t.keys, t.dim}, {}, {}};
  const double error = std::expm1((t.queries + 6) * kUnit);
  for (const bool far : {false, true}) {
    const bool of_q2 = way.rows == Way::Rows::own         ? far
                       : way.rows == Way::Rows::exchanged ? !far
                                                          : way.rows == Way::Rows::both_q2;
    const Values& q = of_q2 ? t.q2 : t.q1;
    for (int key = 0; key < t.keys; ++key) {
      for (int d = 0; d < t.dim; ++d) {
        double sum = 0, size = 0;
        for (int query = 0; query < t.queries; ++query) {
          if (!(far ? way.to_far : way.to_near)(t, query, key)) continue;
          const double element = q[static_cast<std::size_t>(query * t.dim + d)];
          const double weight = t.weights[t.pair(query, key)];
          const double dweight = t.dweights[t.pair(query, key)];
          const double delta = t.delta[static_cast<std::size_t>(query)];
          sum += weight * (dweight - delta) * element;
          size += weight * (std::abs(dweight) + std::abs(delta)) * std::abs(element);
        }
        expected.value.push_back(t.scale() * sum);
        expected.bound.push_back(error * t.scale() * size + 0x1p-149);
      }
    }
  }
  return expected;
}

std::string explain(const Task& t, const Values& got) {
  using Rows = Way::Rows;
  std::vector<tile::Mistake> mistakes;
  const auto it_is = [&](const char* explanation, const Way& way) {
    const Expected right = gradients(t, {});
    mistakes.push_back({explanation, if_it_were(right, gradients(t, way).value)});
  };
  it_is("dk1 gets every dS and dk2 none, as if there were one pair of q and k",
        {.to_near = always, .to_far = never});
  it_is("dk2 gets every dS and dk1 none", {.to_near = never, .to_far = always});
  it_is("dk1 is right, and the gradients of far scores are dropped: they belong to dk2",
        {.to_far = never});
  it_is("dk2 is right, and the gradients of near scores are dropped: they belong to dk1",
        {.to_near = never});
  it_is("both sums get every dS. Each score came from one pair, and its dS goes to that one alone",
        {.to_near = always, .to_far = always});
  it_is("dk1 is right, and dk2 gets every dS, also that of near keys", {.to_far = always});
  it_is("dk2 is right, and dk1 gets every dS, also that of far keys", {.to_near = always});
  it_is("near and far are exchanged", {.to_near = is_far, .to_far = is_near});
  it_is("dS goes to the right sum, but times the other pair's q: dk1 needs q1, and dk2 q2",
        {.rows = Rows::exchanged});
  it_is("dS goes to the right sum, but dk2 is made of q1: a far score was q2 k2",
        {.rows = Rows::both_q1});
  it_is("dS goes to the right sum, but dk1 is made of q2: a near score was q1 k1",
        {.rows = Rows::both_q2});
  const auto near_is = [&](const char* explanation, const Choice& near) {
    it_is(explanation, {.to_near = near, .to_far = [near](const Task& u, int query, int key) {
                          return !near(u, query, key);
                        }});
  };
  near_is("a key exactly as far away as the window is wide is taken for near. It is far",
          [](const Task& u, int query, int key) {
            return std::abs(u.position(query) - key) <= u.window;
          });
  near_is("all keys after the query are taken for near: is the distance there negative?",
          [](const Task& u, int query, int key) { return u.position(query) - key < u.window; });
  near_is("all keys after the query are taken for far: those that are not far away are near",
          [](const Task& u, int query, int key) {
            return key <= u.position(query) && u.position(query) - key < u.window;
          });
  near_is("query i is taken to stand beside key i. It stands beside key i + keys - queries",
          [](const Task& u, int query, int key) { return std::abs(query - key) < u.window; });
  return tile::explain_mistake(got, mistakes);
}

void check(const Task& t) {
  INFO(t.text());
  const DeviceBuffer weights = input("weights", t.weights),
                     dweights = input("dweights", t.dweights), delta = input("delta", t.delta),
                     q1 = input("q1", t.q1), q2 = input("q2", t.q2);
  const Expected right = gradients(t, {});
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer dk1 = output("dk1", t.keys * t.dim, poison),
                       dk2 = output("dk2", t.keys * t.dim, poison);
    const FarGradient gradient{
        t.queries,        t.keys,        t.dim,      t.window,   t.scale(),   floats(weights),
        floats(dweights), floats(delta), floats(q1), floats(q2), floats(dk1), floats(dk2)};
    tile::run_answer([&] { return far_gradient(gradient); },
                     std::array{&weights, &dweights, &delta, &q1, &q2, &dk1, &dk2});
    Values both = dk1.download();
    const Values got[] = {both, dk2.download()};
    both.insert(both.end(), got[1].begin(), got[1].end());
    const auto half = static_cast<std::ptrdiff_t>(got[0].size());
    for (const int far : {0, 1}) {
      const auto part = [&](const Values& all) {
        return Values(all.begin() + far * half, all.begin() + (far + 1) * half);
      };
      tile::require_right(far ? "dk2" : "dk1", got[far],
                          {{t.keys, t.dim}, part(right.value), part(right.bound)},
                          [&] { return explain(t, both); });
    }
  }
}

}  // namespace

TEST_CASE("07.3 where a gradient belongs") {
  check(Task(9, 9, 4, 3));
  check(Task(5, 12, 4, 3));   // the queries stand beside the last keys
  check(Task(12, 5, 4, 2));   // the first ones stand before all keys
  check(Task(9, 9, 4, 0));    // every key is far
  check(Task(9, 9, 4, 100));  // every key is near
  for (const int window : {1, 7, 40}) {
    Task t(50, 70, 13, window);
    check(t);
    t.hide();
    check(t);
  }
  check(Task(1, 300, 3, 100));
}
