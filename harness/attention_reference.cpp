// Attention and its gradients on the CPU, with Eigen in double.
#include "harness/attention_reference.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "harness/parallel.hpp"
#include "harness/rounding.hpp"

namespace tile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Errors of a kernel, see chapter 03's reference: logarithms that add up ----

constexpr double kUnit = 0x1.00001p-24;
constexpr double kExp2 = 4 * kUnit;  // 2 ulps
constexpr double kTinyExponential = 0x1p-126;
constexpr double kTinyProduct = 0x1p-149;
// A step may take the exponentials relative to a number up to 2^8 below the greatest score, and
// with e4m3 2^8.6.
constexpr double kReferenceBelow = 9 * std::numbers::ln2;
constexpr double kTileKeys = 16;  // no step has fewer keys to a tile

// A tensor's rows as matrices of Eigen.
using Vector = Eigen::VectorXd;
using Row = Eigen::Map<const Vector>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

/// Rows of heads, in tensors [batch][length][heads][dim]. Those of a head lie far apart there, each
/// in a page of its own. A head that is read for many outputs is copied: without gaps it takes a
/// third of the time or less.
class Heads {
 public:
  explicit Heads(bool copies) : copies_(copies) {}

  /// `count` rows of a head from row `first` on; empty if the bounds are not given.
  Rows rows(std::span<const double> tensor, std::int64_t length, std::int64_t heads,
            std::int64_t dim, std::int64_t batch, std::int64_t head, std::int64_t first,
            std::int64_t count) {
    const Eigen::OuterStride<> stride(heads * dim);
    if (tensor.empty()) return Rows(nullptr, 0, dim, stride);
    const double* begin = &tensor[static_cast<std::size_t>((batch * length * heads + head) * dim)];
    if (!copies_) return Rows(begin + first * heads * dim, count, dim, stride);
    Copy& copy = of_tensors_[tensor.data()];
    if (copy.of != begin) copy = {begin, Rows(begin, length, dim, stride)};
    return Rows(copy.rows.data() + first * dim, count, dim, Eigen::OuterStride<>(dim));
  }

 private:
  struct Copy {
    const double* of = nullptr;
    Matrix rows;
  };
  bool copies_;
  std::map<const double*, Copy> of_tensors_;  // of each the head that was read last
};

/// Some of these rows.
Rows part_of(const Rows& rows, std::int64_t first, std::int64_t count) {
  if (rows.rows() == 0) return rows;
  return Rows(rows.data() + first * rows.outerStride(), count, rows.cols(),
              Eigen::OuterStride<>(rows.outerStride()));
}

/// Row `row` of all heads' rows, in the same way.
Row row_of(std::span<const double> tensor, std::int64_t dim, std::int64_t row) {
  if (tensor.empty()) return Row(nullptr, 0);
  return Row(&tensor[static_cast<std::size_t>(row * dim)], dim);
}

/// A row and the rows whose scores with it are wanted, and how far either may be off.
struct Products {
  Row row, row_bound;
  Rows rows, rows_bound;
};

/// Neighbours among the rows, by the first one's number among them: all of them are near, or far.
struct Stretch {
  std::int64_t first, count;
  bool far;
};
/// The rows begin with row `first`. Far are those that are `window` or further from `position`.
std::vector<Stretch> stretches_of(std::int64_t first, std::int64_t count, std::int64_t position,
                                  std::int64_t window, bool has_far) {
  if (!has_far) return {{0, count, false}};
  window = std::clamp<std::int64_t>(window, 0, kUnlimited);  // a caller may give any number
  const std::int64_t begin = std::clamp<std::int64_t>(position - window + 1 - first, 0, count);
  const std::int64_t end = std::clamp<std::int64_t>(position + window - first, begin, count);
  return {{0, begin, true}, {begin, end - begin, false}, {end, count - end, true}};
}

/// The scores of a row with other rows: their values, the sum of the magnitudes of their stats, and
/// their errors because the rows are inexact.
struct Scores {
  Vector value, magnitude, error;
};
Scores scores_of(double scale, const Products& near, const Products& far,
                 const std::vector<Stretch>& stretches) {
  const Eigen::Index all = near.rows.rows();
  Scores s{Vector(all), Vector(all), Vector::Zero(all)};
  for (const auto& [first, count, is_far] : stretches) {
    const auto& [row, row_bound, all_rows, all_bounds] = is_far ? far : near;
    const Rows rows = part_of(all_rows, first, count);
    s.value.segment(first, count) = scale * (rows * row);
    auto magnitude = s.magnitude.segment(first, count), error = s.error.segment(first, count);
    magnitude = scale * (rows.cwiseAbs() * row.cwiseAbs());
    if (row_bound.size() == 0) continue;
    error = scale * ((rows.cwiseAbs() + part_of(all_bounds, first, count)) *
                     (row.cwiseAbs() + row_bound)) -
            magnitude;
    magnitude += error;
  }
  return s;
}

/// The factors by distance of rows from row `first` on, and the error of a kernel's factors.
struct Factors {
  Vector value, error;
};
Factors factors_of(const Attention& p, std::int64_t position, std::int64_t first,
                   Eigen::Index count) {
  const double part = p.distance_part, rate = p.distance_rate;
  Factors f{Vector::Ones(count), Vector::Zero(count)};
  for (Eigen::Index i = 0; part != 0 && i < count; ++i) {
    const double exponent = rate * static_cast<double>(std::abs(position - (first + i)));
    const double falls = part * std::exp(-exponent);
    f.value[i] = 1 - part + falls;
    // The rate is rounded in units of log2, and so is its product with the distance. Then come the
    // exponential, a product and two sums.
    f.error[i] = falls * std::expm1(3 * kUnit * exponent + kExp2 + kUnit) + kTinyExponential +
                 3 * kUnit * (1 + f.value[i]);
  }
  return f;
}

void multiply(Scores* scores, const Factors& by) {
  const Vector greatest = by.value + by.error;
  scores->error = scores->error.cwiseProduct(greatest) + scores->magnitude.cwiseProduct(by.error);
  scores->value = scores->value.cwiseProduct(by.value);
  scores->magnitude = scores->magnitude.cwiseProduct(greatest);
}

template <class Inputs>
Mask mask_of(const Attention& p, const Inputs& in, std::int64_t entry) {
  return mask_of_entry(p, in.query_lengths, in.key_lengths, entry);
}

/// Calls compute(heads, number, row, head) for all heads of the rows with these numbers, or of all
/// rows. A thread does one head after the other, whose keys and values then stay in its core's
/// cache.
template <class Compute>
void for_each_output(std::span<const std::int64_t> rows, std::int64_t all, std::int64_t heads,
                     std::int64_t work, const Compute& compute) {
  const std::int64_t of_head = rows.empty() ? all : std::ssize(rows), count = of_head * heads;
  const std::size_t smallest = 1 + kElementsForAThread / (1 + static_cast<std::size_t>(work));
  constexpr std::int64_t kManyRows = 8;
  in_parts(static_cast<std::size_t>(count), smallest, [&](std::size_t begin, std::size_t end) {
    Heads of_part(of_head >= kManyRows);
    for (auto i = static_cast<std::int64_t>(begin); i < static_cast<std::int64_t>(end); ++i) {
      const std::int64_t head = i / of_head, row = i % of_head;
      compute(of_part, row * heads + head, rows.empty() ? row : rows[static_cast<std::size_t>(row)],
              head);
    }
  });
}

/// The error of a sum of `count` products in units of their magnitudes: chapter 02's reference says
/// why. What e4m3 loses besides, loss_of_sums tells.
double units_of_sum(DType type, double count) {
  const double units = count + (type == DType::fp32 ? 0 : 3 * std::ceil(count / 8));
  return units * kUnit / (1 - units * kUnit);
}

/// What sums of products of 8 bits lose on tensor cores. As chapter 02's reference says, wgmma adds
/// 32 products, which are exact, and the sum so far, each cut off at 2^-13 of the greatest of these
/// 33; and so it does with the result.
class CutSums {
 public:
  static constexpr std::int64_t kTogether = 32;

  explicit CutSums(Eigen::Index sums)
      : loss(Vector::Zero(sums)), sum_(Vector::Zero(sums)), error_(Vector::Zero(sums)) {}

  /// So many products of each sum, a column, or fewer. Each may be off by `errors`.
  void add(const Matrix& products, const Matrix& errors) {
    constexpr double kCuts = 34 * 0x1p-13;
    Vector greatest = (products.cwiseAbs() + errors).colwise().maxCoeff().transpose();
    greatest = greatest.cwiseMax(sum_.cwiseAbs() + error_);
    sum_ += products.colwise().sum().transpose();
    error_ += errors.colwise().sum().transpose();
    greatest = greatest.cwiseMax(sum_.cwiseAbs() + error_);
    loss += kCuts * greatest;
    error_ += kCuts * greatest;
  }

  Vector loss;

 private:
  Vector sum_, error_;
};

/// The same of the scores of a row with others.
Vector loss_of_scores(const Row& row, const Rows& rows) {
  constexpr std::int64_t kAtOnce = 128;  // rows, whose products stay in the cache
  Vector loss(rows.rows());
  for (std::int64_t first = 0; first < rows.rows(); first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, rows.rows() - first);
    CutSums sums(count);
    for (std::int64_t at = 0; at < row.size(); at += CutSums::kTogether) {
      const std::int64_t terms = std::min(CutSums::kTogether, row.size() - at);
      sums.add(
          row.segment(at, terms).asDiagonal() * rows.block(first, at, count, terms).transpose(),
          Matrix::Zero(terms, count));
    }
    loss.segment(first, count) = sums.loss;
  }
  return loss;
}

/// The same of the output, a sum over keys from key `first` on. The sums of tiles of keys are added
/// in fp32. `terms` are the weights, which may be off by `errors`.
Vector loss_of_output(std::int64_t tile, std::int64_t first, const Rows& v, const Vector& terms,
                      const Vector& errors) {
  Vector loss = Vector::Zero(v.cols());
  for (std::int64_t at = 0; at < v.rows();) {
    CutSums sums(v.cols());
    const std::int64_t end = std::min(v.rows(), at + tile - (first + at) % tile);
    while (at < end) {
      // Tensor cores begin with the keys that this tile has before the first one, whose weights
      // are 0.
      const std::int64_t count =
          std::min(end - at, CutSums::kTogether - (first + at) % CutSums::kTogether);
      const Rows some = part_of(v, at, count);
      sums.add(terms.segment(at, count).asDiagonal() * some,
               errors.segment(at, count).asDiagonal() * some.cwiseAbs());
      at += count;
    }
    loss += sums.loss;
  }
  return loss;
}

}  // namespace

Mask mask_of_entry(const Attention& p, const std::vector<int>& query_lengths,
                   const std::vector<int>& key_lengths, std::int64_t entry) {
  const auto limit = [](std::int64_t n) { return static_cast<int>(std::min(n, kUnlimited)); };
  const auto of_entries = [](const std::vector<int>& lengths) {
    return lengths.empty() ? nullptr : lengths.data();
  };
  const BatchMasks masks{
      limit(p.queries),          limit(p.keys),          limit(p.left), limit(p.right),
      of_entries(query_lengths), of_entries(key_lengths)};
  return masks.of(static_cast<int>(entry));
}

AttentionExpected attention_reference(const Attention& p, const AttentionInputs& in,
                                      std::span<const std::int64_t> rows) {
  const std::int64_t row_count = rows.empty() ? p.batch * p.queries : std::ssize(rows);
  const auto count = static_cast<std::size_t>(row_count * p.heads);
  const auto dim = static_cast<std::size_t>(p.head_dim);
  AttentionExpected expected{
      {{row_count, p.heads, p.head_dim}, std::vector<double>(count * dim), {}},
      {{row_count, p.heads}, std::vector<double>(count, -kInfinity), {}}};
  expected.o.bound.resize(count * dim);
  expected.lse.bound.resize(count);
  const Rounding out = rounding_of(output_type(p));
  const bool is_fp32 = p.type == DType::fp32 || p.type == DType::fp64;
  const bool is_e4m3 = p.type == DType::e4m3;
  const double weight_unit = is_fp32 ? 0 : unit_roundoff(p.type) * 1.01;
  // The greatest weight of e4m3 is 2^5 or more, and what is below half of 2^-9 becomes 0.
  const double weight_tiny = kTinyExponential + (is_fp32 ? 0 : is_e4m3 ? 0x1p-15 : out.underflow);

  // Output `at` of `count`: a head of row number `row`.
  auto compute = [&](Heads& heads, std::int64_t at, std::int64_t row, std::int64_t head) {
    const std::int64_t batch = row / p.queries, query = row % p.queries;
    const Mask mask = mask_of(p, in, batch);
    const int first = mask.first_key(static_cast<int>(query));
    const int n = mask.end_key(static_cast<int>(query)) - first;
    if (n <= 0) return;
    const std::int64_t kv_head = head / (p.heads / p.kv_heads);
    const std::int64_t position = mask.position(static_cast<int>(query));
    const auto of_keys = [&](std::span<const double> tensor) {
      return heads.rows(tensor, p.keys, p.kv_heads, p.head_dim, batch, kv_head, first, n);
    };
    const Rows v = of_keys(in.v), v_bound = of_keys(in.v_bound);
    const auto products_of = [&](std::span<const double> q, std::span<const double> q_bound,
                                 std::span<const double> k, std::span<const double> k_bound) {
      return Products{row_of(q, p.head_dim, at), row_of(q_bound, p.head_dim, at), of_keys(k),
                      of_keys(k_bound)};
    };
    Scores scores = scores_of(p.scale, products_of(in.q, in.q_bound, in.k, in.k_bound),
                              products_of(in.far.q, in.far.q_bound, in.far.k, in.far.k_bound),
                              stretches_of(first, n, position, p.window, !in.far.q.empty()));
    multiply(&scores, factors_of(p, position, first, n));
    if (is_e4m3) {
      scores.error += p.scale * loss_of_scores(row_of(in.q, p.head_dim, at), of_keys(in.k));
    }
    const auto& [score, magnitude, score_error] = scores;
    const double max = score.maxCoeff();
    const Vector exponential = (score.array() - max).exp();
    const double sum = exponential.sum();
    const Vector weight = exponential / sum;
    const double lse = max + std::log(sum);
    const double of_lse =
        6 * kUnit * (std::abs(max) + kReferenceBelow + std::log(sum) + std::abs(lse));
    // If keys are split, as only steps in 16 bits do, a part is weighted by its lse: computed and
    // rounded, subtracted from the greatest, the exponential, a product.
    const double of_merge = is_fp32 ? 0 : of_lse + kExp2 + 4 * kUnit;

    // The errors of a weight: its score, whose factors may be inexact, a sum of dim products, the
    // roundings of scale and log2(e), of their product and of that with the score; the distance
    // from the reference, rounded once where it is computed and once in all where the reference
    // rises; the exponential, and one for each tile that raises the reference, with a product; as
    // many additions as there are keys.
    const auto keys = static_cast<double>(n);
    // And with e4m3 those of the scales of q and k.
    const double of_score =
        units_of_sum(p.type, static_cast<double>(p.head_dim)) + (is_e4m3 ? 7 : 4) * kUnit;
    const double tiles = std::ceil(keys / kTileKeys) + 5;  // and five rounds of lanes
    const double of_exponential = kExp2 + tiles * (kExp2 + 2 * kUnit);
    const Vector error =
        (score_error.array() + of_score * magnitude.array() +
         2 * kUnit * (max - score.array() + kReferenceBelow) + of_exponential + of_merge)
            .unaryExpr([](double r) { return std::expm1(r); });
    const double sum_error = weight.dot(error) + keys * kUnit + keys * kTinyExponential / sum;

    // The weights are rounded to the type between the two products. In the end the output is
    // divided by the sum, and multiplied with the scale of v.
    const double of_output = sum_error + weight_unit + units_of_sum(p.type, keys) + 5 * kUnit;
    const Vector term_error =
        weight.array() * (error.array() + of_output + error.array() * of_output);
    const Vector value = v.transpose() * weight;
    const Vector weight_error = term_error.array() + weight_tiny / sum;
    Vector bound =
        v.cwiseAbs().transpose() * weight_error + Vector::Constant(p.head_dim, 4 * kTinyProduct);
    if (is_e4m3) bound += loss_of_output(in.keys_of_sum, first, v, weight, weight_error);
    if (v_bound.rows() > 0) bound += v_bound.transpose() * (weight + weight_error);
    for (std::size_t d = 0; d < dim; ++d) {
      const auto i = static_cast<Eigen::Index>(d);
      const std::size_t element = static_cast<std::size_t>(at) * dim + d;
      expected.o.value[element] = value[i];
      expected.o.bound[element] = bound[i] + out.error(value[i], bound[i]);
    }
    expected.lse.value[static_cast<std::size_t>(at)] = lse;
    expected.lse.bound[static_cast<std::size_t>(at)] =
        sum_error + of_lse + of_score * std::abs(max);
  };
  for_each_output(rows, p.batch * p.queries, p.heads, p.keys * p.head_dim, compute);
  return expected;
}

AttentionGradients attention_gradients(const Attention& p, const AttentionGradientInputs& in,
                                       std::span<const std::int64_t> query_rows,
                                       std::span<const std::int64_t> key_rows) {
  const auto zeros = [&p](std::int64_t rows, std::int64_t heads) {
    const auto count = static_cast<std::size_t>(rows * heads * p.head_dim);
    return Expected{
        {rows, heads, p.head_dim}, std::vector<double>(count), std::vector<double>(count)};
  };
  const std::int64_t queries = query_rows.empty() ? p.batch * p.queries : std::ssize(query_rows);
  const std::int64_t keys = key_rows.empty() ? p.batch * p.keys : std::ssize(key_rows);
  AttentionGradients expected{zeros(queries, p.heads), zeros(keys, p.kv_heads),
                              zeros(keys, p.kv_heads), zeros(queries, p.heads),
                              zeros(keys, p.kv_heads)};
  const bool has_far = !in.far.q.empty();
  const Rounding out = rounding_of(p.type);
  const bool is_fp32 = p.type == DType::fp32 || p.type == DType::fp64;
  const double factor_unit = is_fp32 ? 0 : unit_roundoff(p.type) * 1.01;
  const double factor_tiny = kTinyExponential + (is_fp32 ? 0 : out.underflow);
  const double scale = p.scale;
  const std::int64_t group = p.heads / p.kv_heads;
  const double of_product = units_of_sum(p.type, static_cast<double>(p.head_dim));
  const double of_delta = units_of_sum(DType::fp32, static_cast<double>(p.head_dim));

  // Pairs of rows of queries and keys, one of the two a single row: weights and gradients of
  // scores, with the errors of both.
  struct Pairs {
    Vector weight, weight_error, dscore, dscore_error;
  };
  const auto pairs_of = [&](const Scores& scores, const Vector& lse, const Vector& dweight,
                            const Vector& dweight_magnitude, const Vector& dweight_error,
                            const Vector& delta, const Vector& delta_magnitude) {
    Pairs x;
    const Vector& score = scores.value;
    // A query without keys has no weights. Its lse is -infinity.
    x.weight = (lse.array() == -kInfinity).select(0, (score - lse).array().exp());
    const Vector finite_lse = (lse.array() == -kInfinity).select(0, lse);
    // The score as in the forward pass, lse times log2(e), their difference, the exponential.
    const Vector relative =
        (scores.error.array() + (of_product + 4 * kUnit) * scores.magnitude.array() +
         4 * kUnit * finite_lse.array().abs() + 2 * kUnit * (score - finite_lse).array().abs() +
         kExp2)
            .unaryExpr([](double r) { return std::expm1(r); });
    x.weight_error = x.weight.array() * relative.array() + kTinyExponential;
    const Vector difference = dweight - delta;
    const Vector difference_error =
        of_product * (dweight_magnitude + dweight_error) + dweight_error +
        of_delta * delta_magnitude + kUnit * (difference.cwiseAbs() + dweight_error) +
        Vector::Constant(difference.size(), 2 * static_cast<double>(p.head_dim) * kTinyProduct);
    x.dscore = x.weight.array() * difference.array();
    x.dscore_error = x.weight_error.array() * (difference.cwiseAbs() + difference_error).array() +
                     x.weight.array() * difference_error.array() + kUnit * x.dscore.array().abs() +
                     kTinyProduct;
    // Both are rounded to the type before they are factors.
    x.weight_error.array() += factor_unit * (x.weight + x.weight_error).array() + factor_tiny;
    x.dscore_error.array() +=
        factor_unit * (x.dscore.cwiseAbs() + x.dscore_error).array() + factor_tiny;
    return x;
  };
  // The error of a product with v because v is inexact.
  const auto error_of_v = [](const Rows& v_bound, const Vector& x, Eigen::Index count) {
    return v_bound.rows() == 0 ? Vector(Vector::Zero(count)) : Vector(v_bound * x.cwiseAbs());
  };
  // The gradients of scores become those of the products before the distance factor.
  const auto through = [&](Pairs x, const Factors& by) {
    if (p.distance_part == 0) return x;
    const Vector greatest = x.dscore.cwiseAbs() + x.dscore_error;
    x.dscore_error = x.dscore_error.cwiseProduct(by.value + by.error) +
                     x.dscore.cwiseAbs().cwiseProduct(by.error) + 2 * kUnit * greatest;
    x.dscore = x.dscore.cwiseProduct(by.value);
    return x;
  };
  // value += factors times rows, and the bound with it.
  const auto add = [](const Vector& factor, const Vector& error, const auto& rows,
                      const auto& rows_bound, Vector* value, Vector* bound, Vector* magnitude) {
    const Vector greatest = factor.cwiseAbs() + error;
    *value += rows.transpose() * factor;
    *bound += rows.cwiseAbs().transpose() * error;
    *magnitude += rows.cwiseAbs().transpose() * greatest;
    if (rows_bound.rows() == 0) return;
    const Vector of_rows = rows_bound.transpose() * greatest;
    *bound += of_rows;
    *magnitude += of_rows;
  };
  const auto finish = [&](Expected* to, std::int64_t at, double by, std::int64_t stats,
                          const Vector& value, const Vector& bound, const Vector& magnitude) {
    const double of_sum = units_of_sum(p.type, static_cast<double>(stats));
    for (Eigen::Index d = 0; d < value.size(); ++d) {
      const auto i = static_cast<std::size_t>(at * p.head_dim + d);
      const double error = by * (bound[d] + of_sum * magnitude[d]) + 3 * kUnit * by * magnitude[d] +
                           4 * kTinyProduct;
      to->value[i] = by * value[d];
      // A sum of no stats is exact.
      to->bound[i] = stats == 0 ? 0 : error + out.error(to->value[i], error);
    }
  };
  const auto zero = [&] { return Vector(Vector::Zero(p.head_dim)); };
  // The same for one pair of q and k, the near or the far one, from the gradients of scores. The
  // other one's rows may hold anything, NaN as well.
  const auto add_stretches = [&](const Pairs& x, const std::vector<Stretch>& stretches, bool far,
                                 const Products& of, Vector* value, Vector* bound,
                                 Vector* magnitude) {
    for (const auto& [first, count, is_far] : stretches) {
      if (is_far != far) continue;
      add(x.dscore.segment(first, count), x.dscore_error.segment(first, count),
          part_of(of.rows, first, count), part_of(of.rows_bound, first, count), value, bound,
          magnitude);
    }
  };
  // dout times o of each row, and the sum of the magnitudes.
  std::vector<double> delta(in.lse.size()), delta_magnitude(in.lse.size());
  in_parts(delta.size(), kElementsForAThread / 64, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::int64_t>(i);
      const Row o = row_of(in.o, p.head_dim, row), dout = row_of(in.dout, p.head_dim, row);
      delta[i] = dout.dot(o), delta_magnitude[i] = dout.cwiseAbs().dot(o.cwiseAbs());
    }
  });

  for_each_output(
      query_rows, p.batch * p.queries, p.heads, p.keys * p.head_dim,
      [&](Heads& heads, std::int64_t at, std::int64_t row, std::int64_t head) {
        const std::int64_t batch = row / p.queries, query = row % p.queries;
        const Mask mask = mask_of(p, in, batch);
        const int first = mask.first_key(static_cast<int>(query));
        const int n = mask.end_key(static_cast<int>(query)) - first;
        if (n <= 0) return;
        const auto of_query = [&](std::span<const double> tensor) {
          return row_of(tensor, p.head_dim, row * p.heads + head);
        };
        const auto of_keys = [&](std::span<const double> tensor) {
          return heads.rows(tensor, p.keys, p.kv_heads, p.head_dim, batch, head / group, first, n);
        };
        const Row dout = of_query(in.dout);
        const Rows v = of_keys(in.v);
        const auto repeated = [n, i = static_cast<std::size_t>(row * p.heads + head)](
                                  std::span<const double> of_rows) {
          return Vector(Vector::Constant(n, of_rows[i]));
        };
        const Products near{of_query(in.q), of_query(in.q_bound), of_keys(in.k),
                            of_keys(in.k_bound)};
        const Products far{of_query(in.far.q), of_query(in.far.q_bound), of_keys(in.far.k),
                           of_keys(in.far.k_bound)};
        const std::int64_t position = mask.position(static_cast<int>(query));
        const auto stretches = stretches_of(first, n, position, p.window, has_far);
        Scores scores = scores_of(scale, near, far, stretches);
        const Factors factors = factors_of(p, position, first, n);
        multiply(&scores, factors);
        const Pairs x =
            through(pairs_of(scores, repeated(in.lse), v * dout, v.cwiseAbs() * dout.cwiseAbs(),
                             error_of_v(of_keys(in.v_bound), dout, n), repeated(delta),
                             repeated(delta_magnitude)),
                    factors);
        for (const bool is_far : {false, true}) {
          if (is_far && !has_far) continue;
          Vector value = zero(), bound = zero(), magnitude = zero();
          add_stretches(x, stretches, is_far, is_far ? far : near, &value, &bound, &magnitude);
          finish(is_far ? &expected.far_dq : &expected.dq, at, scale, n, value, bound, magnitude);
        }
      });
  for_each_output(
      key_rows, p.batch * p.keys, p.kv_heads, group * p.queries * p.head_dim,
      [&](Heads& heads, std::int64_t at, std::int64_t row, std::int64_t kv) {
        const std::int64_t batch = row / p.keys, key = row % p.keys;
        const Mask transposed = mask_of(p, in, batch).transposed();
        const int first = transposed.first_key(static_cast<int>(key));
        const int n = transposed.end_key(static_cast<int>(key)) - first;
        if (n <= 0) return;
        const auto of_key = [&](std::span<const double> tensor) {
          return row_of(tensor, p.head_dim, row * p.kv_heads + kv);
        };
        const Row v = of_key(in.v);
        Vector dk[2] = {zero(), zero()}, dk_bound[2] = {zero(), zero()};  // near and far
        Vector dk_magnitude[2] = {zero(), zero()};
        Vector dv = zero(), dv_bound = zero(), dv_magnitude = zero();
        for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
          const auto of_head = [&](std::span<const double> tensor, std::int64_t dim) {
            return heads.rows(tensor, p.queries, p.heads, dim, batch, head, first, n);
          };
          const auto of_queries = [&](std::span<const double> tensor) {
            return of_head(tensor, p.head_dim);
          };
          const Rows dout = of_queries(in.dout);
          const Products near{of_key(in.k), of_key(in.k_bound), of_queries(in.q),
                              of_queries(in.q_bound)};
          const Products far{of_key(in.far.k), of_key(in.far.k_bound), of_queries(in.far.q),
                             of_queries(in.far.q_bound)};
          const std::int64_t position = transposed.position(static_cast<int>(key));
          const auto stretches = stretches_of(first, n, position, p.window, has_far);
          Scores scores = scores_of(scale, near, far, stretches);
          const Factors factors = factors_of(p, position, first, n);
          multiply(&scores, factors);
          const Row v_bound = of_key(in.v_bound);
          const Vector dweight_error =
              v_bound.size() == 0 ? Vector(Vector::Zero(n)) : Vector(dout.cwiseAbs() * v_bound);
          const Pairs x =
              through(pairs_of(scores, of_head(in.lse, 1), dout * v, dout.cwiseAbs() * v.cwiseAbs(),
                               dweight_error, of_head(delta, 1), of_head(delta_magnitude, 1)),
                      factors);
          for (const bool is_far : {false, true}) {
            if (is_far && !has_far) continue;
            add_stretches(x, stretches, is_far, is_far ? far : near, &dk[is_far], &dk_bound[is_far],
                          &dk_magnitude[is_far]);
          }
          add(x.weight, x.weight_error, dout, Rows(nullptr, 0, p.head_dim, 1), &dv, &dv_bound,
              &dv_magnitude);
        }
        for (const int far : {0, 1}) {
          if (far && !has_far) continue;
          finish(far ? &expected.far_dk : &expected.dk, at, scale, n * group, dk[far],
                 dk_bound[far], dk_magnitude[far]);
        }
        finish(&expected.dv, at, 1, n * group, dv, dv_bound, dv_magnitude);
      });
  return expected;
}

}  // namespace tile
