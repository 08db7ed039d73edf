// Chapter 02 for ./tour and the benchmark.
#include <algorithm>
#include <stdexcept>

#include "cublas.hpp"
#include "harness/buffer.hpp"
#include "harness/chapter.hpp"
#include "tile/host/cuda_check.hpp"
#include "harness/inputs.hpp"
#include "harness/parallel.hpp"
#include "harness/sample.hpp"
#include "tile/host/text.hpp"
#include "matmul.hpp"

namespace matmul {
namespace {

using Values = std::vector<double>;

// The reference of one product of 1,024 cubed takes a second or two. Of a larger one it computes
// some rows.
constexpr double kProductsToCheckAll = 0x1p30;

std::vector<std::int64_t> rows_to_check(const Problem& p) {
  const double products =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  return products > kProductsToCheckAll ? tile::sample_rows(p.m) : tile::all_rows(p.m);
}

/// These rows of the reference, of shape {number of them, n}. All cores compute columns of it.
tile::Expected reference_rows(const Problem& p, const std::vector<std::int64_t>& rows,
                              const Values& a, const Values& b, const Values& bias) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  Values a_rows;  // [rows][k]: these rows of op(A)
  a_rows.reserve(rows.size() * k);
  for (const std::int64_t row : rows) {
    const auto i = static_cast<std::size_t>(row);
    for (std::size_t l = 0; l < k; ++l) {
      a_rows.push_back(p.transpose_a ? a[l * m + i] : a[i * k + l]);
    }
  }
  tile::Expected expected{{std::ssize(rows), p.n}, Values(rows.size() * n), {}};
  expected.bound.resize(expected.value.size());
  constexpr std::size_t kColumnsForAThread = 64;
  tile::in_parts(n, kColumnsForAThread, [&](std::size_t begin, std::size_t end) {
    const std::size_t columns = end - begin;
    Problem part{p.type, std::ssize(rows), static_cast<std::int64_t>(columns), p.k,
                 false,  p.transpose_b};
    part.activation = p.activation;
    const auto bias_part =
        std::span(bias).subspan(bias.empty() ? 0 : begin, bias.empty() ? 0 : columns);
    Values copy;
    std::span<const double> b_part;  // these columns of op(B), stored as B is
    if (p.transpose_b) {
      b_part = std::span(b).subspan(begin * k, columns * k);
    } else {
      copy.reserve(k * columns);
      for (std::size_t l = 0; l < k; ++l) {
        copy.insert(copy.end(), &b[l * n + begin], &b[l * n + begin] + columns);
      }
      b_part = copy;
    }
    const tile::Expected found = reference(part, a_rows, b_part, {}, true, bias_part);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(&found.value[i * columns], columns, &expected.value[i * n + begin]);
      std::copy_n(&found.bound[i * columns], columns, &expected.bound[i * n + begin]);
    }
  });
  return expected;
}

class Product : public tile::Workload {
 public:
  Product(const Problem& problem, std::string_view direction, const Values& a, const Values& b,
          const Values& bias)
      : problem_(problem),
        direction_(direction),
        rows_(rows_to_check(problem)),
        expected_(reference_rows(problem, rows_, a, b, bias)),
        a_(tile::DeviceBuffer::input("a", a_layout(problem), a)),
        b_(tile::DeviceBuffer::input("b", b_layout(problem), b)),
        c_(tile::DeviceBuffer::output("c", c_layout(problem), tile::Poison::unwritten_nan)),
        bias_(tile::DeviceBuffer::input("bias", tile::vector_layout(problem.type, std::ssize(bias)),
                                        bias)) {}

  static std::unique_ptr<tile::Workload> make(Problem p, std::string_view direction,
                                              bool with_bias = false) {
    // A row of no elements still has a distance to the next.
    for (std::int64_t* ld : {&p.lda, &p.ldb, &p.ldc}) *ld = std::max<std::int64_t>(1, *ld);
    const Values a = tile::uniform(a_layout(p).count(), p.type, 1, -1, 1);
    const Values b = tile::uniform(b_layout(p).count(), p.type, 2, -1, 1);
    const Values bias = tile::uniform(with_bias ? p.n : 0, p.type, 3, -1, 1);
    return std::make_unique<Product>(p, direction, a, b, bias);
  }

  std::string name() const override {
    std::string text(tile::name(problem_.type));
    text.append(" m").append(std::to_string(problem_.m));
    text.append(" n").append(std::to_string(problem_.n));
    text.append(" k").append(std::to_string(problem_.k));
    return text.append(problem_.transpose_a ? " A^T" : "")
        .append(problem_.transpose_b ? " B^T" : "")
        .append(bias_.layout().count() > 0 ? " bias" : "")
        .append(problem_.activation == Activation::gelu ? " gelu" : "");
  }
  std::string_view direction() const override { return direction_; }
  double bytes() const override {
    const std::int64_t elements =
        a_.layout().count() + b_.layout().count() + c_.layout().count() + bias_.layout().count();
    return static_cast<double>(elements) * static_cast<double>(tile::size_bytes(problem_.type));
  }
  double operations() const override {
    return 2.0 * static_cast<double>(problem_.m) * static_cast<double>(problem_.n) *
           static_cast<double>(problem_.k);
  }
  tile::DType multiplied_type() const override { return problem_.type; }
  tile::Status launch(std::size_t step, void* stream) override {
    return kSteps[step].launch(problem_, buffers(), stream);
  }
  std::vector<tile::Peer> peers() override { return {cublas(problem_, buffers())}; }
  tile::Comparison check() override {
    tile::Comparison result;
    Values got;
    tile::Status status = tile::synchronize_status(nullptr);
    if (status.ok()) {
      status = tile::download_rows(c_.raw(), problem_.type, problem_.n, rows_, &got);
    }
    if (!status.ok()) {
      result.message = status.message;
      return result;
    }
    c_.restore();
    if (checks_all()) return tile::compare("c", got, expected_);
    return tile::compare_rows("c", rows_, got, expected_);
  }
  std::string checked_part() const override {
    if (checks_all()) return {};
    return tile::grouped(std::ssize(rows_)) + " of " + tile::counted(problem_.m, "row");
  }

 private:
  static tile::Layout a_layout(const Problem& p) {
    return tile::matrix_layout(p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda);
  }
  static tile::Layout b_layout(const Problem& p) {
    return tile::matrix_layout(p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb);
  }
  static tile::Layout c_layout(const Problem& p) {
    return tile::matrix_layout(p.type, p.m, p.n, p.ldc);
  }
  Buffers buffers() const {
    return {a_.raw(), b_.raw(), c_.raw(), bias_.layout().count() > 0 ? bias_.raw() : nullptr};
  }
  bool checks_all() const { return std::ssize(rows_) == problem_.m; }

  Problem problem_;
  std::string_view direction_;
  std::vector<std::int64_t> rows_;  // that check() compares
  tile::Expected expected_;         // of these rows
  tile::DeviceBuffer a_, b_, c_, bias_;
};

using Size = std::vector<std::int64_t>;  // m, n and k of the forward pass

void require_countable(const Size& size) {
  constexpr const char* kNames[] = {"m", "n", "k"};
  const auto largest = static_cast<std::size_t>(std::ranges::max_element(size) - size.begin());
  for (std::size_t i = 0; i < 3; ++i) {
    std::int64_t bytes = 0;
    if (i == largest || (!__builtin_mul_overflow(size[i], size[largest], &bytes) &&
                         !__builtin_mul_overflow(bytes, sizeof(double), &bytes))) {
      continue;
    }
    throw std::invalid_argument(
        tile::invalid_argument(kNames[largest],
                               std::to_string(size[largest]) + " makes a matrix too large")
            .message);
  }
}

std::unique_ptr<tile::Workload> make_forward(const Size& size, tile::DType type) {
  require_countable(size);
  return Product::make({type, size.at(0), size.at(1), size.at(2)}, "forward");
}

// fp32 and bf16 stand for the others, whose kernels differ in the type alone: the benchmark takes
// long enough.
bool is_measured_backward(tile::DType type) {
  return type == tile::DType::fp32 || type == tile::DType::bf16;
}

// A layer of a neural network, where a step can fuse what follows the product.
std::unique_ptr<tile::Workload> make_layer(const Size& size, tile::DType type) {
  require_countable(size);
  if (type != tile::DType::bf16) return nullptr;
  Problem p{type, size.at(0), size.at(1), size.at(2)};
  p.activation = Activation::gelu;
  return Product::make(p, "forward", true);
}

// dA = dC Bᵀ is m x k, with n products in each sum.
std::unique_ptr<tile::Workload> make_da(const Size& size, tile::DType type) {
  require_countable(size);
  if (!is_measured_backward(type)) return nullptr;
  return Product::make({type, size.at(0), size.at(2), size.at(1), false, true}, "backward");
}

// dB = Aᵀ dC is k x n, with m products in each sum.
std::unique_ptr<tile::Workload> make_db(const Size& size, tile::DType type) {
  require_countable(size);
  if (!is_measured_backward(type)) return nullptr;
  return Product::make({type, size.at(2), size.at(1), size.at(0), true, false}, "backward");
}

// Those that a step has.
std::vector<tile::DType> benchmark_types() {
  using tile::DType;
  std::vector<DType> types;
  for (const DType type : {DType::fp32, DType::tf32, DType::fp16, DType::bf16}) {
    if (std::ranges::any_of(kSteps, [type](const Step& s) { return s.types.contains(type); })) {
      types.push_back(type);
    }
  }
  return types;
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .next =
        "read 02_matmul/README.md; then `./tour run 02 4 --size 300x200x100` and "
        "`./tour test 02`",
    .steps = tile::infos_of(kSteps),
    .extents = {"m", "n", "k"},
    .size_on_cpu = {130, 150, 70},  // no multiples of a tile
    .size_on_gpu = {4096, 4096, 4096},
    .benchmark_sizes = {{2048, 2048, 2048}, {4096, 4096, 4096}, {8192, 8192, 8192}},
    .benchmark_types = benchmark_types(),
    .make = {make_forward},
    .make_for_benchmark = {make_da, make_db, make_layer}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace matmul
