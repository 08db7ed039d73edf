// The references on the CPU, with Eigen in double, and the checks of the arguments.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "flash_attention.hpp"
#include "harness/parallel.hpp"
#include "harness/rounding.hpp"
#include "tile/host/text.hpp"

namespace flash_attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- Arguments ----

/// A tensor of rows among the arguments, [batch][length][heads][dim] with strides.
struct TensorArgument {
  std::string name;
  const void* data;
  Strides stride;
  std::int64_t batch, length, heads, dim, element_bytes;
  bool may_be_null = false;

  bool empty() const { return batch == 0 || length == 0 || heads == 0 || dim == 0; }
  /// Elements from the first to behind the last; false if they overflow 64 bits as bytes.
  bool extent(std::int64_t* elements) const {
    *elements = dim;
    for (const auto& [count, distance] :
         {std::pair{batch, stride.batch}, {heads, stride.head}, {length, stride.row}}) {
      std::int64_t all = 0;
      if (__builtin_mul_overflow(count - 1, distance, &all) ||
          __builtin_add_overflow(*elements, all, elements)) {
        return false;
      }
    }
    std::int64_t bytes = 0;
    return !__builtin_mul_overflow(*elements, element_bytes, &bytes);
  }
  std::int64_t bytes() const {
    std::int64_t elements = 0;
    return !empty() && extent(&elements) ? elements * element_bytes : 0;
  }
};

tile::Status check_strides(const TensorArgument& x) {
  for (const auto& [what, stride] :
       {std::pair{"batch", x.stride.batch}, {"head", x.stride.head}, {"row", x.stride.row}}) {
    if (stride < 0) {
      return tile::invalid_argument(x.name, std::string("its ") + what + " stride " +
                                                std::to_string(stride) + " is negative");
    }
  }
  std::int64_t elements = 0;
  if (!x.empty() && !x.extent(&elements)) {
    return tile::invalid_argument(x.name, "its strides lead beyond 64 bits");
  }
  return {};
}

/// No two elements of an output may lie in one place: going from the shortest stride to the
/// longest, each must lead past all that the ones before reach.
tile::Status check_no_overlap_within(const TensorArgument& x) {
  std::pair<std::int64_t, std::int64_t> dims[] = {
      {x.stride.batch, x.batch}, {x.stride.head, x.heads}, {x.stride.row, x.length}};
  std::sort(std::begin(dims), std::end(dims));
  std::int64_t reached = x.dim;
  for (const auto& [stride, count] : dims) {
    if (count <= 1) continue;
    if (stride < reached) return tile::invalid_argument(x.name, "its rows overlap one another");
    reached += (count - 1) * stride;
  }
  return {};
}

tile::Status check_pointer(const TensorArgument& x) {
  if (!x.data) return tile::invalid_argument(x.name, "is null");
  if (reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(x.element_bytes)) {
    return tile::invalid_argument(x.name, "is not aligned to an element");
  }
  return {};
}

/// Whether two tensors of rows that are equally far apart lie between one another's rows: their
/// heads are apart from some row's beginning to the next one's.
bool interleave(const TensorArgument& a, const TensorArgument& b) {
  if (a.stride.row != b.stride.row || a.stride.batch != b.stride.batch ||
      a.element_bytes != b.element_bytes || a.stride.row == 0 ||
      a.stride.batch % a.stride.row != 0) {
    return false;
  }
  const std::int64_t row = a.stride.row * a.element_bytes;
  const auto begin = [row](const TensorArgument& x) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data) %
                                     static_cast<std::uintptr_t>(row));
  };
  const auto width = [](const TensorArgument& x) {
    return ((x.heads - 1) * x.stride.head + x.dim) * x.element_bytes;
  };
  // From a's beginning, counted around the row.
  const std::int64_t distance = (begin(b) - begin(a) + row) % row;
  return distance >= width(a) && distance + width(b) <= row;
}

tile::Status check_apart(const TensorArgument& output, const TensorArgument& other) {
  if (interleave(output, other)) return {};
  const auto first = reinterpret_cast<std::uintptr_t>(output.data);
  const auto second = reinterpret_cast<std::uintptr_t>(other.data);
  if (first < second + static_cast<std::uintptr_t>(other.bytes()) &&
      second < first + static_cast<std::uintptr_t>(output.bytes())) {
    return tile::invalid_argument(output.name, "overlaps " + other.name);
  }
  return {};
}

template <class Problem>
tile::Status check_extents(const Problem& p) {
  for (const auto& [name, extent] : {std::pair{"batch", p.batch},
                                     {"heads", p.heads},
                                     {"kv_heads", p.kv_heads},
                                     {"queries", p.queries},
                                     {"keys", p.keys},
                                     {"head_dim", p.head_dim},
                                     {"left", p.left},
                                     {"right", p.right}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  for (const auto& [name, extent] : {std::pair{"queries", p.queries},
                                     {"keys", p.keys},
                                     {"head_dim", p.head_dim},
                                     {"heads", p.heads},
                                     {"batch", p.batch}}) {
    if (extent > kMaxLength) {
      return tile::unsupported(name, std::to_string(extent) + " is more than 2^29");
    }
  }
  if (p.head_dim == 0) return tile::invalid_argument("head_dim", "is 0");
  if (p.heads > 0 && (p.kv_heads == 0 || p.heads % p.kv_heads != 0)) {
    return tile::invalid_argument("kv_heads", std::to_string(p.kv_heads) + " does not divide " +
                                                  std::to_string(p.heads) + " heads");
  }
  if (!(p.scale > 0) || !std::isfinite(p.scale * std::numbers::log2e_v<float>)) {
    return tile::invalid_argument("scale", tile::number(p.scale) + " is not positive and finite");
  }
  return {};
}

/// INT64_MAX if it overflows.
std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t all = 1;
  for (const std::int64_t each : factors) {
    if (__builtin_mul_overflow(all, each, &all)) return INT64_MAX;
  }
  return all;
}

tile::Status check_workspace(std::int64_t needed, std::int64_t given) {
  if (given >= needed) return {};
  return tile::unsupported("workspace_bytes",
                           tile::grouped(needed) + " are needed, not " + tile::grouped(given));
}

std::int64_t element_bytes(tile::DType type) {
  return static_cast<std::int64_t>(tile::size_bytes(type));
}

template <class Problem>
TensorArgument query_rows(const Problem& p, const char* name, const void* data, Strides stride) {
  return {name, data, stride, p.batch, p.queries, p.heads, p.head_dim, element_bytes(p.type)};
}
template <class Problem>
TensorArgument key_rows(const Problem& p, const char* name, const void* data, Strides stride) {
  return {name, data, stride, p.batch, p.keys, p.kv_heads, p.head_dim, element_bytes(p.type)};
}
template <class Problem>
TensorArgument lse_of(const Problem& p, const float* lse) {  // with fp64, of doubles
  const Strides stride{p.heads * p.queries, p.queries, 1};
  return {"lse", lse, stride, p.batch, p.queries, p.heads, 1, p.type == tile::DType::fp64 ? 8 : 4};
}
template <class Problem>
TensorArgument lengths(const Problem& p, const char* name, const int* data) {
  return {name, data, {1, 0, 0}, p.batch, 1, 1, 1, 4};
}
TensorArgument optional(TensorArgument x) {
  x.may_be_null = true;
  return x;
}

struct Workspace {
  const void* data;
  std::int64_t bytes;
};

/// `is_empty`: nothing is computed, and no pointer matters.
tile::Status check_tensors(bool is_empty, const std::vector<TensorArgument>& inputs,
                           const std::vector<TensorArgument>& outputs, const Workspace& workspace) {
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TensorArgument& x : *tensors) {
      if (tile::Status s = check_strides(x); !s.ok()) return s;
    }
  }
  if (is_empty) return {};
  for (const TensorArgument& x : outputs) {
    if (x.empty()) continue;
    if (tile::Status s = check_no_overlap_within(x); !s.ok()) return s;
  }
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const TensorArgument& x : *tensors) {
      if (x.empty() || (!x.data && x.may_be_null)) continue;
      if (tile::Status s = check_pointer(x); !s.ok()) return s;
    }
  }
  if (workspace.bytes < 0) return tile::invalid_argument("workspace_bytes", "is negative");
  std::vector<TensorArgument> others = inputs, written = outputs;
  if (workspace.bytes > 0) {
    if (!workspace.data) return tile::invalid_argument("workspace", "is null");
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16) {
      return tile::invalid_argument("workspace", "is not aligned to 16 bytes");
    }
    written.push_back({"workspace", workspace.data, {}, 1, 1, 1, workspace.bytes, 1});
  }
  for (const TensorArgument& output : written) {
    for (const TensorArgument& other : others) {
      if (!output.data || !other.data) continue;
      if (tile::Status s = check_apart(output, other); !s.ok()) return s;
    }
    others.push_back(output);
  }
  return {};
}

tile::Status check_chunks(tile::DType type, std::int64_t head_dim,
                          const std::vector<TensorArgument>& tensors) {
  const std::int64_t width = 16 / element_bytes(type);
  for (const TensorArgument& x : tensors) {
    if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
      return tile::unsupported(x.name, "is not aligned to 16 bytes");
    }
    for (const std::int64_t each : {x.stride.batch, x.stride.head, x.stride.row}) {
      if (each % width != 0) {
        return tile::unsupported(
            x.name, "its stride " + std::to_string(each) + " is no multiple of 16 bytes");
      }
    }
  }
  for (const std::int64_t dim : {16, 32, 64, 128, 256}) {
    if (head_dim == dim) return {};
  }
  return tile::unsupported("head_dim",
                           std::to_string(head_dim) + " is not one of 16, 32, 64, 128, 256");
}

// ---- Errors of a kernel, see chapter 03's reference: logarithms that add up ----

constexpr double kUnit = 0x1.00001p-24;
constexpr double kExp2 = 4 * kUnit;  // 2 ulps
constexpr double kTinyExponential = 0x1p-126;
constexpr double kTinyProduct = 0x1p-149;
// A step may take the exponentials relative to a number up to 2^8 below the greatest score.
constexpr double kReferenceBelow = 8 * std::numbers::ln2;
constexpr double kTileKeys = 16;  // no step has fewer keys to a tile

// A tensor's rows as Eigen sees them.
using Vector = Eigen::VectorXd;
using Row = Eigen::Map<const Vector>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;

/// `count` rows of a head from row `first` on, in a tensor [batch][length][heads][dim].
Rows rows_of(std::span<const double> tensor, std::int64_t length, std::int64_t heads,
             std::int64_t dim, std::int64_t batch, std::int64_t head, std::int64_t first,
             std::int64_t count) {
  const std::int64_t at = ((batch * length + first) * heads + head) * dim;
  return Rows(tensor.data() + at, count, dim, Eigen::OuterStride<>(heads * dim));
}

template <class Problem, class Inputs>
Mask mask_of(const Problem& p, const Inputs& in, std::int64_t batch) {
  const auto entry = static_cast<std::size_t>(batch);
  return {static_cast<int>(in.query_lengths.empty() ? p.queries : in.query_lengths[entry]),
          static_cast<int>(in.key_lengths.empty() ? p.keys : in.key_lengths[entry]),
          static_cast<int>(std::min(p.left, kUnlimited)),
          static_cast<int>(std::min(p.right, kUnlimited))};
}

/// Calls compute(number, row, head) for all heads of the rows with these numbers, or of all rows.
template <class Compute>
void for_each_output(std::span<const std::int64_t> rows, std::int64_t all, std::int64_t heads,
                     std::int64_t work, const Compute& compute) {
  const std::int64_t count = (rows.empty() ? all : std::ssize(rows)) * heads;
  const std::size_t smallest = 1 + tile::kElementsForAThread / (1 + static_cast<std::size_t>(work));
  tile::in_parts(
      static_cast<std::size_t>(count), smallest, [&](std::size_t begin, std::size_t end) {
        for (auto at = static_cast<std::int64_t>(begin); at < static_cast<std::int64_t>(end);
             ++at) {
          const std::int64_t row = at / heads;
          compute(at, rows.empty() ? row : rows[static_cast<std::size_t>(row)], at % heads);
        }
      });
}

/// Of a sum of `count` products in units of their magnitudes: chapter 02's reference says why.
double units_of_sum(tile::DType type, double count) {
  const double units = count + (type == tile::DType::fp32 ? 0 : 3 * std::ceil(count / 8));
  return units * kUnit / (1 - units * kUnit);
}

}  // namespace

std::int64_t key_splits(const ForwardProblem& p) {
  constexpr std::int64_t kBlocks = 264;
  const std::int64_t rows = p.queries * (p.heads / p.kv_heads), tile_rows = rows <= 16 ? 16 : 64;
  const std::int64_t blocks = p.batch * p.kv_heads * ((rows + tile_rows - 1) / tile_rows);
  const std::int64_t two_tiles = 2 * std::max<std::int64_t>(1, kSplitTileElements / p.head_dim);
  return std::max<std::int64_t>(1,
                                std::min(kBlocks / blocks, (p.keys + two_tiles - 1) / two_tiles));
}

std::int64_t workspace_bytes(const ForwardProblem& p, std::string_view step) {
  if (step == "scores") return product({4, p.batch, p.heads, p.queries, p.keys});
  if (step != "split_keys" || is_empty(p) || p.queries > kMostSplitQueries) return 0;
  return product({4, p.batch, p.heads, p.queries, key_splits(p), p.head_dim + 1});
}

std::int64_t workspace_bytes(const BackwardProblem& p, std::string_view step) {
  if (step == "scores") return product({8, p.batch, p.heads, p.queries, p.keys});
  // Two floats a query, and where dq is summed up in memory head_dim more.
  const std::int64_t rows = (p.queries + 127) / 128 * 128;
  return product({step == "one_pass" ? 8 + 4 * p.head_dim : 8, p.batch, p.heads, rows});
}

tile::Status check_workspace(const ForwardProblem& p, const ForwardBuffers& buffers,
                             std::string_view step) {
  return check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}

tile::Status check_workspace(const BackwardProblem& p, const BackwardBuffers& buffers,
                             std::string_view step) {
  return check_workspace(workspace_bytes(p, step), buffers.workspace_bytes);
}

tile::Status validate_sizes(const ForwardProblem& p) { return check_extents(p); }
tile::Status validate_sizes(const BackwardProblem& p) { return check_extents(p); }

tile::Status validate_tensors(const ForwardProblem& p, const ForwardBuffers& b) {
  if (tile::Status s = validate_sizes(p); !s.ok()) return s;
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       optional(lengths(p, "query_lengths", b.query_lengths)),
       optional(lengths(p, "key_lengths", b.key_lengths))},
      {query_rows(p, "o", b.o, p.o), optional(lse_of(p, b.lse))}, {b.workspace, b.workspace_bytes});
}

tile::Status validate_tensors(const BackwardProblem& p, const BackwardBuffers& b) {
  if (tile::Status s = validate_sizes(p); !s.ok()) return s;
  return check_tensors(
      is_empty(p),
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       query_rows(p, "o", b.o, p.o), lse_of(p, b.lse), query_rows(p, "dout", b.dout, p.dout),
       optional(lengths(p, "query_lengths", b.query_lengths)),
       optional(lengths(p, "key_lengths", b.key_lengths))},
      {query_rows(p, "dq", b.dq, p.dq), key_rows(p, "dk", b.dk, p.dk),
       key_rows(p, "dv", b.dv, p.dv)},
      {b.workspace, b.workspace_bytes});
}

tile::Status validate(const ForwardProblem& p, const ForwardBuffers& buffers) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_tensors(p, buffers);
}

tile::Status validate(const BackwardProblem& p, const BackwardBuffers& buffers) {
  if (tile::Status s = tile::check_requirements(kTypes, {}, p.type); !s.ok()) return s;
  return validate_tensors(p, buffers);
}

tile::Status check_chunks(const ForwardProblem& p, const ForwardBuffers& b) {
  return check_chunks(p.type, p.head_dim,
                      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k),
                       key_rows(p, "v", b.v, p.v), query_rows(p, "o", b.o, p.o)});
}

tile::Status check_chunks(const BackwardProblem& p, const BackwardBuffers& b) {
  return check_chunks(
      p.type, p.head_dim,
      {query_rows(p, "q", b.q, p.q), key_rows(p, "k", b.k, p.k), key_rows(p, "v", b.v, p.v),
       query_rows(p, "dout", b.dout, p.dout), query_rows(p, "dq", b.dq, p.dq),
       key_rows(p, "dk", b.dk, p.dk), key_rows(p, "dv", b.dv, p.dv)});
}

ForwardExpected reference(const ForwardProblem& p, const ForwardInputs& in,
                          std::span<const std::int64_t> rows) {
  const std::int64_t row_count = rows.empty() ? p.batch * p.queries : std::ssize(rows);
  const auto count = static_cast<std::size_t>(row_count * p.heads);
  const auto dim = static_cast<std::size_t>(p.head_dim);
  ForwardExpected expected{{{row_count, p.heads, p.head_dim}, std::vector<double>(count * dim), {}},
                           {{row_count, p.heads}, std::vector<double>(count, -kInfinity), {}}};
  expected.o.bound.resize(count * dim);
  expected.lse.bound.resize(count);
  const tile::Rounding out = tile::rounding_of(p.type);
  const bool is_fp32 = p.type == tile::DType::fp32 || p.type == tile::DType::fp64;
  const double weight_unit = is_fp32 ? 0 : tile::unit_roundoff(p.type) * 1.01;
  const double weight_tiny = kTinyExponential + (is_fp32 ? 0 : out.underflow);

  // Output `at` of `count`: a head of row number `row`.
  auto compute = [&](std::int64_t at, std::int64_t row, std::int64_t head) {
    const std::int64_t batch = row / p.queries, query = row % p.queries;
    const Mask mask = mask_of(p, in, batch);
    const int first = mask.first_key(static_cast<int>(query));
    const int n = mask.end_key(static_cast<int>(query)) - first;
    if (n <= 0) return;
    const std::int64_t kv_head = head / (p.heads / p.kv_heads);
    const Row q(&in.q[static_cast<std::size_t>(at * p.head_dim)], p.head_dim);
    const Rows k = rows_of(in.k, p.keys, p.kv_heads, p.head_dim, batch, kv_head, first, n);
    const Rows v = rows_of(in.v, p.keys, p.kv_heads, p.head_dim, batch, kv_head, first, n);

    const double scale = p.scale;
    const Vector score = scale * (k * q);
    const Vector magnitude = scale * (k.cwiseAbs() * q.cwiseAbs());
    const double max = score.maxCoeff();
    const Vector exponential = (score.array() - max).exp();
    const double sum = exponential.sum();
    const Vector weight = exponential / sum;
    const double lse = max + std::log(sum);
    const double of_lse =
        6 * kUnit * (std::abs(max) + kReferenceBelow + std::log(sum) + std::abs(lse));
    // Where keys are split, which only steps in 16 bits do, a part counts with its lse: computed
    // and rounded, subtracted from the greatest, the exponential, a product.
    const double of_merge = is_fp32 ? 0 : of_lse + kExp2 + 4 * kUnit;

    // Of a weight: its score, a sum of dim products, the roundings of scale and log2(e), of their
    // product and of that with the score; the distance from the reference, rounded once where it is
    // computed and once in all where the reference rises; the exponential, and one for each tile
    // that raises the reference, with a product; as many additions as there are keys.
    const auto keys = static_cast<double>(n);
    const double of_score = units_of_sum(p.type, static_cast<double>(p.head_dim)) + 4 * kUnit;
    const double tiles = std::ceil(keys / kTileKeys) + 5;  // and five rounds of lanes
    const double of_exponential = kExp2 + tiles * (kExp2 + 2 * kUnit);
    const Vector error =
        (of_score * magnitude.array() + 2 * kUnit * (max - score.array() + kReferenceBelow) +
         of_exponential + of_merge)
            .unaryExpr([](double r) { return std::expm1(r); });
    const double sum_error = weight.dot(error) + keys * kUnit + keys * kTinyExponential / sum;

    // The weights are rounded to the type between the two products. In the end the output is
    // divided by the sum.
    const double of_output = sum_error + weight_unit + units_of_sum(p.type, keys) + 4 * kUnit;
    const Vector term_error =
        weight.array() * (error.array() + of_output + error.array() * of_output);
    const Vector value = v.transpose() * weight;
    const Vector bound =
        v.cwiseAbs().transpose() * (term_error.array() + weight_tiny / sum).matrix() +
        Vector::Constant(p.head_dim, 4 * kTinyProduct);
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

BackwardExpected reference(const BackwardProblem& p, const BackwardInputs& in,
                           std::span<const std::int64_t> query_rows,
                           std::span<const std::int64_t> key_rows) {
  const auto tensor = [&p](std::int64_t rows, std::int64_t heads) {
    const auto count = static_cast<std::size_t>(rows * heads * p.head_dim);
    return tile::Expected{
        {rows, heads, p.head_dim}, std::vector<double>(count), std::vector<double>(count)};
  };
  const std::int64_t queries = query_rows.empty() ? p.batch * p.queries : std::ssize(query_rows);
  const std::int64_t keys = key_rows.empty() ? p.batch * p.keys : std::ssize(key_rows);
  BackwardExpected expected{tensor(queries, p.heads), tensor(keys, p.kv_heads),
                            tensor(keys, p.kv_heads)};
  const tile::Rounding out = tile::rounding_of(p.type);
  const bool is_fp32 = p.type == tile::DType::fp32 || p.type == tile::DType::fp64;
  const double factor_unit = is_fp32 ? 0 : tile::unit_roundoff(p.type) * 1.01;
  const double factor_tiny = kTinyExponential + (is_fp32 ? 0 : out.underflow);
  const double scale = p.scale;
  const std::int64_t group = p.heads / p.kv_heads;
  const double of_product = units_of_sum(p.type, static_cast<double>(p.head_dim));
  const double of_delta = units_of_sum(tile::DType::fp32, static_cast<double>(p.head_dim));

  // Pairs of rows of queries and keys: one of the two is a single row. Weights and what becomes of
  // dscores, with the errors of both.
  struct Pairs {
    Vector weight, weight_error, dscore, dscore_error;
  };
  const auto pairs_of = [&](const Vector& score, const Vector& magnitude, const Vector& lse,
                            const Vector& dweight, const Vector& dweight_magnitude,
                            const Vector& delta, const Vector& delta_magnitude) {
    Pairs x;
    // A query without keys has no weights. Its lse is -infinity.
    x.weight = (lse.array() == -kInfinity).select(0, (score - lse).array().exp());
    const Vector finite_lse = (lse.array() == -kInfinity).select(0, lse);
    // The score as in the forward pass, lse times log2(e), their difference, the exponential.
    const Vector relative =
        ((of_product + 4 * kUnit) * magnitude.array() + 4 * kUnit * finite_lse.array().abs() +
         2 * kUnit * (score - finite_lse).array().abs() + kExp2)
            .unaryExpr([](double r) { return std::expm1(r); });
    x.weight_error = x.weight.array() * relative.array() + kTinyExponential;
    const Vector difference = dweight - delta;
    const Vector difference_error =
        of_product * dweight_magnitude + of_delta * delta_magnitude +
        kUnit * difference.cwiseAbs() +
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
  // value += factors times rows, bound likewise.
  const auto add = [](const Vector& factor, const Vector& error, const Rows& rows, Vector* value,
                      Vector* bound, Vector* magnitude) {
    *value += rows.transpose() * factor;
    *bound += rows.cwiseAbs().transpose() * error;
    *magnitude += rows.cwiseAbs().transpose() * (factor.cwiseAbs() + error);
  };
  const auto finish = [&](tile::Expected* to, std::int64_t at, double by, std::int64_t terms,
                          const Vector& value, const Vector& bound, const Vector& magnitude) {
    const double of_sum = units_of_sum(p.type, static_cast<double>(terms));
    for (Eigen::Index d = 0; d < value.size(); ++d) {
      const auto i = static_cast<std::size_t>(at * p.head_dim + d);
      const double error = by * (bound[d] + of_sum * magnitude[d]) + 3 * kUnit * by * magnitude[d] +
                           4 * kTinyProduct;
      to->value[i] = by * value[d];
      // A sum of no terms is exact.
      to->bound[i] = terms == 0 ? 0 : error + out.error(to->value[i], error);
    }
  };
  const auto zero = [&] { return Vector(Vector::Zero(p.head_dim)); };

  for_each_output(
      query_rows, p.batch * p.queries, p.heads, p.keys * p.head_dim,
      [&](std::int64_t at, std::int64_t row, std::int64_t head) {
        const std::int64_t batch = row / p.queries, query = row % p.queries;
        const Mask mask = mask_of(p, in, batch);
        const int first = mask.first_key(static_cast<int>(query));
        const int n = mask.end_key(static_cast<int>(query)) - first;
        if (n <= 0) return;
        const auto of_query = [&](std::span<const double> values) {
          return Row(&values[static_cast<std::size_t>((row * p.heads + head) * p.head_dim)],
                     p.head_dim);
        };
        const Row q = of_query(in.q), o = of_query(in.o), dout = of_query(in.dout);
        const std::int64_t kv = head / group;
        const Rows k = rows_of(in.k, p.keys, p.kv_heads, p.head_dim, batch, kv, first, n);
        const Rows v = rows_of(in.v, p.keys, p.kv_heads, p.head_dim, batch, kv, first, n);
        const auto repeated = [n](double x) { return Vector(Vector::Constant(n, x)); };
        const Pairs x = pairs_of(scale * (k * q), scale * (k.cwiseAbs() * q.cwiseAbs()),
                                 repeated(in.lse[static_cast<std::size_t>(row * p.heads + head)]),
                                 v * dout, v.cwiseAbs() * dout.cwiseAbs(), repeated(dout.dot(o)),
                                 repeated(dout.cwiseAbs().dot(o.cwiseAbs())));
        Vector value = zero(), bound = zero(), magnitude = zero();
        add(x.dscore, x.dscore_error, k, &value, &bound, &magnitude);
        finish(&expected.dq, at, scale, n, value, bound, magnitude);
      });
  for_each_output(
      key_rows, p.batch * p.keys, p.kv_heads, group * p.queries * p.head_dim,
      [&](std::int64_t at, std::int64_t row, std::int64_t kv) {
        const std::int64_t batch = row / p.keys, key = row % p.keys;
        const Mask turned = mask_of(p, in, batch).transposed();
        const int first = turned.first_key(static_cast<int>(key));
        const int n = turned.end_key(static_cast<int>(key)) - first;
        if (n <= 0) return;
        const auto of_key = [&](std::span<const double> values) {
          return Row(&values[static_cast<std::size_t>((row * p.kv_heads + kv) * p.head_dim)],
                     p.head_dim);
        };
        const Row k = of_key(in.k), v = of_key(in.v);
        Vector dk = zero(), dk_bound = zero(), dk_magnitude = zero();
        Vector dv = zero(), dv_bound = zero(), dv_magnitude = zero();
        for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
          const auto of_head = [&](std::span<const double> values) {
            return rows_of(values, p.queries, p.heads, p.head_dim, batch, head, first, n);
          };
          const Rows q = of_head(in.q), o = of_head(in.o), dout = of_head(in.dout);
          const Rows lse = rows_of(in.lse, p.queries, p.heads, 1, batch, head, first, n);
          const Pairs x =
              pairs_of(scale * (q * k), scale * (q.cwiseAbs() * k.cwiseAbs()), lse, dout * v,
                       dout.cwiseAbs() * v.cwiseAbs(), dout.cwiseProduct(o).rowwise().sum(),
                       dout.cwiseProduct(o).cwiseAbs().rowwise().sum());
          add(x.dscore, x.dscore_error, q, &dk, &dk_bound, &dk_magnitude);
          add(x.weight, x.weight_error, dout, &dv, &dv_bound, &dv_magnitude);
        }
        finish(&expected.dk, at, scale, n * group, dk, dk_bound, dk_magnitude);
        finish(&expected.dv, at, 1, n * group, dv, dv_bound, dv_magnitude);
      });
  return expected;
}

}  // namespace flash_attention
