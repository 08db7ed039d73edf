// Chapter 07 for ./tour and the benchmark.
#include "harness/attention_workload.hpp"
#include "ladders.hpp"
#include "windowed/reference.hpp"

namespace windowed_rope {
namespace {

using Numbers = std::vector<std::int64_t>;

template <class Call>
Call call_of(const Numbers& n, tile::DType type) {
  tile::require_countable("batch", n.at(0), "heads", n.at(1));
  tile::require_countable("queries", n.at(3), "keys", n.at(4));
  Call p = tile::attention_call<Call>(type, {n[0], n[1], n[2], n[3], n[4], n.at(5)});
  p.window = n.at(6);
  if (n.at(7) != 0) p.right = 0;
  return p;
}
const char* mask_of(const Numbers& n) { return n.at(7) != 0 ? "causal" : "full"; }

std::unique_ptr<tile::Workload> make_forward(const Numbers& n, tile::DType type) {
  auto workload = std::make_unique<tile::AttentionForwardWorkload>(
      kForwardLadder, call_of<AttentionForward>(n, type), true, mask_of(n));
  workload->make_tensors([](const AttentionForward& p, const tile::AttentionRows& in, auto rows) {
    return reference(p, {.q = in.q, .k = in.k, .v = in.v, .far = {in.q_far, in.k_far}}, rows);
  });
  return workload;
}

std::unique_ptr<tile::Workload> make_backward(const Numbers& n, tile::DType type) {
  auto workload = std::make_unique<tile::AttentionBackwardWorkload>(
      kBackwardLadder, call_of<AttentionBackward>(n, type), true, mask_of(n));
  workload->make_tensors(
      kForwardLadder,
      [](const AttentionBackward& p, const tile::AttentionRows& in, auto queries, auto keys) {
        return reference(p,
                         {.q = in.q,
                          .k = in.k,
                          .v = in.v,
                          .o = in.o,
                          .lse = in.lse,
                          .dout = in.dout,
                          .far = {in.q_far, in.k_far}},
                         queries, keys);
      });
  return workload;
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {
      .name = ladder.name,
      .kernels = ladder.kernels,
      .steps = tile::infos_of(ladder),
      .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window", "causal"},
      .size_hint =
          "batch, heads of q, heads of k and v, queries, keys, head dimension, window, and 1 for "
          "causal or 0",
      .make = make,
      .benchmark_sizes = {{1, 32, 32, 8192, 8192, 64, 2048, 1},
                          {1, 32, 32, 8192, 8192, 64, 2048, 0},
                          {1, 16, 16, 8192, 8192, 128, 2048, 1},
                          {1, 32, 32, 16384, 16384, 64, 2048, 1}},
      .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
      .whole_tiles = {{{1, 1, 1, 128, 128, 64, 64, 0}, {0, 0, 0, 128, 128, 0, 64, 0}}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make_forward), info_of(kBackwardLadder, make_backward),
                method_info(), method_backward_info(), hidden_info(), hidden_backward_info()},
    .side_by_side = side_by_side()};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace windowed_rope
