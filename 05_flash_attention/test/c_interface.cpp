// Chapter 05 for callers of C.
#include <algorithm>
#include <cmath>

#include "flash_attention.hpp"
#include "harness/c/c_interface.hpp"

namespace {

using flash_attention::BackwardBuffers;
using flash_attention::BackwardProblem;
using flash_attention::ForwardBuffers;
using flash_attention::ForwardProblem;
using flash_attention::Strides;
using tile::Status;

const tile::c::RegisterLadder kForward{flash_attention::kName, flash_attention::kTitle,
                                       tile::infos_of(flash_attention::kForwardLadder)};
const tile::c::RegisterLadder kBackward{flash_attention::kName, flash_attention::kTitle,
                                        tile::infos_of(flash_attention::kBackwardLadder)};

Strides strides_of(const std::int64_t (&given)[3], std::int64_t length, std::int64_t heads,
                   std::int64_t head_dim) {
  if (given[0] == 0 && given[1] == 0 && given[2] == 0) {
    return flash_attention::packed_strides(length, heads, head_dim);
  }
  return {given[0], given[1], given[2]};
}

// Packed strides are products, which must not overflow before validate() has seen the extents.
template <class Args>
Status check_countable(const Args& given) {
  for (const auto& [name, extent] : {std::pair{"heads", given.heads},
                                     {"kv_heads", given.kv_heads},
                                     {"queries", given.queries},
                                     {"keys", given.keys},
                                     {"head_dim", given.head_dim}}) {
    if (extent < 0) return tile::invalid_argument(name, std::to_string(extent) + " is negative");
  }
  std::int64_t all = 1;
  for (const std::int64_t extent : {std::max(given.queries, given.keys),
                                    std::max(given.heads, given.kv_heads), given.head_dim}) {
    if (__builtin_mul_overflow(all, extent, &all)) {
      return tile::unsupported("queries, keys, heads and head_dim", "their product overflows");
    }
  }
  return {};
}

// What the structs of both directions have in common.
template <class Args, class Problem, class Buffers>
Status read_common(const Args* args, Args* given, Problem* p, Buffers* b) {
  if (Status s = tile::c::read_arguments(args, given); !s.ok()) return s;
  if (Status s = tile::c::read_type(given->type, &p->type); !s.ok()) return s;
  bool causal = false, windowed = false;
  if (Status s = tile::c::read_flag("causal", given->causal, &causal); !s.ok()) return s;
  if (Status s = tile::c::read_flag("windowed", given->windowed, &windowed); !s.ok()) return s;
  if (Status s = check_countable(*given); !s.ok()) return s;
  p->batch = given->batch;
  p->heads = given->heads;
  p->queries = given->queries;
  p->keys = given->keys;
  p->head_dim = given->head_dim;
  p->kv_heads = given->kv_heads == 0 ? given->heads : given->kv_heads;
  if (windowed) p->left = given->left, p->right = given->right;
  if (causal && p->right > 0) p->right = 0;
  p->scale = given->scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : given->scale;
  const auto of_queries = [&](const std::int64_t(&strides)[3]) {
    return strides_of(strides, p->queries, p->heads, p->head_dim);
  };
  const auto of_keys = [&](const std::int64_t(&strides)[3]) {
    return strides_of(strides, p->keys, p->kv_heads, p->head_dim);
  };
  p->q = of_queries(given->q_strides);
  p->k = of_keys(given->k_strides);
  p->v = of_keys(given->v_strides);
  p->o = of_queries(given->o_strides);
  if constexpr (requires { p->dq; }) {
    p->dout = of_queries(given->dout_strides);
    p->dq = of_queries(given->dq_strides);
    p->dk = of_keys(given->dk_strides);
    p->dv = of_keys(given->dv_strides);
  }
  b->q = given->q;
  b->k = given->k;
  b->v = given->v;
  b->query_lengths = given->query_lengths;
  b->key_lengths = given->key_lengths;
  b->workspace = given->workspace;
  b->workspace_bytes = given->workspace_bytes;
  return {};
}

// A caller's struct, as this library knows it and as the chapter does.
Status read(const tile_attention_args* args, tile_attention_args* given, ForwardProblem* p,
            ForwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<float*>(given->lse);
  return {};
}

Status read(const tile_attention_backward_args* args, tile_attention_backward_args* given,
            BackwardProblem* p, BackwardBuffers* b) {
  if (Status s = read_common(args, given, p, b); !s.ok()) return s;
  b->o = given->o;
  b->lse = static_cast<const float*>(given->lse);
  b->dout = given->dout;
  b->dq = given->dq;
  b->dk = given->dk;
  b->dv = given->dv;
  return {};
}

// The elements of a tensor of doubles in their order, as `access` is given each of them.
template <class Double, class Access>
void for_each_element(Double* data, const Strides& stride, std::int64_t batch, std::int64_t length,
                      std::int64_t heads, std::int64_t dim, Access access) {
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t row = 0; row < length; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        Double* from = data + b * stride.batch + row * stride.row + head * stride.head;
        for (std::int64_t d = 0; d < dim; ++d) access(from[d]);
      }
    }
  }
}

// Tensors of doubles on the host, without gaps and back to where they belong.
template <class Problem>
class Tensors {
 public:
  explicit Tensors(const Problem& p) : p_(p) {}

  std::vector<double> queries(const void* data, const Strides& stride) const {
    return packed(data, stride, p_.queries, p_.heads, p_.head_dim);
  }
  std::vector<double> keys(const void* data, const Strides& stride) const {
    return packed(data, stride, p_.keys, p_.kv_heads, p_.head_dim);
  }
  // lse is a tensor whose rows are one element wide.
  std::vector<double> lse(const void* data) const {
    return packed(data, lse_strides(), p_.queries, p_.heads, 1);
  }
  std::vector<int> lengths(const int* n) const {
    return n ? std::vector<int>(n, n + p_.batch) : std::vector<int>{};
  }
  void put_queries(const tile::Expected& from, const Strides& stride, void* to) const {
    put(from, stride, p_.queries, p_.heads, p_.head_dim, to);
  }
  void put_keys(const tile::Expected& from, const Strides& stride, void* to) const {
    put(from, stride, p_.keys, p_.kv_heads, p_.head_dim, to);
  }
  void put_lse(const tile::Expected& from, void* to) const {
    if (to) put(from, lse_strides(), p_.queries, p_.heads, 1, to);
  }

 private:
  Strides lse_strides() const { return {p_.heads * p_.queries, p_.queries, 1}; }
  std::vector<double> packed(const void* data, const Strides& stride, std::int64_t length,
                             std::int64_t heads, std::int64_t dim) const {
    std::vector<double> values;
    for_each_element(static_cast<const double*>(data), stride, p_.batch, length, heads, dim,
                     [&](double x) { values.push_back(x); });
    return values;
  }
  void put(const tile::Expected& from, const Strides& stride, std::int64_t length,
           std::int64_t heads, std::int64_t dim, void* to) const {
    auto next = from.value.begin();
    for_each_element(static_cast<double*>(to), stride, p_.batch, length, heads, dim,
                     [&](double& x) { x = *next++; });
  }
  const Problem& p_;
};

void compute(const ForwardProblem& p, const ForwardBuffers& b) {
  const Tensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const auto expected = flash_attention::reference(
      p, {q, k, v, tensors.lengths(b.query_lengths), tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.o, p.o, b.o);
  tensors.put_lse(expected.lse, b.lse);
}

void compute(const BackwardProblem& p, const BackwardBuffers& b) {
  const Tensors tensors(p);
  const auto q = tensors.queries(b.q, p.q), k = tensors.keys(b.k, p.k), v = tensors.keys(b.v, p.v);
  const auto o = tensors.queries(b.o, p.o), dout = tensors.queries(b.dout, p.dout);
  const auto expected = flash_attention::reference(
      p, {q, k, v, o, tensors.lse(b.lse), dout, tensors.lengths(b.query_lengths),
          tensors.lengths(b.key_lengths)});
  tensors.put_queries(expected.dq, p.dq, b.dq);
  tensors.put_keys(expected.dk, p.dk, b.dk);
  tensors.put_keys(expected.dv, p.dv, b.dv);
}

template <class Ladder, class Args>
tile_status launch(const Ladder& ladder, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    return tile::c::launch_step(ladder, given.step, p, b, given.stream);
  });
}

template <class Ladder, class Args>
tile_status tell_workspace_bytes(const Ladder& ladder, const Args* args, std::int64_t* bytes) {
  return tile::c::guarded([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (!bytes) return tile::invalid_argument("bytes", "is null");
    *bytes = 0;
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = tile::check_requirements(flash_attention::kTypes, {}, p.type); !s.ok()) return s;
    if (Status s = flash_attention::validate_sizes(p); !s.ok()) return s;
    const char* step = given.step ? given.step : ladder.steps.back().name.data();
    std::size_t number = 0;
    if (Status s = tile::c::find_step(ladder, step, p, b, &number); !s.ok()) return s;
    *bytes = flash_attention::workspace_bytes(p, step);
    return {};
  });
}

template <class Ladder, class Args>
tile_status compute_reference(const Ladder&, const Args* args) {
  return tile::c::operation([&]() -> Status {
    Args given;
    typename Ladder::Problem p{};
    typename Ladder::Buffers b{};
    if (Status s = read(args, &given, &p, &b); !s.ok()) return s;
    if (Status s = tile::c::check_reference_type(p.type); !s.ok()) return s;
    if (Status s = flash_attention::validate_tensors(p, b); !s.ok()) return s;
    if (!flash_attention::is_empty(p)) compute(p, b);
    return {};
  });
}

using flash_attention::kBackwardLadder;
using flash_attention::kForwardLadder;

}  // namespace

tile_status tile_attention(const tile_attention_args* args) { return launch(kForwardLadder, args); }

tile_status tile_attention_backward(const tile_attention_backward_args* args) {
  return launch(kBackwardLadder, args);
}

tile_status tile_attention_workspace_bytes(const tile_attention_args* args, std::int64_t* bytes) {
  return tell_workspace_bytes(kForwardLadder, args, bytes);
}

tile_status tile_attention_backward_workspace_bytes(const tile_attention_backward_args* args,
                                                    std::int64_t* bytes) {
  return tell_workspace_bytes(kBackwardLadder, args, bytes);
}

tile_status tile_attention_reference(const tile_attention_args* args) {
  return compute_reference(kForwardLadder, args);
}

tile_status tile_attention_backward_reference(const tile_attention_backward_args* args) {
  return compute_reference(kBackwardLadder, args);
}
