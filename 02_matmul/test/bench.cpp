// Chapter 02 for ./tour and the benchmark.
#include <algorithm>

#include "cublas.hpp"
#include "harness/inputs.hpp"
#include "harness/parallel.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "reference.hpp"

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

class Multiplication : public tile::LadderWorkload<Ladder> {
 public:
  Multiplication(const Problem& p, std::string_view direction, bool with_bias)
      : LadderWorkload(kLadder, p), direction_(direction), rows_(rows_to_check(p)) {
    const Values a = tile::uniform(p.m * p.k, p.type, 1, -1, 1);
    const Values b = tile::uniform(p.k * p.n, p.type, 2, -1, 1);
    const Values bias = tile::uniform(with_bias ? p.n : 0, type_of_c(p), 3, -1, 1);
    place(buffers_.a,
          tensors_.input("a", p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, a));
    place(buffers_.b,
          tensors_.input("b", p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, b));
    place(buffers_.c, tensors_.output("c", type_of_c(p), p.m, p.n, rows_,
                                      reference_rows(p, rows_, a, b, bias)));
    if (with_bias) place(buffers_.bias, tensors_.input("bias", type_of_c(p), 1, p.n, bias));
    for (const Ladder::Step& step : kSteps) {
      if (!step.types.contains(p.type)) continue;
      buffers_.workspace_bytes = std::max(buffers_.workspace_bytes, workspace_bytes_of(step, p));
    }
    if (buffers_.workspace_bytes > 0) {
      buffers_.workspace = tensors_.workspace(buffers_.workspace_bytes);
    }
  }

  std::string name() const override {
    const Problem& p = problem_;
    std::string text(tile::name(p.type));
    text.append(" m").append(std::to_string(p.m));
    text.append(" n").append(std::to_string(p.n));
    text.append(" k").append(std::to_string(p.k));
    return text.append(p.transpose_a ? " A^T" : "")
        .append(p.transpose_b ? " B^T" : "")
        .append(buffers_.bias ? " bias" : "")
        .append(p.activation == Activation::gelu ? " gelu" : "");
  }
  std::string_view direction() const override { return direction_; }
  double bytes() const override {
    const Problem& p = problem_;
    const auto bytes = [](std::int64_t elements, tile::DType type) {
      return static_cast<double>(elements) * static_cast<double>(tile::size_bytes(type));
    };
    return bytes(p.m * p.k + p.k * p.n, p.type) +
           bytes(p.m * p.n + (buffers_.bias ? p.n : std::int64_t{0}), type_of_c(p));
  }
  double operations() const override {
    return 2.0 * static_cast<double>(problem_.m) * static_cast<double>(problem_.n) *
           static_cast<double>(problem_.k);
  }
  // Hopper has no mma.sync of 8 bits: its emulation is no ceiling.
  tile::DType multiplied_type() const override { return type_of_c(problem_); }
  // cuBLAS takes 8 bits by another interface; harness/peers calls it through PyTorch.
  std::vector<tile::Peer> peers() override {
    if (problem_.type == tile::DType::e4m3) return {};
    return {cublas(problem_, buffers_)};
  }
  std::string checked_part() const override {
    return tile::checked_text(std::ssize(rows_), problem_.m, "row");
  }

 private:
  std::string_view direction_;
  std::vector<std::int64_t> rows_;  // that check() compares
};

using Size = std::vector<std::int64_t>;  // m, n and k of the forward pass

std::unique_ptr<tile::Workload> make(const Problem& p, std::string_view direction,
                                     bool with_bias = false) {
  tile::require_countable("m", p.m, "k", p.k);
  tile::require_countable("k", p.k, "n", p.n);
  tile::require_countable("m", p.m, "n", p.n);
  return std::make_unique<Multiplication>(p, direction, with_bias);
}

std::unique_ptr<tile::Workload> make_forward(const Size& size, tile::DType type) {
  const bool transpose_b = type == tile::DType::e4m3;  // as it must be
  return make({type, size.at(0), size.at(1), size.at(2), false, transpose_b}, "forward");
}

// fp32 and bf16 stand for the others, whose kernels differ in the type alone: the benchmark takes
// long enough.
bool is_measured_backward(tile::DType type) {
  return type == tile::DType::fp32 || type == tile::DType::bf16;
}

// A layer of a neural network, where a step can fuse what follows the product.
std::unique_ptr<tile::Workload> make_layer(const Size& size, tile::DType type) {
  if (type != tile::DType::bf16) return nullptr;
  Problem p{type, size.at(0), size.at(1), size.at(2)};
  p.activation = Activation::gelu;
  return make(p, "forward", true);
}

// dA = dC Bᵀ is m x k, with n products in each sum.
std::unique_ptr<tile::Workload> make_da(const Size& size, tile::DType type) {
  if (!is_measured_backward(type)) return nullptr;
  return make({type, size.at(0), size.at(2), size.at(1), false, true}, "backward");
}

// dB = Aᵀ dC is k x n, with m products in each sum.
std::unique_ptr<tile::Workload> make_db(const Size& size, tile::DType type) {
  if (!is_measured_backward(type)) return nullptr;
  return make({type, size.at(2), size.at(1), size.at(0), true, false}, "backward");
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {{.name = kLadder.name,
                 .kernels = kLadder.kernels,
                 .steps = tile::infos_of(kLadder),
                 .extents = {"m", "n", "k"},
                 .size_hint = "op(A) is m x k, op(B) is k x n, C is m x n",
                 .make = make_forward,
                 .benchmark_sizes = {{2048, 2048, 2048}, {4096, 4096, 4096}, {8192, 8192, 8192}},
                 .benchmark_types = {tile::DType::fp32, tile::DType::tf32, tile::DType::fp16,
                                     tile::DType::bf16, tile::DType::e4m3},
                 .make_for_benchmark = {make_da, make_db, make_layer},
                 // So many that step warp_tiles takes its large tiles on the CPU device's card.
                 // The second has few tiles of 128 x 128. Two steps are seldom the fastest: with
                 // many tiles and a short k, and with few tiles and a long one.
                 .whole_tiles = {{{384, 512, 32}, {128, 256, 32}},
                                 {{128, 256, 16}, {128, 128, 0}},
                                 {{1280, 1280, 8}, {64, 128, 0}, "stream_k"},
                                 {{128, 128, 3584}, {128, 128, 0}, "split_k"}}}}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace matmul
