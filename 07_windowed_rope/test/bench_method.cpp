// Chapter 07's methods for ./tour and the benchmark.
#include <stdexcept>

#include "harness/attention_workload.hpp"
#include "ladders.hpp"
#include "method/method.hpp"
#include "method/reference.hpp"
#include "method/tables.hpp"
#include "rotary/frequencies.hpp"

namespace windowed_rope {
namespace {

using Numbers = std::vector<std::int64_t>;
using Values = std::vector<double>;
using tile::FarRotation;

struct Rule {
  FarRotation far;
  double factor;
};
constexpr Rule kRules[] = {
    {FarRotation::rerope, 1}, {FarRotation::leaky_rerope, 16}, {FarRotation::self_extend, 8}};

template <class Call>
Call call_of(const Numbers& n, tile::DType type) {
  tile::require_countable("batch", n.at(0), "heads", n.at(1));
  tile::require_countable("queries", n.at(3), "keys", n.at(4));
  if (n.at(7) < 0 || n.at(7) >= std::ssize(kRules)) {
    throw std::invalid_argument("method: " + std::to_string(n.at(7)) + " is not 0, 1 or 2");
  }
  Call p = tile::attention_call<Call>(type, {n[0], n[1], n[2], n[3], n[4], n.at(5)});
  p.window = n.at(6), p.right = 0;
  const Rule& rule = kRules[static_cast<std::size_t>(n.at(7))];
  p.rotary.far = rule.far, p.rotary.far_factor = rule.factor;
  p.rotary.rotary_dim = p.head_dim, p.rotary.table_positions = p.keys;
  return p;
}

/// Gives the frequencies of the tables.
template <class Call>
Values place_tables(tile::AttentionWorkload<Call>& workload, const Call& p) {
  Values frequencies = rope::frequencies({.rotary_dim = p.rotary.rotary_dim});
  const rope::Tables tables =
      method::make_tables(p.rotary, p.window, frequencies, p.rotary.table_positions);
  workload.place_tables(tables.cos, tables.sin);
  return frequencies;
}

std::unique_ptr<tile::Workload> make_forward(const Numbers& n, tile::DType type) {
  const auto call = call_of<AttentionForward>(n, type);
  auto workload = std::make_unique<tile::AttentionForwardWorkload>(
      method::kMethodLadder, call, false, std::string(method::name(call.rotary.far)));
  if (!method::validate_sizes(call).ok()) return workload;  // choose() says why
  const Values frequencies = place_tables(*workload, call);
  workload->make_tensors([&](const AttentionForward& p, const tile::AttentionRows& in, auto rows) {
    return method::reference(p, {in.q, in.k, in.v, frequencies}, rows);
  });
  return workload;
}

std::unique_ptr<tile::Workload> make_backward(const Numbers& n, tile::DType type) {
  const auto call = call_of<AttentionBackward>(n, type);
  auto workload = std::make_unique<tile::AttentionBackwardWorkload>(
      method::kMethodBackwardLadder, call, false, std::string(method::name(call.rotary.far)));
  if (!method::validate_sizes(call).ok()) return workload;
  const Values frequencies = place_tables(*workload, call);
  workload->make_tensors(
      method::kMethodLadder,
      [&](const AttentionBackward& p, const tile::AttentionRows& in, auto queries, auto keys) {
        return method::reference(p, {in.q, in.k, in.v, in.o, in.lse, in.dout, frequencies}, queries,
                                 keys);
      });
  return workload;
}

template <class Ladder>
tile::LadderInfo info_of(const Ladder& ladder, tile::MakeWorkload make) {
  return {
      .name = ladder.name,
      .kernels = ladder.kernels,
      .steps = tile::infos_of(ladder),
      .extents = {"batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window", "method"},
      .size_hint =
          "batch, heads of q, heads of k and v, queries, keys, head dimension, window, and 0 for "
          "ReRoPE, 1 for Leaky ReRoPE with factor 16 or 2 for Self-Extend with groups of 8",
      .make = make,
      .benchmark_sizes = {{1, 32, 32, 8192, 8192, 64, 2048, 0},
                          {1, 32, 32, 8192, 8192, 64, 2048, 1},
                          {1, 32, 32, 8192, 8192, 64, 2048, 2},
                          {1, 16, 16, 8192, 8192, 128, 2048, 0},
                          {1, 32, 32, 16384, 16384, 64, 2048, 0}},
      .benchmark_types = {tile::DType::bf16, tile::DType::fp16},
      .whole_tiles = {{{1, 1, 1, 128, 128, 64, 64, 1}, {0, 0, 0, 128, 128, 0, 64, 0}}}};
}

}  // namespace

tile::LadderInfo method_info() { return info_of(method::kMethodLadder, make_forward); }
tile::LadderInfo method_backward_info() {
  return info_of(method::kMethodBackwardLadder, make_backward);
}

}  // namespace windowed_rope
