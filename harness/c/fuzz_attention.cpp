// Calls of attention, of all four kinds and in both directions.
#include <cmath>
#include <memory>

#include "05_flash_attention/reference.hpp"
#include "06_rope/attention/reference.hpp"
#include "07_windowed_rope/method/reference.hpp"
#include "07_windowed_rope/windowed/reference.hpp"
#include "harness/c/fuzz_operations.hpp"

namespace fuzz {
namespace {

enum class Kind { plain, rotary, windowed, method };

template <class Args>
using Tell = tile_status(const Args*, std::int64_t*);

template <class Args>
constexpr bool kIsBackward = requires(Args a) {
  a.dq;
};

std::vector<int> any_lengths(Draw& draw, std::int64_t batch, std::int64_t most) {
  std::vector<int> all;
  const bool is_hostile = draw.one_in(2);
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto inside = static_cast<int>(draw.below(most + 1));
    const auto beyond = static_cast<int>(most) + 5;
    all.push_back(is_hostile ? draw.of({inside, inside, -1, beyond, INT_MIN, INT_MAX}) : inside);
  }
  return all;
}
// As tile.h says.
std::vector<int> cut(std::vector<int> lengths, std::int64_t most) {
  for (int& n : lengths) n = std::clamp(n, 0, static_cast<int>(most));
  return lengths;
}

// What the oracles need besides the operands' values.
struct Oracle {
  Kind kind;
  tile::Attention p{};
  std::vector<int> query_lengths, key_lengths, positions;
  std::vector<double> frequencies;

  tile::AttentionExpected forward(const Call& c) const {
    const tile::AttentionForward call{p};
    const auto q = c.values("q"), k = c.values("k"), v = c.values("v");
    switch (kind) {
      case Kind::plain:
        return flash_attention::reference(call, {q, k, v, query_lengths, key_lengths});
      case Kind::rotary: return rope::reference(call, {q, k, v, frequencies, positions});
      case Kind::windowed: break;
      case Kind::method:
        return windowed_rope::method::reference(call,
                                                {q, k, v, frequencies, query_lengths, key_lengths});
    }
    const auto q_far = c.values("q_far"), k_far = c.values("k_far");
    return windowed_rope::reference(call, {.q = q,
                                           .k = k,
                                           .v = v,
                                           .query_lengths = query_lengths,
                                           .key_lengths = key_lengths,
                                           .far = {q_far, k_far}});
  }
  tile::AttentionGradients backward(const Call& c) const {
    const tile::AttentionBackward call{p};
    const auto q = c.values("q"), k = c.values("k"), v = c.values("v");
    const auto o = c.values("o"), lse = c.values("lse"), dout = c.values("dout");
    switch (kind) {
      case Kind::plain:
        return flash_attention::reference(call,
                                          {q, k, v, o, lse, dout, query_lengths, key_lengths});
      case Kind::rotary:
        return rope::reference(call, {q, k, v, o, lse, dout, frequencies, positions});
      case Kind::windowed: break;
      case Kind::method:
        return windowed_rope::method::reference(
            call, {q, k, v, o, lse, dout, frequencies, query_lengths, key_lengths});
    }
    const auto q_far = c.values("q_far"), k_far = c.values("k_far");
    return windowed_rope::reference(call, {.q = q,
                                           .k = k,
                                           .v = v,
                                           .o = o,
                                           .lse = lse,
                                           .dout = dout,
                                           .query_lengths = query_lengths,
                                           .key_lengths = key_lengths,
                                           .far = {q_far, k_far}});
  }
};

template <class Args>
void attention_sizes(Call* c, Args* a, Kind kind, tile::Attention* p) {
  Draw& draw = c->draw;
  const auto length = [&] {
    return draw.one_in(12) ? draw.of({33, 65}) : draw.of({0, 1, 1, 2, 3, 4, 5, 7, 9, 16, 17});
  };
  p->type = kind == Kind::rotary ? draw.of({DType::fp16, DType::bf16}) : any_type(draw);
  p->batch = draw.of({0, 1, 1, 1, 2, 2, 3});
  p->kv_heads = draw.of({1, 1, 1, 2, 3});
  p->heads = draw.one_in(16) ? 0 : p->kv_heads * draw.of({1, 1, 1, 2, 3});
  p->queries = length();
  p->keys = kind == Kind::rotary || draw.one_in(2) ? p->queries : length();
  p->head_dim = kind == Kind::rotary   ? draw.of({64, 64, 64, 128})
                : kind == Kind::method ? draw.of({2, 4, 10, 16, 16, 32, 64, 64, 128})
                : draw.one_in(8)       ? draw.of({100, 128, 256, 257})
                : draw.has_twin && draw.one_in(2)
                    ? draw.of_twins(256, 200)
                    : draw.of({1, 2, 3, 5, 8, 16, 16, 24, 32, 40, 64, 64});
  const bool is_backward = kIsBackward<Args>, may_be_8_bits = kind == Kind::plain && !is_backward;
  if (may_be_8_bits && draw.one_in(6)) p->type = DType::e4m3, p->head_dim = draw.of({64, 128});
  a->batch = p->batch, a->heads = p->heads, a->queries = p->queries, a->keys = p->keys;
  a->head_dim = p->head_dim;
  a->kv_heads = p->kv_heads == p->heads && draw.one_in(2) ? 0 : p->kv_heads;
  if (p->heads == 0 && draw.one_in(2)) a->kv_heads = p->kv_heads = 0;
  const bool has_rows =
      is_backward && kind != Kind::rotary ? p->queries + p->keys > 0 : p->queries > 0;
  c->is_empty = p->batch == 0 || p->heads == 0 || !has_rows;
  a->scale = draw.of({0.0f, 0.3f, 1.0f});
  p->scale = a->scale == 0 ? 1 / std::sqrt(static_cast<float>(p->head_dim)) : a->scale;
  c->note("scale", a->scale);
  c->refuses("scale", &a->scale, {-1.0f, NAN, INFINITY, 3e38f}, TILE_INVALID_ARGUMENT);
  if (kind == Kind::rotary) {
    c->type(p->type, {TILE_FP32, TILE_FP64, TILE_TF32, TILE_E4M3});
  } else if (may_be_8_bits) {
    c->type(p->type, {TILE_FP64, TILE_TF32});
  } else {
    c->type(p->type, {TILE_FP64, TILE_TF32, TILE_E4M3});
  }
  if constexpr (!kIsBackward<Args>) {
    if (p->type != DType::e4m3)
      c->refuses("k_scale", &a->k_scale, c->kept(1), TILE_INVALID_ARGUMENT);
  }
}

template <class Args>
void attention_mask(Call* c, Args* a, Kind kind, tile::Attention* p) {
  Draw& draw = c->draw;
  a->causal = kind == Kind::method || draw.one_in(2);
  c->flag("causal", &a->causal);
  if (kind == Kind::method) {
    c->refuses("causal", &a->causal, 0, TILE_UNSUPPORTED);
  }
  if (a->causal) p->right = 0;
  if (kind == Kind::plain) {
    a->windowed = draw.one_in(2);
    const auto side = [&] { return draw.of({0L, 1L, 3L, 100L, kMost, kMost + 1, INT64_MAX}); };
    a->left = side(), a->right = side();
    if (a->windowed) {
      p->left = std::min(a->left, tile::kUnlimited);
      p->right = a->causal ? 0 : std::min(a->right, tile::kUnlimited);
      c->refuses("left", &a->left, -1, TILE_INVALID_ARGUMENT);
      c->refuses("right", &a->right, INT64_MIN, TILE_INVALID_ARGUMENT);
    } else if (draw.one_in(2)) {  // they are not used
      a->left = -7, a->right = INT64_MIN;
    }
    c->note("left", a->left), c->note("right", a->right);
  } else {
    c->refuses("windowed", &a->windowed, 1, TILE_UNSUPPORTED, {"left", "right"});
  }
  c->flag("windowed", &a->windowed);
  if (kind == Kind::windowed || kind == Kind::method) {
    a->window = draw.of({0L, 1L, 2L, 3L, 7L, 64L, kMost, kMost + 1, 1L << 40, INT64_MAX});
    if (kind == Kind::windowed && draw.one_in(6))
      a->window = draw.of<std::int64_t>({-5, INT64_MIN});
    p->window = std::clamp(a->window, std::int64_t{0}, tile::kUnlimited);
    c->note("window", a->window);
  } else {
    c->refuses("window", &a->window, 3, TILE_UNSUPPORTED);
  }
  if (kind == Kind::method) {
    c->refuses("window", &a->window, -1, TILE_INVALID_ARGUMENT);
  }
  if (kind != Kind::windowed) {
    c->refuses("q_far", &a->q_far.data, a, TILE_UNSUPPORTED);
    c->refuses("k_far", &a->k_far.data, a, TILE_UNSUPPORTED);
  }
}

// What the kinds that do not rotate refuse of a rotation.
void no_rotation(Call* c, tile_rotation* r) {
  const Names also{"rotation"};
  c->refuses("cos", &r->cos, r, TILE_UNSUPPORTED, also);
  c->refuses("frequencies", &r->frequencies, r, TILE_UNSUPPORTED, also);
  c->refuses("positions", &r->positions, c->kept_integers(), TILE_UNSUPPORTED, also);
  c->refuses("rotary_dim", &r->rotary_dim, 2, TILE_UNSUPPORTED, also);
  c->refuses("first_position", &r->first_position, 1, TILE_UNSUPPORTED, also);
  c->refuses("far", &r->far, 1, TILE_UNSUPPORTED, also);
  c->refuses("far_factor", &r->far_factor, 2.0, TILE_UNSUPPORTED, also);
  c->refuses("interleaved", &r->interleaved, 1, TILE_UNSUPPORTED, also);
  c->refuses("interleaved", &r->interleaved, 2, TILE_INVALID_ARGUMENT);
}

template <class Args>
void rotation(Call* c, Args* a, Oracle* oracle) {
  Draw& draw = c->draw;
  tile::Attention& p = oracle->p;
  tile::Rotary& r = p.rotary;
  tile_rotation& given = a->rotation;
  const bool is_method = oracle->kind == Kind::method;
  given.interleaved = draw.one_in(3);
  r.layout = given.interleaved ? tile::RotaryLayout::interleaved : tile::RotaryLayout::half_split;
  c->flag("interleaved", &given.interleaved);
  r.rotary_dim = p.head_dim;
  if (draw.one_in(2)) {
    r.rotary_dim = is_method ? draw.of({std::int64_t{2}, p.head_dim}) : draw.of({16, 32, 48});
    if (!is_method && given.interleaved && draw.one_in(2)) r.rotary_dim = 24;
  }
  given.rotary_dim = r.rotary_dim == p.head_dim && draw.one_in(2) ? 0 : r.rotary_dim;
  given.attention_factor = draw.of({0.0, 1.3});
  r.attention_factor = given.attention_factor == 0 ? 1 : given.attention_factor;
  c->note("attention_factor", given.attention_factor);
  c->refuses("attention_factor", &given.attention_factor, {-1.0, NAN, INFINITY},
             TILE_INVALID_ARGUMENT);
  oracle->frequencies = frequencies_of(r.rotary_dim);
  const std::int64_t pairs = r.rotary_dim / 2;
  std::vector<double> cos, sin;
  if (is_method) {
    given.far = draw.of({TILE_FAR_REROPE, TILE_FAR_LEAKY_REROPE, TILE_FAR_SELF_EXTEND});
    given.far_factor = draw.of({0.0, 1.0, 2.0, 8.0});
    if (given.far == TILE_FAR_LEAKY_REROPE && draw.one_in(2)) given.far_factor = 1.5;
    r.far = static_cast<tile::FarRotation>(given.far);
    r.far_factor = given.far_factor == 0 ? 1 : given.far_factor;
    c->note("far", given.far), c->note("far_factor", given.far_factor);
    c->refuses("far", &given.far, {0, 4, -1, INT_MIN}, TILE_INVALID_ARGUMENT);
    if (given.far != TILE_FAR_REROPE) {
      c->refuses("far_factor", &given.far_factor, {0.5, -1.0, NAN, INFINITY},
                 TILE_INVALID_ARGUMENT);
    }
    c->refuses("positions", &given.positions, c->kept_integers(), TILE_UNSUPPORTED);
    c->refuses("first_position", &given.first_position, 1, TILE_UNSUPPORTED);
    r.table_positions = p.keys + draw.of({0, 0, 3});
    const auto size = static_cast<std::size_t>(3 * r.table_positions * pairs);
    std::vector<float> cosines(size), sines(size);
    tile_windowed_rotary_tables_args tables{};
    tables.struct_size = sizeof tables, tables.far = given.far, tables.window = a->window;
    tables.attention_factor = given.attention_factor, tables.far_factor = given.far_factor;
    tables.rotary_dim = r.rotary_dim, tables.positions = r.table_positions;
    tables.frequencies = oracle->frequencies.data();
    tables.cos = cosines.data(), tables.sin = sines.data();
    if (tile_windowed_rotary_tables(&tables) != TILE_OK) {
      c->fault(std::string("no tables: ") + tile_last_error());
    }
    cos.assign(cosines.begin(), cosines.end()), sin.assign(sines.begin(), sines.end());
    if (!c->is_empty && p.keys > 0) {
      c->refuses("table_positions", &given.table_positions, p.keys - 1, TILE_INVALID_ARGUMENT);
    }
  } else {
    r.first_position = given.first_position = draw.of({0, 0, 2});
    r.table_positions = r.first_position + p.queries + draw.of({0, 0, 3});
    cos = table_of(r.rotary_dim, r.table_positions, r.attention_factor, std::cos);
    sin = table_of(r.rotary_dim, r.table_positions, r.attention_factor, std::sin);
    if (draw.one_in(3) && p.batch * p.queries > 0) {
      oracle->positions = any_positions(draw, p.batch * p.queries, r.table_positions);
      c->integers("positions", &given.positions, oracle->positions);
    } else if (!c->is_empty) {
      c->refuses("table_positions", &given.table_positions, r.first_position + p.queries - 1,
                 TILE_INVALID_ARGUMENT);
    }
    c->refuses("far", &given.far, 1, TILE_UNSUPPORTED);
    c->extent("first_position", &given.first_position, kMost);
  }
  given.table_positions = r.table_positions;
  for (const auto& [name, field, values] :
       {std::tuple{"cos", &given.cos, &cos}, {"sin", &given.sin, &sin}}) {
    c->aligned(c->operand(name, field, Role::as_it_is, DType::fp32,
                          {1, is_method ? 3 * r.table_positions : r.table_positions, 1, pairs},
                          {0, 0, pairs}),
               4);
    c->set_values(name, *values);
  }
  c->operand("frequencies", &given.frequencies, Role::as_it_is, DType::fp64, {1, 1, 1, pairs}, {})
      .is_for_reference = true;
  c->set_values("frequencies", oracle->frequencies);
  c->extent("rotary_dim", &given.rotary_dim, kMost);
  c->extent("table_positions", &given.table_positions, kMost);
  c->refuses("rotary_dim", &given.rotary_dim, 1, TILE_INVALID_ARGUMENT);
  c->refuses("rotary_dim", &given.rotary_dim, p.head_dim + 2, TILE_INVALID_ARGUMENT);
}

// Gradients, each by itself or all in one tensor, whatever the order of its dimensions.
template <class Args>
void gradients(Call* c, Args* a, Kind kind, const tile::Attention& p, std::int64_t chunk) {
  struct Gradient {
    const char* name;
    tile_tensor* tensor;
    std::int64_t length, heads;
  };
  std::vector<Gradient> all{{"dq", &a->dq, p.queries, p.heads},
                            {"dk", &a->dk, p.keys, p.kv_heads},
                            {"dv", &a->dv, p.keys, p.kv_heads}};
  if (kind == Kind::windowed) {
    all.push_back({"dq_far", &a->dq_far, p.queries, p.heads});
    all.push_back({"dk_far", &a->dk_far, p.keys, p.kv_heads});
  }
  std::int64_t heads = 0;
  for (const Gradient& x : all) heads += x.heads;
  const std::int64_t order = p.queries != p.keys ? 0 : c->draw.below(6), s = p.queries;
  const std::int64_t d = p.head_dim, all_rows = p.batch * s * heads;
  c->note("order", order);
  std::size_t block = 0;
  if (order > 0) {
    block = c->block(p.type, all_rows * d, false);
    c->aligned(block, chunk);
  }
  std::int64_t before = 0;  // heads
  for (const Gradient& x : all) {
    const Shape shape{p.batch, x.length, x.heads, d};
    if (order == 0) {
      c->tensor(x.name, &x.tensor->data, x.tensor->strides, Role::output, p.type, shape, chunk);
      continue;
    }
    Strides stride;
    std::int64_t first = 0;
    switch (order) {
      case 1: stride = {s * heads * d, d, heads * d}, first = before * d; break;
      case 2: stride = {heads * d, d, p.batch * heads * d}, first = before * d; break;
      case 3: stride = {s * heads * d, s * d, d}, first = before * s * d; break;
      case 4: stride = {s * heads * d, d, x.heads * d}, first = before * s * d; break;
      default: stride = {d, p.batch * d, heads * p.batch * d}, first = before * p.batch * d;
    }
    before += x.heads;
    if (p.batch == 1 && c->draw.one_in(2)) {
      stride.batch = chunk * c->draw.of({std::int64_t{0}, std::int64_t{1}, INT64_MAX / 8});
    }
    if (stride == Strides{}) stride.batch = chunk;
    Operand& made = c->operand(x.name, &x.tensor->data, Role::output, p.type, shape, stride,
                               static_cast<std::int64_t>(block), shape.count() > 0 ? first : 0);
    x.tensor->strides[0] = stride.batch, x.tensor->strides[1] = stride.head;
    x.tensor->strides[2] = stride.row;
    made.strides = static_cast<std::int64_t>(c->slot_of(x.tensor->strides));
  }
}

template <class Args>
Made attention(Draw& draw, Kind kind, const char* name, Call::Operation<Args> run,
               Call::Operation<Args> refer, Tell<Args>* tell) {
  Args* a = nullptr;
  Made c = make<Args>(&draw, name, run, refer, &a);
  auto oracle = std::make_shared<Oracle>();
  oracle->kind = kind;
  tile::Attention& p = oracle->p;
  attention_sizes(c.get(), a, kind, &p);
  attention_mask(c.get(), a, kind, &p);
  const bool is_rotated = kind == Kind::rotary || kind == Kind::method;
  if (is_rotated)
    rotation(c.get(), a, oracle.get());
  else
    no_rotation(c.get(), &a->rotation);

  // Rows of attention with a rotation begin at multiples of 16 bytes.
  const bool is_8_bits = p.type == DType::e4m3;
  const std::int64_t chunk = is_8_bits ? 16 : kind == Kind::rotary ? 8 : draw.of({1, 8});
  const Shape of_q{p.batch, p.queries, p.heads, p.head_dim};
  const Shape of_k{p.batch, p.keys, p.kv_heads, p.head_dim};
  const auto input = [&](const char* of, tile_tensor* x, const Shape& shape) {
    // TMA is not asked for rows that repeat, and 8 bits have no other way.
    c->tensor(of, &x->data, x->strides, Role::input, p.type, shape, chunk, !is_8_bits);
  };
  input("q", &a->q, of_q), input("k", &a->k, of_k), input("v", &a->v, of_k);
  if (kind == Kind::windowed) input("q_far", &a->q_far, of_q), input("k_far", &a->k_far, of_k);
  if (kind != Kind::rotary && p.batch > 0) {
    if (draw.one_in(2)) {
      const std::vector<int> lengths = any_lengths(draw, p.batch, p.queries);
      c->integers("query_lengths", &a->query_lengths, lengths);
      oracle->query_lengths = cut(lengths, p.queries);
    }
    if (draw.one_in(2)) {
      const std::vector<int> lengths = any_lengths(draw, p.batch, p.keys);
      c->integers("key_lengths", &a->key_lengths, lengths);
      oracle->key_lengths = cut(lengths, p.keys);
    }
  } else if (kind == Kind::rotary) {
    c->refuses("query_lengths", &a->query_lengths, c->kept_integers(), TILE_UNSUPPORTED);
    c->refuses("key_lengths", &a->key_lengths, c->kept_integers(), TILE_UNSUPPORTED);
    c->refuses("keys", &a->keys, p.keys + 1, TILE_UNSUPPORTED);
  }
  const Shape of_lse{p.batch, p.queries, p.heads, 1};
  const Strides lse_strides{p.heads * p.queries, p.queries, 1};
  if constexpr (kIsBackward<Args>) {
    c->tensor("o", &a->o.data, a->o.strides, Role::input, p.type, of_q, chunk, false);
    input("dout", &a->dout, of_q);
    c->operand("lse", &a->lse, Role::input, DType::fp32, of_lse, lse_strides);
    if (!c->is_empty && p.queries > 0) {
      const tile::AttentionExpected forward = oracle->forward(*c);
      c->set_values("o", tile::rounded(forward.o.value, p.type));
      c->set_values("lse", tile::rounded(forward.lse.value, DType::fp32));
    }
    c->nan_may_spread = !oracle->positions.empty();
    gradients(c.get(), a, kind, p, chunk);
    c->expect = [c = c.get(), oracle] {
      tile::AttentionGradients g = oracle->backward(*c);
      std::vector all{g.dq, g.dk, g.dv};
      if (oracle->kind == Kind::windowed) all.push_back(g.far_dq), all.push_back(g.far_dk);
      return all;
    };
  } else {
    c->tensor("o", &a->o.data, a->o.strides, Role::output, tile::output_type(p), of_q,
              is_8_bits ? 8 : chunk);
    const bool wants_lse = !draw.one_in(3);
    if (wants_lse) {
      c->operand("lse", &a->lse, Role::output, DType::fp32, of_lse, lse_strides).is_optional = true;
    }
    c->expect = [c = c.get(), oracle, wants_lse] {
      const tile::AttentionExpected e = oracle->forward(*c);
      std::vector all{e.o};
      if (wants_lse) all.push_back(e.lse);
      return all;
    };
  }
  for (const auto& [extent, field] : {std::pair{"batch", &a->batch},
                                      {"heads", &a->heads},
                                      {"queries", &a->queries},
                                      {"keys", &a->keys},
                                      {"head_dim", &a->head_dim}}) {
    c->extent(extent, field, kMost);
  }
  c->note("kv_heads", a->kv_heads);
  c->refuses("head_dim", &a->head_dim, 0, TILE_INVALID_ARGUMENT);
  for (const std::int64_t other : {std::int64_t{-1}, INT64_MIN, p.heads + 1, 1L << 40}) {
    if (p.heads > 0 || other < 0) {
      c->refuses("kv_heads", &a->kv_heads, other, TILE_INVALID_ARGUMENT);
    }
  }
  c->template has_workspace<Args>(&a->workspace, &a->workspace_bytes, tell);
  c->steps_refuse = {"type", "head_dim", "queries", "q",     "k",     "v",      "o",     "dout",
                     "dq",   "dk",       "dv",      "q_far", "k_far", "dq_far", "dk_far"};
  return c;
}

}  // namespace

#define TILE_ATTENTION(Args, kind, name)                                                  \
  {                                                                                       \
#name, [](Draw& draw) {                                                                 \
     return attention<Args>(draw, Kind::kind, #name, name, name##_reference,               \
                            name##_workspace_bytes);                                       \
   } \
  }
std::vector<Operator> attentions() {
  using Forward = tile_attention_args;
  using Backward = tile_attention_backward_args;
  return {
      TILE_ATTENTION(Forward, plain, tile_attention),
      TILE_ATTENTION(Backward, plain, tile_attention_backward),
      TILE_ATTENTION(Forward, rotary, tile_rotary_attention),
      TILE_ATTENTION(Backward, rotary, tile_rotary_attention_backward),
      TILE_ATTENTION(Forward, windowed, tile_windowed_attention),
      TILE_ATTENTION(Backward, windowed, tile_windowed_attention_backward),
      TILE_ATTENTION(Forward, method, tile_windowed_rotary_attention),
      TILE_ATTENTION(Backward, method, tile_windowed_rotary_attention_backward),
  };
}

}  // namespace fuzz
