// Checks exercise 07.1. Not part of the task.
// Shipped: the rule knows no sinks
#include "test/exercises/checks.hpp"
#include "windowed/reference.hpp"

using namespace windowed_rope;

namespace {

constexpr int kQueries = 8, kKeys = 32;  // of a block, of a tile

struct Task {
  Mask mask;
  int window, sinks, dim;
  Values q1, k1, q2, k2, v;

  Task(int queries, int keys, int some_window, int some_sinks, int some_dim = 4)
      : mask{queries, keys, tile::kMaxLength, 0},
        window(some_window),
        sinks(some_sinks),
        dim(some_dim),
        q1(rows(queries, 1)),
        k1(rows(keys, 2)),
        q2(rows(queries, 3)),
        k2(rows(keys, 4)),
        v(tile::normal(keys * dim, DType::fp32, 5, 1)) {}
  Values rows(int count, std::uint64_t seed) const {
    return tile::normal(count * dim, DType::fp32, seed);
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
  int blocks() const { return (mask.queries + kQueries - 1) / kQueries; }
  int tiles() const { return (mask.keys + kKeys - 1) / kKeys; }
  std::string text() const {
    return "queries = " + std::to_string(mask.queries) + ", keys = " + std::to_string(mask.keys) +
           ", window = " + std::to_string(window) + ", sinks = " + std::to_string(sinks);
  }
  double at(const Values& of_rows, int row, int d) const {
    return of_rows[static_cast<std::size_t>(row * dim + d)];
  }
  int distance(int query, int key) const { return mask.position(query) - key; }
  bool is_near(int query, int key) const { return key < sinks || distance(query, key) < window; }

  /// The chapter's, which has no sinks. Its rows are both pairs' here, [q1 q2], near keys [k1 0]
  /// and far ones [0 k2]; but those of a sink are the same near and far. This kernel rounds no more
  /// than the steps do, and sums up half as many products.
  Expected right() const {
    AttentionForward p{{.type = DType::fp32,
                        .batch = 1,
                        .heads = 1,
                        .queries = mask.queries,
                        .keys = mask.keys,
                        .head_dim = 2 * dim}};
    p.right = 0, p.window = window, p.scale = scale();
    const auto pair = [this](const Values* first, const Values* second, int row, Values* to) {
      for (const Values* each : {first, second}) {
        for (int d = 0; d < dim; ++d) to->push_back(each ? at(*each, row, d) : 0);
      }
    };
    Values q, near_k, far_k, values;
    for (int query = 0; query < mask.queries; ++query) pair(&q1, &q2, query, &q);
    for (int key = 0; key < mask.keys; ++key) {
      pair(&k1, nullptr, key, &near_k);
      pair(key < sinks ? &k1 : nullptr, key < sinks ? nullptr : &k2, key, &far_k);
      pair(&v, nullptr, key, &values);
    }
    const Expected both = reference(p, {q, near_k, values, {}, {}, {}, {}, {q, far_k}}).o;
    Expected o{{mask.queries, dim}, {}, {}};
    for (std::size_t i = 0; i < both.value.size(); ++i) {
      if (i / static_cast<std::size_t>(dim) % 2 == 1) continue;
      o.value.push_back(both.value[i]);
      o.bound.push_back(both.bound[i]);
    }
    return o;
  }
};

// What a block has loaded of a tile.
constexpr int kNear = 1, kFar = 2;
using Loaded = std::vector<int>;  // [blocks][tiles]

bool has(const Task& t, const Loaded& loaded, int block, int tile, int kind) {
  return (loaded[static_cast<std::size_t>(block * t.tiles() + tile)] & kind) != 0;
}

/// Asks every query of the block about every key of the tile.
Loaded needed(const Task& t) {
  Loaded all(static_cast<std::size_t>(t.blocks() * t.tiles()));
  for (int query = 0; query < t.mask.queries; ++query) {
    for (int key = 0; key < t.mask.end_key(query); ++key) {
      all[static_cast<std::size_t>(query / kQueries * t.tiles() + key / kKeys)] |=
          t.is_near(query, key) ? kNear : kFar;
    }
  }
  return all;
}

using Rule = std::function<bool(const Task&, int query, int key)>;
bool right_rule(const Task& t, int query, int key) { return t.is_near(query, key); }

/// o if this is the rule and that was loaded. A key of a kind that was not loaded is left out.
Expected if_it_were(const Task& t, const Expected& right, const Rule& rule, const Loaded& loaded) {
  Values o;
  for (int query = 0; query < t.mask.queries; ++query) {
    double sum = 0;
    Values row(static_cast<std::size_t>(t.dim), 0.0);
    for (int key = 0; key < t.mask.end_key(query); ++key) {
      const bool near = rule(t, query, key);
      if (!has(t, loaded, query / kQueries, key / kKeys, near ? kNear : kFar)) continue;
      double score = 0;
      for (int d = 0; d < t.dim; ++d) {
        score += t.at(near ? t.q1 : t.q2, query, d) * t.at(near ? t.k1 : t.k2, key, d);
      }
      const double weight = std::exp(t.scale() * score);
      sum += weight;
      for (int d = 0; d < t.dim; ++d)
        row[static_cast<std::size_t>(d)] += weight * t.at(t.v, key, d);
    }
    for (const double each : row) o.push_back(sum == 0 ? 0 : each / sum);
  }
  return windowed_rope::if_it_were(right, o);
}

struct Guess {
  const char* explanation;
  Rule rule;
};
const Guess kGuesses[] = {
    {"the rule knows no sinks: their scores far away are those of q2 and k2",
     [](const Task& t, int query, int key) { return t.distance(query, key) < t.window; }},
    {"a key is near only if it is a sink and within the window. One of the two is enough",
     [](const Task& t, int query, int key) {
       return key < t.sinks && t.distance(query, key) < t.window;
     }},
    {"only sinks are near: what lies within the window is near as well",
     [](const Task& t, int, int key) { return key < t.sinks; }},
    {"there is one sink too many. Keys are counted from 0",
     [](const Task& t, int query, int key) {
       return key <= t.sinks || t.distance(query, key) < t.window;
     }},
    {"the first queries are taken for sinks: to them all keys are near. The first keys are meant",
     [](const Task& t, int query, int key) {
       return query < t.sinks || t.distance(query, key) < t.window;
     }},
    {"a key exactly as far away as the window is wide is near. It should be far",
     [](const Task& t, int query, int key) {
       return key < t.sinks || t.distance(query, key) <= t.window;
     }},
    {"query i is taken to stand beside key i. It stands beside key i + keys - queries",
     [](const Task& t, int query, int key) { return key < t.sinks || query - key < t.window; }},
    {"the sinks are taken for a wider window: a key is near up to window + sinks before the query",
     [](const Task& t, int query, int key) { return t.distance(query, key) < t.window + t.sinks; }},
};

/// Of what a block has loaded of a tile: what is too little if `missing`, else what is too much.
std::string explain_kinds(const Task& t, const Loaded& loaded, bool missing) {
  if (loaded.empty()) return {};
  const Loaded least = needed(t);
  for (int block = 0; block < t.blocks(); ++block) {
    for (int tile = 0; tile < t.tiles(); ++tile) {
      for (const int kind : {kNear, kFar}) {
        const bool is_needed = has(t, least, block, tile, kind);
        const bool is_loaded = has(t, loaded, block, tile, kind);
        if (missing ? is_loaded || !is_needed : !is_loaded || is_needed) continue;

        std::string here, there;
        for (int i = 0; i < std::min(t.tiles(), 12); ++i) {
          const auto words = [&](const Loaded& of) {
            const char* const kWords[] = {"    -", "   K1", "   K2", " both"};
            return kWords[of[static_cast<std::size_t>(block * t.tiles() + i)]];
          };
          here += words(loaded), there += words(least);
        }
        const std::string block_name = "block " + std::to_string(block);
        const std::string tile_name = "tile " + std::to_string(tile);
        std::string text = "\n  " + block_name + ", from tile 0 on\n  loaded " + here +
                           "\n  needed " + there + "\nHint: " + block_name;
        // The block's last query that exists: its first query sees no key that this one does not.
        const int last = std::min((block + 1) * kQueries, t.mask.queries) - 1;
        const int first_key = tile * kKeys, end = std::min(first_key + kKeys, t.mask.keys);
        const bool has_sinks = first_key < t.sinks;
        if (missing && kind == kNear) {
          text += " has not loaded K1 of " + tile_name + ". ";
          return text + (has_sinks ? "That tile has sinks, which are near from any distance"
                                   : "A key of that tile is near to one of its queries");
        }
        if (missing) {
          text += " has not loaded K2 of " + tile_name + ". ";
          return text + (has_sinks
                             ? "That tile has sinks, but after them there are keys that are far"
                             : "A key of that tile is far from one of its queries");
        }
        text += " has loaded ";
        if (first_key >= t.mask.end_key(last)) {
          text += tile_name + ", of which none of its queries sees a key";
          return text + (has_sinks ? ". A sink is near only to those that see it" : "");
        }
        text += (kind == kNear ? "K1 of " : "K2 of ") + tile_name + " in vain: ";
        if (kind == kNear) return text + "no key of that tile is near to any of its queries";
        if (end <= t.sinks) return text + "that tile has nothing but sinks, which are never far";
        if (t.distance(last, first_key) >= t.window && has_sinks) {
          return text + "by distance some of its sinks would be far, and no other key of it is";
        }
        return text + "no key of that tile is far from any of its queries";
      }
    }
  }
  return {};
}

/// As numbers from 0 to 3; empty if they are none.
Loaded as_loaded(const Values& values) {
  Loaded loaded;
  for (const double each : values) {
    if (each != 0 && each != 1 && each != 2 && each != 3) return {};
    loaded.push_back(static_cast<int>(each));
  }
  return loaded;
}

std::string explain(const Task& t, const Expected& right, const Values& o, const Loaded& loaded) {
  if (loaded.empty()) return {};
  const auto is = [&](const Rule& rule) {
    return tile::compare("o", o, if_it_were(t, right, rule, loaded)).ok();
  };
  if (is(right_rule)) return explain_kinds(t, loaded, true);
  for (const Guess& guess : kGuesses) {
    if (is(guess.rule)) return std::string("\nHint: ") + guess.explanation;
  }
  return {};
}

void check(const Task& t) {
  INFO(t.text());
  const DeviceBuffer q1 = input("q1", t.q1), k1 = input("k1", t.k1), q2 = input("q2", t.q2),
                     k2 = input("k2", t.k2), v = input("v", t.v);
  const Expected right = t.right();
  for (const tile::Poison poison : tile::kOutputPoisons) {
    const DeviceBuffer o = output("o", std::ssize(t.q1), poison),
                       loaded = output("loaded", t.blocks() * t.tiles(), poison);
    const SinkHead head{t.mask,     t.window,   t.sinks,    t.dim,     t.scale(), floats(q1),
                        floats(k1), floats(q2), floats(k2), floats(v), floats(o), floats(loaded)};
    tile::run_answer([&] { return sink_keys(head); },
                     std::array{&q1, &k1, &q2, &k2, &v, &o, &loaded});
    const Values got = o.download();
    const Loaded tiles = as_loaded(loaded.download());
    tile::require_right("o", got, right, [&] { return explain(t, right, got, tiles); });
    const bool none_in_vain = tiles == needed(t);
    REQUIRE_MESSAGE(none_in_vain, "the output is right, but tiles are loaded in vain",
                    explain_kinds(t, tiles, false));
  }
}

}  // namespace

TEST_CASE("07.1 the first keys stay near") {
  check(Task(96, 96, 5, 8, 8));    // eight sinks, and other keys in their tile
  check(Task(64, 64, 20, 4, 8));   // what is far for one block is sinks alone
  check(Task(64, 96, 16, 32, 8));  // a tile of sinks
  check(Task(96, 96, 16, 40, 8));  // a tile and a part of the next one
  check(Task(29, 70, 10, 5, 32));
  check(Task(64, 64, 16, 0));  // no sinks, which is the chapter's window
  // Sizes that are no multiples, fewer queries than keys, and more of them: some see nothing.
  for (const int window : {0, 1, 9, 32, 33, 200}) {
    for (const int sinks : {0, 1, 31, 32, 33, 70}) {
      check(Task(61, 61, window, sinks));
      check(Task(13, 100, window, sinks));
      check(Task(60, 45, window, sinks));
    }
  }
  check(Task(1, 1, 0, 1));
  check(Task(1, 1, 0, 0));
}
