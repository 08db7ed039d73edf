// What the tests of chapter 04 share: problems, their inputs, and how a step is run and checked.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/buffer.hpp"
#include "harness/convert.hpp"
#include "harness/inputs.hpp"
#include "harness/selection.hpp"
#include "harness/test_main.hpp"
#include "reference.hpp"
#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace layernorm {

using tile::Comparison;
using tile::DeviceBuffer;
using tile::DType;
using tile::Expected;
using tile::Layout;
using tile::OwnKernel;
using tile::Poison;
using tile::Status;
using tile::TestedStep;
using Values = std::vector<double>;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr Norm kNorms[] = {Norm::layer, Norm::rms};
inline constexpr DType kTypesOfSteps[] = {DType::fp32, DType::fp16, DType::bf16};

// ---- A problem, its inputs, and where they lie ----

template <class Problem>
inline constexpr bool kIsForward = std::is_same_v<Problem, ForwardProblem>;

template <class Ladder>
typename Ladder::Problem problem_for(const TestedStep<Ladder>&, DType type, std::int64_t rows,
                                     std::int64_t cols, Norm norm = Norm::layer) {
  return {type, rows, cols, norm};
}

/// The forward problem whose statistics a backward problem is given.
inline ForwardProblem forward_of(const BackwardProblem& p, float eps = 1e-5f) {
  return {p.type, p.rows, p.cols, p.norm, eps};
}

inline ForwardProblem with_eps(ForwardProblem p, float eps) {
  p.eps = eps;
  return p;
}

// Backward, step split runs what no cluster has. Here it takes all rows that its kernels can.
inline const auto kTestedBackward = [] {
  auto steps = std::to_array(kBackward);
  for (BackwardLadder::Step& step : steps) {
    if (step.name != "split") continue;
    step.takes = [](const BackwardProblem& p, const BackwardBuffers&, const tile::Device&) {
      return has_pieces(p) ? Status{} : tile::unsupported("cols", "are too few");
    };
  }
  return steps;
}();
inline const BackwardLadder kTestedBackwardLadder{.name = kBackwardLadder.name,
                                                  .kernels = kBackwardLadder.kernels,
                                                  .steps = kTestedBackward,
                                                  .validate = kBackwardLadder.validate,
                                                  .is_empty = kBackwardLadder.is_empty};

/// Lengths for the step to run at: these, or for the steps of long rows some that are.
template <class Ladder>
std::vector<std::int64_t> lengths_for(const TestedStep<Ladder>& step, DType type,
                                      std::initializer_list<std::int64_t> lengths) {
  const bool is_fp32 = tile::size_bytes(type) == 4;
  if (step.name == "split") {  // forward, more than registers hold; backward, two pieces for dx
    if (kIsForward<typename Ladder::Problem>) return {9002};
    return {is_fp32 ? 4106 : 8202};
  }
  if (kIsForward<typename Ladder::Problem> && step.name == "persistent") {
    return {is_fp32 ? 32'777 : 32'785};
  }
  if (step.name != "cluster" && step.name != "exchange") return lengths;
  if (kIsForward<typename Ladder::Problem>) return {32'776};
  // On the CPU device one of them: whole chunks of fp32, and rows that begin anywhere of 2 bytes.
  if (tile::device().simulated) return {is_fp32 ? 12'296 : 16'405};
  if (is_fp32) return {12'296, 12'299};
  return {16'392, 16'405};
}

/// So many rows, or of long ones a few.
template <class Ladder>
std::int64_t rows_for(const TestedStep<Ladder>& step, std::int64_t rows) {
  const bool is_long = step.name == "cluster" || step.name == "split" || step.name == "exchange" ||
                       (kIsForward<typename Ladder::Problem> && step.name == "persistent");
  return is_long ? std::min<std::int64_t>(rows, 9) : rows;
}

/// Of each matrix the elements between two rows.
struct Paddings {
  std::int64_t x = 0, y = 0, dy = 0, dx = 0;
};

inline ForwardProblem padded(ForwardProblem p, Paddings padding) {
  p.ldx = p.cols + padding.x;
  p.ldy = p.cols + padding.y;
  return p;
}
inline BackwardProblem padded(BackwardProblem p, Paddings padding) {
  p.ldx = p.cols + padding.x;
  p.lddy = p.cols + padding.dy;
  p.lddx = p.cols + padding.dx;
  return p;
}

/// Of each array the elements from a 256-byte boundary to the first.
struct Offsets {
  std::int64_t x = 0, gamma = 0, beta = 0, y = 0, mean = 0, rstd = 0, dy = 0, dx = 0, dgamma = 0,
               dbeta = 0;
};

/// Where the output lies.
enum class OutputAt { apart, on_x, on_dy };

/// What a call leaves out, and where its arrays lie. RMSNorm has no mean and no dbeta in any case.
struct Call {
  bool mean = true, rstd = true;     // written by a forward pass
  bool dgamma = true, dbeta = true;  // written by a backward pass
  OutputAt output = OutputAt::apart;
  Offsets offsets = {};
};

/// Whether the step's own kernel runs the problem, with arrays where the call has them.
template <class Ladder>
bool takes(const TestedStep<Ladder>& step, const typename Ladder::Problem& p,
           const Call& call = {}) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  auto at = [element](std::int64_t offset, std::uintptr_t array = 3) {
    return reinterpret_cast<void*>(4096 * array + static_cast<std::uintptr_t>(offset * element));
  };
  const Offsets& o = call.offsets;
  typename Ladder::Buffers b;
  b.x = at(o.x, 1);
  b.gamma = at(o.gamma);
  void* const output = call.output == OutputAt::on_x          ? at(o.x, 1)
                       : call.output == OutputAt::on_dy       ? at(o.dy, 2)
                       : kIsForward<typename Ladder::Problem> ? at(o.y)
                                                              : at(o.dx);
  if constexpr (kIsForward<typename Ladder::Problem>) {
    b.beta = at(o.beta);
    b.y = output;
    b.workspace_bytes = workspace_bytes_of(step, p);
  } else {
    b.dy = at(o.dy, 2);
    b.dx = output;
  }
  return tile::is_taken(step, p, b);
}

/// Chooses among the cases that a step takes.
class Cases {
 public:
  template <class Step>
  Cases(const Step& step, DType type) : selection_(step, type) {}

  template <class Ladder>
  bool take(const TestedStep<Ladder>& step, const typename Ladder::Problem& p,
            const Call& call = {}) {
    return takes(step, p, call) && selection_.takes_next();
  }

 private:
  tile::Selection selection_;
};

/// The arrays without padding. An empty gamma or beta is a null pointer. Forward uses the first
/// three, backward all but beta.
struct Inputs {
  Values x, gamma = {}, beta = {}, mean = {}, rstd = {}, dy = {};
};

/// Gives backward what a forward pass finds, and rounds, in x. Forward needs none.
inline Inputs with_statistics(const BackwardProblem& p, Inputs in, float eps = 1e-5f) {
  const ForwardReference found = reference(forward_of(p, eps), in.x, {}, {});
  in.mean = tile::rounded(found.mean.value, DType::fp32);
  in.rstd = tile::rounded(found.rstd.value, DType::fp32);
  return in;
}
inline Inputs with_statistics(const ForwardProblem&, Inputs in, float = 0) { return in; }

/// Normal x and dy.
inline Inputs normal(const ForwardProblem& p, bool gamma = true, bool beta = true) {
  Inputs in{tile::normal(p.rows * p.cols, p.type, 1)};
  if (gamma) in.gamma = tile::uniform(p.cols, p.type, 2, -2, 2);
  if (beta && p.norm == Norm::layer) in.beta = tile::uniform(p.cols, p.type, 3, -2, 2);
  return in;
}
inline Inputs normal(const BackwardProblem& p, bool gamma = true, bool = true) {
  Inputs in{tile::normal(p.rows * p.cols, p.type, 1)};
  if (gamma) in.gamma = tile::uniform(p.cols, p.type, 2, -2, 2);
  in.dy = tile::normal(p.rows * p.cols, p.type, 4);
  return with_statistics(p, std::move(in));
}

template <class Problem>
std::string describe(const Problem& p, const Inputs& in, const Call& call) {
  std::string text;
  auto add = [&text](const char* name, std::int64_t value) {
    text.append(text.empty() ? "" : " ").append(name).append(" ").append(std::to_string(value));
  };
  add("rows", p.rows), add("cols", p.cols), add("ldx", p.ldx);
  if constexpr (kIsForward<Problem>) {
    add("ldy", p.ldy);
    text.append(" eps ").append(std::to_string(p.eps));
    text.append(in.beta.empty() ? ", no beta" : "");
    text.append(call.mean ? "" : ", no mean").append(call.rstd ? "" : ", no rstd");
  } else {
    add("lddy", p.lddy), add("lddx", p.lddx);
    text.append(call.dgamma ? "" : ", no dgamma").append(call.dbeta ? "" : ", no dbeta");
  }
  text.append(p.norm == Norm::layer ? ", layer" : ", rms");
  text.append(in.gamma.empty() ? ", no gamma" : "");
  if (call.output != OutputAt::apart) {
    text.append(call.output == OutputAt::on_x ? ", on x" : ", on dy");
  }
  text.append(", offsets");
  const Offsets& o = call.offsets;
  for (const std::int64_t offset :
       {o.x, o.gamma, o.beta, o.y, o.mean, o.rstd, o.dy, o.dx, o.dgamma, o.dbeta}) {
    text.append(" ").append(std::to_string(offset));
  }
  return text;
}

// ---- Running a step ----

/// What a step wrote. `matrix` is y or dx.
struct Outputs {
  Values matrix, mean, rstd, dgamma, dbeta;
};

/// A workspace with canaries. It is much larger than the problems of most tests, and its content is
/// not checked; so it does not pass through the host as a DeviceBuffer does.
class Workspace {
 public:
  /// Every byte of it is `fill`: 0xff makes NaN, 0x4b a large finite number.
  Workspace(std::int64_t bytes, int fill)
      : bytes_(static_cast<std::size_t>(bytes)),
        fill_(fill),
        memory_("workspace", bytes_ + 2 * kCanary, true) {
    REQUIRE(cudaMemset(memory_.get(), kCanaryByte, bytes_ + 2 * kCanary) == cudaSuccess);
    REQUIRE(cudaMemset(raw(), fill, bytes_) == cudaSuccess);
    const auto floats = static_cast<std::int64_t>(bytes_ / 4);
    tile::name_array({"workspace", raw(), 4, 1, floats, floats, false});
  }

  void* raw() const { return memory_.get() + kCanary; }

  /// Whether the canaries are intact.
  Status check() const {
    TILE_TRY(check(0, kCanary, kCanaryByte, "written before its start"));
    return check(kCanary + bytes_, kCanary, kCanaryByte, "written past its end");
  }
  /// Whether nothing was written where the sums begin.
  Status check_unchanged() const {
    return check(kCanary, std::min<std::size_t>(bytes_, 64), fill_, "written");
  }

 private:
  static constexpr std::size_t kCanary = 32 * 1024;
  static constexpr int kCanaryByte = 0x3b;  // small numbers: a NaN may hide what is added to it

  Status check(std::size_t begin, std::size_t count, int wanted, const char* what) const {
    std::vector<std::byte> bytes(count);
    TILE_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(bytes.data(), memory_.get() + begin, count, cudaMemcpyDeviceToHost));
    for (const std::byte byte : bytes) {
      if (byte != static_cast<std::byte>(wanted)) return tile::device_error("workspace", what);
    }
    return {};
  }

  std::size_t bytes_;
  int fill_;
  tile::DeviceMemory memory_;
};

/// The memory of a call: what it is given, and nothing else.
template <class Problem>
class Arrays {
 public:
  using Buffers = std::conditional_t<kIsForward<Problem>, ForwardBuffers, BackwardBuffers>;

  Arrays(const Problem& p, const Inputs& in, const Call& call, Poison poison)
      : p_(p), call_(call), poison_(poison) {
    const bool layer = p.norm == Norm::layer;
    const Offsets& at = call.offsets;
    buffers_.x = matrix(x_, "x", in.x, p.ldx, at.x, call.output == OutputAt::on_x);
    buffers_.gamma = input(gamma_, "gamma", p.type, in.gamma, at.gamma);
    if constexpr (kIsForward<Problem>) {
      buffers_.beta = input(beta_, "beta", p.type, in.beta, at.beta);
      buffers_.y = result("y", p.ldy, at.y);
      auto statistic = [&](Buffer& buffer, const char* name, std::int64_t offset) {
        return static_cast<float*>(output(buffer, name, DType::fp32, p.rows, offset));
      };
      if (call.mean && layer) buffers_.mean = statistic(mean_, "mean", at.mean);
      if (call.rstd) buffers_.rstd = statistic(rstd_, "rstd", at.rstd);
      buffers_.workspace_bytes = split_bytes(p);
    } else {
      auto statistic = [](Buffer& buffer, const char* name, const Values& values,
                          std::int64_t offset) {
        return static_cast<const float*>(input(buffer, name, DType::fp32, values, offset));
      };
      if (layer) buffers_.mean = statistic(mean_, "mean", in.mean, at.mean);
      buffers_.rstd = statistic(rstd_, "rstd", in.rstd, at.rstd);
      buffers_.dy = matrix(dy_, "dy", in.dy, p.lddy, at.dy, call.output == OutputAt::on_dy);
      buffers_.dx = result("dx", p.lddx, at.dx);
      if (call.dgamma) buffers_.dgamma = output(dgamma_, "dgamma", p.type, p.cols, at.dgamma);
      if (call.dbeta && layer) buffers_.dbeta = output(dbeta_, "dbeta", p.type, p.cols, at.dbeta);
    }
    std::int64_t bytes = 0;
    if constexpr (kIsForward<Problem>) {
      bytes = buffers_.workspace_bytes;
    } else {
      bytes = workspace_bytes(p);
    }
    if (bytes > 0) {
      workspace_.emplace(bytes, poison == Poison::unwritten_nan ? 0xff : 0x4b);
      buffers_.workspace = workspace_->raw();
    }
  }

  const Buffers& buffers() const { return buffers_; }

  /// What was asked for; the rest stays empty.
  Outputs download() const {
    Outputs out;
    out.matrix = result().download();
    if (kIsForward<Problem> && mean_) out.mean = mean_->download();
    if (kIsForward<Problem> && rstd_) out.rstd = rstd_->download();
    if (dgamma_) out.dgamma = dgamma_->download();
    if (dbeta_) out.dbeta = dbeta_->download();
    return out;
  }
  std::vector<std::byte> result_bytes() const { return result().download_bytes(); }
  /// Of dgamma and dbeta.
  std::vector<std::byte> sums_bytes() const {
    std::vector<std::byte> bytes;
    for (const auto* sum : {&dgamma_, &dbeta_}) {
      if (!*sum) continue;
      const std::vector<std::byte> more = (*sum)->download_bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  }

  /// The guards around everything, and inputs as they were.
  void check_intact() const {
    check_each([](const DeviceBuffer& buffer) { return buffer.check(); });
    if (!workspace_) return;
    const Status intact = workspace_->check();
    CHECK_MESSAGE(intact.ok(), intact.message);
  }
  /// That a call wrote nothing.
  void check_untouched() const {
    check_each([](const DeviceBuffer& buffer) { return buffer.check_unchanged(); });
    if (!workspace_) return;
    const Status unchanged = workspace_->check_unchanged();
    CHECK_MESSAGE(unchanged.ok(), unchanged.message);
  }

 private:
  using Buffer = std::optional<DeviceBuffer>;

  template <class Check>
  void check_each(Check check) const {
    for (const Buffer* buffer :
         {&x_, &gamma_, &beta_, &dy_, &mean_, &rstd_, &out_, &dgamma_, &dbeta_}) {
      if (!*buffer) continue;
      const Status status = check(**buffer);
      CHECK_MESSAGE(status.ok(), status.message);
    }
  }

  const DeviceBuffer& result() const {
    return out_ ? *out_ : call_.output == OutputAt::on_x ? *x_ : *dy_;
  }

  void* matrix(Buffer& buffer, const char* name, const Values& values, std::int64_t ld,
               std::int64_t offset, bool written) {
    const Layout layout = tile::matrix_layout(p_.type, p_.rows, p_.cols, ld, offset);
    buffer = written ? DeviceBuffer::in_out(name, layout, values)
                     : DeviceBuffer::input(name, layout, values);
    return buffer->raw();
  }
  // y or dx, which may be an input.
  void* result(const char* name, std::int64_t ld, std::int64_t offset) {
    if (call_.output != OutputAt::apart) return result().raw();
    out_ = DeviceBuffer::output(name, tile::matrix_layout(p_.type, p_.rows, p_.cols, ld, offset),
                                poison_);
    return out_->raw();
  }
  // Null if there are no values.
  static void* input(Buffer& buffer, const char* name, DType type, const Values& values,
                     std::int64_t offset) {
    if (values.empty()) return nullptr;
    buffer =
        DeviceBuffer::input(name, tile::vector_layout(type, std::ssize(values), offset), values);
    return buffer->raw();
  }
  void* output(Buffer& buffer, const char* name, DType type, std::int64_t count,
               std::int64_t offset) const {
    buffer = DeviceBuffer::output(name, tile::vector_layout(type, count, offset), poison_);
    return buffer->raw();
  }

  Problem p_;
  Call call_;
  Poison poison_;
  // mean and rstd are outputs of a forward pass and inputs of a backward pass.
  Buffer x_, gamma_, beta_, dy_, mean_, rstd_, out_, dgamma_, dbeta_;
  std::optional<Workspace> workspace_;
  Buffers buffers_;
};

template <class Ladder>
Outputs run(const TestedStep<Ladder>& step, const typename Ladder::Problem& p, const Inputs& in,
            const Call& call = {}, Poison poison = Poison::unwritten_nan) {
  Arrays<typename Ladder::Problem> arrays(p, in, call, poison);
  const Status done = tile::run_step(step, p, arrays.buffers());
  REQUIRE_MESSAGE(done.ok(), done.message);
  arrays.check_intact();
  return arrays.download();
}

inline void check_values(const char* name, const Values& got, const Expected& expected) {
  const Comparison comparison = tile::compare(name, got, expected);
  CHECK_MESSAGE(comparison.ok(), comparison.message);
}

/// The mean of a row with an infinity is infinite or NaN: it depends on how it is computed.
inline void forgive_infinite_means(Values& got, const Expected& expected) {
  for (std::size_t i = 0; i < got.size() && i < expected.value.size(); ++i) {
    if (!std::isfinite(expected.value[i]) && !std::isfinite(got[i])) got[i] = expected.value[i];
  }
}

inline void check_results(const TestedStep<ForwardLadder>& step, const ForwardProblem& p,
                          const Inputs& in, const Call& call) {
  const ForwardReference expected = reference(p, in.x, in.gamma, in.beta);
  for (const Poison poison : tile::poisons_for({&expected.y, &expected.mean, &expected.rstd})) {
    Outputs out = run(step, p, in, call, poison);
    check_values("y", out.matrix, expected.y);
    forgive_infinite_means(out.mean, expected.mean);
    if (call.mean) check_values("mean", out.mean, expected.mean);
    if (call.rstd) check_values("rstd", out.rstd, expected.rstd);
  }
}
inline void check_results(const TestedStep<BackwardLadder>& step, const BackwardProblem& p,
                          const Inputs& in, const Call& call) {
  const BackwardReference expected = reference(p, in.x, in.gamma, in.mean, in.rstd, in.dy);
  for (const Poison poison : tile::poisons_for({&expected.dx, &expected.dgamma, &expected.dbeta})) {
    const Outputs out = run(step, p, in, call, poison);
    check_values("dx", out.matrix, expected.dx);
    if (call.dgamma) check_values("dgamma", out.dgamma, expected.dgamma);
    if (call.dbeta) check_values("dbeta", out.dbeta, expected.dbeta);
  }
}

// Runs the step on these inputs, with poison in its outputs and its workspace, and checks the
// results and the buffers.
template <class Ladder>
void check_step(const TestedStep<Ladder>& step, const typename Ladder::Problem& p, const Inputs& in,
                const Call& call = {}) {
  CAPTURE(step.name);
  const std::string type(tile::name(p.type));
  CAPTURE(type);
  const std::string problem = describe(p, in, call);
  CAPTURE(problem);
  check_results(step, p, in, call);
}

/// Calls `check(step, type)` for every step to test of both ladders, and each of its types.
template <class Check>
void for_each_step(Check check, OwnKernel own = OwnKernel::must_run,
                   tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kForwardLadder, check, own, types);
  tile::for_each_step(kTestedBackwardLadder, check, own, types);
}

}  // namespace layernorm
