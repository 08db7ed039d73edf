// Chapter 05 for ./tour and the benchmark.
#include "harness/attention_workload.hpp"
#include "reference.hpp"

namespace flash_attention {
namespace {

using Numbers = std::vector<std::int64_t>;

template <class Call>
Call call_of(const Numbers& n, tile::DType type) {
  tile::require_countable("batch", n.at(0), "heads", n.at(1));
  tile::require_countable("queries", n.at(3), "keys", n.at(4));
  Call p = tile::attention_call<Call>(type, {n[0], n[1], n[2], n[3], n[4], n.at(5)});
  if (n.at(6) != 0) p.right = 0;
  return p;
}
const char* mask_of(const Numbers& n) { return n.at(6) != 0 ? "causal" : "full"; }

std::unique_ptr<tile::Workload> make_forward(const Numbers& n, tile::DType type) {
  auto workload = std::make_unique<tile::AttentionForwardWorkload>(
      kForwardLadder, call_of<AttentionForward>(n, type), false, mask_of(n));
  workload->make_tensors([](const AttentionForward& p, const tile::AttentionRows& in, auto rows) {
    tile::AttentionInputs inputs{in.q, in.k, in.v};
    inputs.keys_of_sum = p.keys;  // as step e4m3, with the widest bound of those that take the type
    return reference(p, inputs, rows);
  });
  return workload;
}

std::unique_ptr<tile::Workload> make_backward(const Numbers& n, tile::DType type) {
  auto workload = std::make_unique<tile::AttentionBackwardWorkload>(
      kBackwardLadder, call_of<AttentionBackward>(n, type), false, mask_of(n));
  workload->make_tensors(
      kForwardLadder,
      [](const AttentionBackward& p, const tile::AttentionRows& in, auto queries, auto keys) {
        return reference(p, {in.q, in.k, in.v, in.o, in.lse, in.dout}, queries, keys);
      });
  return workload;
}

using Types = std::vector<tile::DType>;

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make, Types types) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal"},
          .size_hint =
              "batch, heads of q, heads of k and v, queries, keys, head dimension, and 1 for "
              "causal or 0",
          .make = make,
          .benchmark_sizes = {{8, 32, 32, 2048, 2048, 64, 1},
                              {8, 32, 32, 2048, 2048, 64, 0},
                              {2, 32, 32, 8192, 8192, 64, 1},
                              {2, 32, 32, 8192, 8192, 64, 0},
                              {1, 32, 32, 16384, 16384, 64, 1},
                              {1, 32, 32, 16384, 16384, 64, 0},
                              {8, 16, 16, 2048, 2048, 128, 1},
                              {8, 16, 16, 2048, 2048, 128, 0},
                              {2, 16, 16, 8192, 8192, 128, 1},
                              {2, 16, 16, 8192, 8192, 128, 0},
                              {1, 16, 16, 16384, 16384, 128, 1},
                              {1, 16, 16, 16384, 16384, 128, 0},
                              {2, 32, 8, 8192, 8192, 128, 1}},
          .benchmark_types = std::move(types),
          .whole_tiles = {{{1, 1, 1, 128, 128, 64, 0}, {0, 0, 0, 128, 128, 0, 0}},
                          {{1, 4, 1, 16, 256, 64, 0}, {0, 0, 0, 0, 128, 0, 0}},
                          {{1, 1, 1, 64, 64, 256, 0}, {0, 0, 0, 64, 64, 0, 0}}}};
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {info_of(kForwardLadder, make_forward,
                        {tile::DType::bf16, tile::DType::fp16, tile::DType::e4m3}),
                info_of(kBackwardLadder, make_backward, {tile::DType::bf16, tile::DType::fp16})}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace flash_attention
