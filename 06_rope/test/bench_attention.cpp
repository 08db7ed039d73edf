// Chapter 06's attention for ./tour and the benchmark.
#include "attention/reference.hpp"
#include "harness/attention_workload.hpp"
#include "ladders.hpp"
#include "rotation.hpp"

namespace rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;

template <class Call>
Call call_of(const Numbers& n, tile::DType type) {
  tile::require_countable("batch", n.at(0), "heads", n.at(2));
  tile::require_countable("length", n.at(1), "head_dim", n.at(4));
  Call p = tile::attention_call<Call>(type, {n[0], n[2], n.at(3), n[1], n[1], n[4]});
  if (n.at(5) != 0) p.right = 0;
  if (n.at(6) != 0) p.rotary.layout = Layout::interleaved;
  p.rotary.rotary_dim = p.head_dim, p.rotary.table_positions = p.queries;
  return p;
}

/// What is not a number in its name.
std::string kind_of(const tile::Attention& p) {
  const std::string mask = p.right == 0 ? "causal" : "full";
  return mask + (p.rotary.layout == Layout::half_split ? " half" : " interleaved");
}

/// Gives the frequencies of the tables.
template <class Call>
Values place_tables(tile::AttentionWorkload<Call>& workload, const Call& p) {
  Values frequencies = paper_frequencies(p.rotary.rotary_dim);
  const Tables tables = make_tables(frequencies, p.rotary.table_positions);
  workload.place_tables(tables.cos, tables.sin);
  return frequencies;
}

std::unique_ptr<tile::Workload> make_forward(const Numbers& n, tile::DType type) {
  const auto call = call_of<AttentionForward>(n, type);
  auto workload = std::make_unique<tile::AttentionForwardWorkload>(kAttentionLadder, call, false,
                                                                   kind_of(call));
  if (!validate_sizes(call).ok()) return workload;  // choose() says why
  const Values frequencies = place_tables(*workload, call);
  workload->make_tensors([&](const AttentionForward& p, const tile::AttentionRows& in, auto rows) {
    return reference(p, {in.q, in.k, in.v, frequencies}, rows);
  });
  return workload;
}

std::unique_ptr<tile::Workload> make_backward(const Numbers& n, tile::DType type) {
  const auto call = call_of<AttentionBackward>(n, type);
  auto workload = std::make_unique<tile::AttentionBackwardWorkload>(kAttentionBackwardLadder, call,
                                                                    false, kind_of(call));
  if (!validate_sizes(call).ok()) return workload;
  const Values frequencies = place_tables(*workload, call);
  workload->make_tensors(
      kAttentionLadder,
      [&](const AttentionBackward& p, const tile::AttentionRows& in, auto queries, auto keys) {
        return reference(p, {in.q, in.k, in.v, in.o, in.lse, in.dout, frequencies}, queries, keys);
      });
  return workload;
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {.name = ladder.name,
          .kernels = ladder.kernels,
          .steps = tile::infos_of(ladder),
          .extents = {"batch", "length", "heads", "kv_heads", "head_dim", "causal", "interleaved"},
          .size_hint =
              "batch, tokens, heads of q, heads of k and v, head dimension, 1 for causal or 0, and "
              "1 for interleaved pairs or 0",
          .make = make,
          .benchmark_sizes = {{2, 8192, 32, 32, 64, 1, 0},
                              {2, 8192, 32, 32, 64, 1, 1},
                              {2, 8192, 32, 8, 128, 1, 0},
                              {2, 8192, 32, 8, 128, 1, 1},
                              {8, 2048, 32, 8, 128, 1, 0}},
          .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
          .whole_tiles = {{{1, 128, 2, 1, 64, 0, 0}, {0, 128, 0, 0, 0, 0, 0}},
                          {{1, 128, 2, 1, 128, 1, 1}, {0, 64, 0, 0, 0, 0, 0}}}};
}

}  // namespace

tile::LadderInfo attention_info() { return info_of(kAttentionLadder, make_forward); }
tile::LadderInfo attention_backward_info() {
  return info_of(kAttentionBackwardLadder, make_backward);
}

}  // namespace rope
