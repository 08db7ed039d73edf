// The encodings' names and tables, and the curves of scores by distance.
#include "hidden/tables.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "embedding/reference.hpp"
#include "method/tables.hpp"
#include "rotary/frequencies.hpp"

namespace windowed_rope {

std::string_view name(Encoding encoding) {
  switch (encoding) {
    case Encoding::learned: return "learned";
    case Encoding::sinusoidal: return "sinusoidal";
    case Encoding::rotary: return "rotary";
    case Encoding::exposb: return "exposb";
    case Encoding::exposb_plain: return "exposb_plain";
    case Encoding::windowed: return "windowed";
  }
  return "?";
}

// snippet-begin gain
double gain_of(std::int64_t position, std::int64_t element, std::int64_t head_dim) {
  const auto from_quarter = static_cast<double>(element - head_dim / 4);
  const auto width = static_cast<double>(std::max<std::int64_t>(head_dim / 8, 1));
  const double b = 0.8 + 0.4 * std::exp(-from_quarter * from_quarter / (2 * width * width));
  return (1 + 0.2 * std::exp(-0.001 * static_cast<double>(position))) * b;
}
// snippet-end gain

HiddenTables hidden_tables(const Hidden& p) {
  HiddenTables tables;
  if (p.encoding == Encoding::sinusoidal) {
    tables.sinusoids = rope::sinusoids(p.length, p.model_dim);
  }
  if (adds_table(p.encoding)) return tables;
  const std::vector<double> frequencies = rope::frequencies({.rotary_dim = p.head_dim});
  if (p.encoding == Encoding::windowed) {
    rope::Tables of_method =
        method::make_tables({.far = tile::FarRotation::rerope}, p.window, frequencies, p.length);
    tables.cos = std::move(of_method.cos), tables.sin = std::move(of_method.sin);
  } else {
    rope::Tables of_rope = rope::make_tables(frequencies, p.length);
    tables.cos = std::move(of_rope.cos), tables.sin = std::move(of_rope.sin);
  }
  for (std::int64_t i = 0; has_gain(p.encoding) && i < p.length * p.head_dim; ++i) {
    tables.gain.push_back(static_cast<float>(gain_of(i / p.head_dim, i % p.head_dim, p.head_dim)));
  }
  return tables;
}

std::vector<double> score_by_distance(const Hidden& p) {
  const HiddenTables tables = hidden_tables(p);
  const auto dim = static_cast<std::size_t>(adds_table(p.encoding) ? p.model_dim : p.head_dim);
  const auto query = static_cast<std::size_t>(p.length - 1);
  std::vector<double> rows = tables.sinusoids;
  if (p.encoding == Encoding::learned) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < query * dim + dim; ++i) {
      // uniform in [-1, 1], so that a row's length is 1 on average
      const double x = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      rows.push_back(x * std::sqrt(3 / static_cast<double>(dim)));
    }
  }
  // Over all directions u, the mean of (A u) (B u) is the trace of A^T B divided by their number,
  // and that of (u + t) (u + s) is 1 + t s.
  const auto score = [&](std::size_t key) {
    const auto distance = static_cast<std::int64_t>(query - key);
    double sum = 0;
    if (adds_table(p.encoding)) {
      for (std::size_t d = 0; d < dim; ++d) sum += rows[query * dim + d] * rows[key * dim + d];
      return 1 + sum;
    }
    const std::size_t pairs = dim / 2, positions = query + 1;
    const bool far = p.encoding == Encoding::windowed && distance >= p.window;
    const std::size_t of_query = (query + (far ? positions : 0)) * pairs;
    const std::size_t of_key = (key + (far ? 2 * positions : 0)) * pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
      const double turn = static_cast<double>(tables.cos[of_query + i]) * tables.cos[of_key + i] +
                          static_cast<double>(tables.sin[of_query + i]) * tables.sin[of_key + i];
      double gains = 2;
      if (has_gain(p.encoding)) {  // interleaved: pair i is 2 i and 2 i + 1
        const float* q = &tables.gain[query * dim + 2 * i];
        const float* k = &tables.gain[key * dim + 2 * i];
        gains = static_cast<double>(q[0]) * k[0] + static_cast<double>(q[1]) * k[1];
      }
      sum += gains * turn;
    }
    if (p.encoding != Encoding::exposb) return sum;
    const double decay = std::exp(-kExposbRate * static_cast<double>(distance));
    return sum * (1 - kExposbPart + kExposbPart * decay);
  };
  std::vector<double> scores;
  for (std::size_t n = 0; n <= query; ++n) scores.push_back(score(query - n) / score(query));
  return scores;
}

}  // namespace windowed_rope
