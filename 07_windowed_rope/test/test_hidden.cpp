// Chapter 07's tests: attention from hidden states, with each encoding, forward and backward.
#include <algorithm>
#include <cmath>

#include "hidden/hidden.hpp"
#include "hidden/reference.hpp"
#include "hidden/tables.hpp"
#include "test_support.hpp"

namespace windowed_rope {
namespace {

// ---- Problems ----

struct HiddenRows {
  Values x, wq, wk, wv, table;
  Values o, lse, dout;  // of the backward pass only; lse is [batch][length][heads]
};

Hidden hidden_problem(DType type, Encoding encoding) {
  Hidden p{.type = type,
           .batch = 2,
           .length = 37,
           .heads = 3,
           .head_dim = 10,
           .model_dim = 21,
           .encoding = encoding};
  p.window = 9;
  p.scale = 1 / std::sqrt(10.f);
  return p;
}

std::int64_t tokens_of(const Hidden& p) { return p.batch * p.length; }
std::int64_t row_of(const Hidden& p) { return p.heads * p.head_dim; }

/// From [batch][length][heads] to [batch][heads][length].
Values lse_of_heads(const Hidden& p, const Values& of_rows) {
  return tile::transposed_lse(tile::Attention{.type = p.type,
                                              .batch = p.batch,
                                              .heads = p.heads,
                                              .queries = p.length,
                                              .keys = p.length,
                                              .head_dim = p.head_dim},
                              of_rows, true);
}

HiddenInputs inputs_of(const HiddenRows& in) { return {in.x, in.wq, in.wk, in.wv, in.table}; }

/// Random rows, and weights by which q, k and v vary by 1; o and lse are what the forward pass
/// gives the backward pass, as the types hold it.
HiddenRows normal(const Hidden& p) {
  const auto weights = [&p](std::uint64_t seed) {
    Values w = tile::normal(p.model_dim * row_of(p), p.type, seed);
    for (double& each : w)
      each = as_type(each / std::sqrt(static_cast<double>(p.model_dim)), p.type);
    return w;
  };
  HiddenRows in{tile::normal(tokens_of(p) * p.model_dim, p.type, 91),
                weights(92),
                weights(93),
                weights(94),
                {},
                {},
                {},
                tile::normal(tokens_of(p) * row_of(p), p.type, 95)};
  if (p.encoding == Encoding::learned) in.table = tile::normal(p.length * p.model_dim, p.type, 96);
  if (p.encoding == Encoding::sinusoidal) {
    in.table = tile::rounded(hidden_tables(p).sinusoids, p.type);
  }
  const tile::AttentionExpected forward = reference(p, inputs_of(in));
  in.o = tile::rounded(forward.o.value, p.type);
  in.lse = tile::rounded(forward.lse.value, DType::fp32);
  return in;
}

template <class Step>
constexpr bool kIsHiddenForward =
    std::is_same_v<std::remove_cvref_t<Step>, tile::TestedStep<HiddenLadder>>;

/// Runs a step of either ladder, and checks what it wrote, and all buffers.
template <class Step>
void check_step(const Step& step, const Hidden& p, const HiddenRows& in) {
  const std::string_view encoding = name(p.encoding);
  CAPTURE(encoding);
  std::vector<DeviceBuffer> buffers;
  const auto input = [&](const char* name, DType type, const Values& values) {
    buffers.push_back(
        DeviceBuffer::input(name, tile::vector_layout(type, std::ssize(values)), values));
    return values.empty() ? nullptr : buffers.back().raw();
  };
  std::vector<std::pair<const char*, std::size_t>> outputs;
  const auto output = [&](const char* name, DType type, std::int64_t count) {
    buffers.push_back(
        DeviceBuffer::output(name, tile::vector_layout(type, count), tile::poison_in_turn()));
    outputs.emplace_back(name, buffers.size() - 1);
    return buffers.back().raw();
  };
  const auto floats = [&](const char* name, const std::vector<float>& values) {
    return static_cast<const float*>(input(name, DType::fp32, {values.begin(), values.end()}));
  };
  const HiddenTables tables = hidden_tables(p);
  typename std::remove_cvref_t<decltype(*step.ladder)>::Problem b{p};
  b.x = input("x", p.type, in.x);
  b.wq = input("wq", p.type, in.wq), b.wk = input("wk", p.type, in.wk);
  b.wv = input("wv", p.type, in.wv), b.table = input("table", p.type, in.table);
  b.cos = floats("cos", tables.cos), b.sin = floats("sin", tables.sin);
  b.gain = floats("gain", tables.gain);
  std::vector<tile::Expected> expected;
  Status done;
  const auto run = [&] {
    b.workspace_bytes = composed_bytes(b);
    const tile::Layout layout = tile::vector_layout(DType::fp32, b.workspace_bytes / 4);
    buffers.push_back(DeviceBuffer::output("workspace", layout, tile::poison_in_turn()));
    b.workspace = buffers.back().raw();
    done = tile::run_step(step, b);
  };
  if constexpr (kIsHiddenForward<Step>) {
    b.o = output("o", p.type, tokens_of(p) * row_of(p));
    b.lse = static_cast<float*>(output("lse", DType::fp32, tokens_of(p) * p.heads));
    tile::AttentionExpected of_forward = reference(p, inputs_of(in));
    tile::Expected lse = std::move(of_forward.lse);
    lse.value = lse_of_heads(p, lse.value), lse.bound = lse_of_heads(p, lse.bound);
    expected = {std::move(of_forward.o), std::move(lse)};
    run();
  } else {
    b.o = input("o", p.type, in.o);
    b.lse = static_cast<const float*>(input("lse", DType::fp32, lse_of_heads(p, in.lse)));
    b.dout = input("dout", p.type, in.dout);
    b.dx = output("dx", p.type, std::ssize(in.x));
    b.dwq = output("dwq", p.type, std::ssize(in.wq));
    b.dwk = output("dwk", p.type, std::ssize(in.wk));
    b.dwv = output("dwv", p.type, std::ssize(in.wv));
    HiddenGradients gradients = backward_reference(p, inputs_of(in), in.o, in.lse, in.dout);
    expected = {gradients.dx, gradients.dwq, gradients.dwk, gradients.dwv};
    if (p.encoding == Encoding::learned) {
      b.dtable = output("dtable", p.type, std::ssize(in.table));
      expected.push_back(gradients.dtable);
    }
    run();
  }
  REQUIRE_MESSAGE(done.ok(), done.message);
  for (const DeviceBuffer& buffer : buffers) check_intact({buffer.check()});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    check_values({outputs[i].first, buffers[outputs[i].second].download()}, expected[i]);
  }
}

template <class Check>
void for_each_hidden_step(Check check, tile::OwnKernel own = tile::OwnKernel::must_run,
                          tile::Types types = tile::Types::in_turn) {
  tile::for_each_step(kHiddenLadder, check, own, types);
  tile::for_each_step(kHiddenBackwardLadder, check, own, types);
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("hidden: each encoding, of sizes that are no multiples of anything") {
    for_each_hidden_step(
        [](const auto& step, DType type) {
          for (const Encoding encoding : kEncodings) {
            const Hidden p = hidden_problem(type, encoding);
            check_step(step, p, normal(p));
          }
        },
        tile::OwnKernel::must_run, tile::Types::all);
  }

  TEST_CASE("hidden: the fastest steps of all parts, and full attention") {
    for_each_hidden_step([](const auto& step, DType type) {
      for (const Encoding encoding : kEncodings) {
        Hidden p{.type = type,
                 .batch = 1,
                 .length = 70,
                 .heads = 1,
                 .head_dim = 64,
                 .model_dim = 64,
                 .encoding = encoding};
        p.window = 30, p.scale = 0.125f;
        p.causal = encoding == Encoding::windowed;
        check_step(step, p, normal(p));
      }
    });
  }

  TEST_CASE("hidden: no token") {
    for_each_hidden_step([](const auto& step, DType type) {
      Hidden p = hidden_problem(type, Encoding::learned);
      p.batch = 0;
      check_step(step, p, normal(p));  // gradients of weights and table are zeros
    });
  }
}

TEST_SUITE("chapter") {
  TEST_CASE("hidden: the references' gradients are slopes") {
    for (const Encoding encoding : kEncodings) {
      const std::string_view which = name(encoding);
      CAPTURE(which);
      const Hidden p{.type = DType::fp64,
                     .batch = 2,
                     .length = 5,
                     .heads = 2,
                     .head_dim = 4,
                     .model_dim = 3,
                     .encoding = encoding,
                     .window = 2};
      HiddenRows in = normal(p);
      const tile::AttentionExpected forward = reference(p, inputs_of(in));
      in.o = forward.o.value, in.lse = forward.lse.value;  // not rounded
      const HiddenGradients gradients = backward_reference(p, inputs_of(in), in.o, in.lse, in.dout);
      const auto loss = [&] {
        const Values o = reference(p, inputs_of(in)).o.value;
        double sum = 0;
        for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * in.dout[i];
        return sum;
      };
      constexpr double kStep = 6e-6;
      for (const auto& [values, slope] : {std::pair{&in.x, &gradients.dx.value},
                                          {&in.wq, &gradients.dwq.value},
                                          {&in.wk, &gradients.dwk.value},
                                          {&in.wv, &gradients.dwv.value},
                                          {&in.table, &gradients.dtable.value}}) {
        for (std::size_t i = 0; i < slope->size(); ++i) {
          const double before = (*values)[i];
          (*values)[i] = before + kStep;
          const double above = loss();
          (*values)[i] = before - kStep;
          const double below = loss();
          (*values)[i] = before;
          CHECK(std::abs((above - below) / (2 * kStep) - (*slope)[i]) < 1e-8);
        }
      }
    }
  }

  // One head, weights that let h pass, and a query with two keys: scores by the formulas alone.
  TEST_CASE("hidden: the reference, by hand") {
    const double x[2][4] = {{1, 2, -1, 0.5}, {0.5, -1, 2, 1}};
    for (const Encoding encoding : kEncodings) {
      const std::string_view which = name(encoding);
      CAPTURE(which);
      Hidden p{.type = DType::fp64,
               .batch = 1,
               .length = 2,
               .heads = 1,
               .head_dim = 4,
               .model_dim = 4,
               .encoding = encoding,
               .window = 1};
      HiddenRows in;
      for (const auto& row : x) in.x.insert(in.x.end(), row, row + 4);
      for (int i = 0; i < 16; ++i) in.wq.push_back(i % 5 == 0);
      in.wk = in.wv = in.wq;
      in.table = {0, 1, 0, 1, std::sin(1.0), std::cos(1.0), std::sin(0.01), std::cos(0.01)};
      const bool halves = encoding == Encoding::rotary || encoding == Encoding::windowed;
      // Tokens 0 and 1 as q or k, at these positions.
      const auto row = [&](std::size_t token, double position) {
        Values h(x[token], x[token] + 4);
        for (std::size_t d = 0; d < 4 && adds_table(encoding); ++d) {
          h[d] += in.table[token * 4 + d];
        }
        for (std::size_t i = 0; i < 2 && !adds_table(encoding); ++i) {
          double& a = h[halves ? i : 2 * i];
          double& b = h[halves ? i + 2 : 2 * i + 1];
          const double angle = position * (i == 0 ? 1 : 0.01), first = a;
          a = first * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + first * std::sin(angle);
        }
        for (std::size_t d = 0; d < 4 && has_gain(encoding); ++d) {
          const double from = static_cast<double>(d) - 1;  // of a row of 4, a quarter
          h[d] *=
              (1 + 0.2 * std::exp(-0.001 * position)) * (0.8 + 0.4 * std::exp(-from * from / 2));
        }
        return h;
      };
      const auto dot = [](const Values& a, const Values& b) {
        double sum = 0;
        for (std::size_t d = 0; d < 4; ++d) sum += a[d] * b[d];
        return sum;
      };
      // At distance 1 a window of 1 ends: there ReRoPE sees a query at 1 and a key at 0.
      double before = dot(row(1, 1), row(0, 0));
      if (encoding == Encoding::exposb) before *= 0.7f + 0.3f * std::exp(-0.005f);
      const double itself = dot(row(1, 1), row(1, 1));
      const double weight = 1 / (1 + std::exp(itself - before));
      const tile::AttentionExpected got = reference(p, inputs_of(in));
      for (std::size_t d = 0; d < 4; ++d) {
        const bool in_values = encoding == Encoding::learned;
        const double v0 = x[0][d] + (in_values ? in.table[d] : 0);
        const double v1 = x[1][d] + (in_values ? in.table[4 + d] : 0);
        CHECK(std::abs(got.o.value[d] - v0) < 1e-12);
        CHECK(std::abs(got.o.value[4 + d] - (weight * v0 + (1 - weight) * v1)) < 1e-7);
      }
    }
  }

  TEST_CASE("hidden: a score falls by distance as the encoding says") {
    const auto curve = [](Encoding encoding) {
      Hidden p{.type = DType::fp32,
               .batch = 1,
               .length = 300,
               .heads = 1,
               .head_dim = 64,
               .model_dim = 64,
               .encoding = encoding};
      p.window = 50;
      return score_by_distance(p);
    };
    const Values rotary = curve(Encoding::rotary), windowed = curve(Encoding::windowed);
    const Values sinusoidal = curve(Encoding::sinusoidal);
    const Values plain = curve(Encoding::exposb_plain), exposb = curve(Encoding::exposb);
    for (std::size_t n = 0; n < 300; ++n) {
      const auto distance = static_cast<double>(n);
      double mean = 0, gained = 0, gains = 0;
      for (int i = 0; i < 32; ++i) {
        const double score = std::cos(distance * std::pow(1e4, -i / 32.0));
        double b[2];
        for (int j = 0; j < 2; ++j) {
          b[j] = 0.8 + 0.4 * std::exp(-std::pow(2 * i + j - 16, 2) / 128);
        }
        mean += score / 32;
        gained += (b[0] * b[0] + b[1] * b[1]) * score, gains += b[0] * b[0] + b[1] * b[1];
      }
      const double key = 1 + 0.2 * std::exp(-0.001 * (299 - distance));
      const double of_keys = key / (1 + 0.2 * std::exp(-0.299));
      CHECK(std::abs(plain[n] - of_keys * gained / gains) < 1e-6);
      CHECK(std::abs(rotary[n] - mean) < 1e-6);
      CHECK(std::abs(windowed[n] - rotary[std::min<std::size_t>(n, 50)]) < 1e-6);
      CHECK(std::abs(sinusoidal[n] - (1 + 32 * mean) / 33) < 1e-6);
      CHECK(std::abs(exposb[n] - plain[n] * (0.7 + 0.3 * std::exp(-0.005 * distance))) < 1e-6);
    }
    CHECK(curve(Encoding::learned)[0] == 1);
  }

  TEST_CASE("hidden: what is refused, by name") {
    const auto status_of = [](const auto& ladder, const Hidden& sizes, const auto& change) {
      typename std::remove_cvref_t<decltype(ladder)>::Problem p{sizes};
      std::uintptr_t next = 4096;
      const auto place = [&next](std::int64_t bytes) {
        const std::uintptr_t here = next;
        next += static_cast<std::uintptr_t>(bytes + 15) / 16 * 16;
        return reinterpret_cast<void*>(here);
      };
      const auto floats = [&](std::int64_t count) { return static_cast<float*>(place(count * 4)); };
      const std::int64_t of_x = tokens_of(p) * p.model_dim * 2, of_o = tokens_of(p) * row_of(p) * 2;
      const std::int64_t of_w = p.model_dim * row_of(p) * 2;
      p.x = place(of_x), p.table = place(p.length * p.model_dim * 2);
      p.wq = place(of_w), p.wk = place(of_w), p.wv = place(of_w);
      p.cos = floats(3 * p.length * 5), p.sin = floats(3 * p.length * 5);
      p.gain = floats(p.length * 10);
      p.o = place(of_o), p.lse = floats(tokens_of(p) * p.heads);
      if constexpr (requires { p.dx; }) {
        p.dout = place(of_o), p.dx = place(of_x), p.dtable = place(p.length * p.model_dim * 2);
        p.dwq = place(of_w), p.dwk = place(of_w), p.dwv = place(of_w);
      }
      p.workspace_bytes = composed_bytes(p);
      p.workspace = place(p.workspace_bytes);
      change(p);
      if (Status s = ladder.validate(p); !s.ok() || ladder.is_empty(p)) return s;
      return tile::check_step(ladder.steps[0], p);
    };
    const auto for_both = [&](Encoding encoding, const auto& change, const auto& check) {
      const Hidden p = hidden_problem(DType::bf16, encoding);
      check(status_of(kHiddenLadder, p, change));
      check(status_of(kHiddenBackwardLadder, p, change));
    };
    const auto refuses = [&](const std::string& name, Encoding encoding, const auto& change) {
      CAPTURE(name);
      for_both(encoding, change, [&name](const Status& status) {
        CHECK(!status.ok());
        CHECK_MESSAGE(status.message.rfind(name + ": ", 0) == 0, status.message);
      });
    };
    const auto accepts = [&](const char* what, Encoding encoding, const auto& change) {
      CAPTURE(what);
      for_both(encoding, change, [](const Status& s) { CHECK_MESSAGE(s.ok(), s.message); });
    };
    constexpr Encoding kLearned = Encoding::learned, kRotary = Encoding::rotary;
    for (const Encoding encoding : kEncodings) accepts("as it is", encoding, [](auto&) {});
    refuses("type", kRotary, [](auto& p) { p.type = DType::tf32; });
    refuses("encoding", kRotary, [](auto& p) { p.encoding = static_cast<Encoding>(6); });
    refuses("batch", kRotary, [](auto& p) { p.batch = -1; });
    refuses("batch", kRotary, [](auto& p) { p.batch = p.length = p.heads = kMaxLength; });
    refuses("length", kRotary, [](auto& p) { p.length = -1; });
    refuses("heads", kRotary, [](auto& p) { p.heads = 0; });
    refuses("head_dim", kRotary, [](auto& p) { p.head_dim = 9; });
    refuses("head_dim", kLearned, [](auto& p) { p.head_dim = 0; });
    refuses("model_dim", kRotary, [](auto& p) { p.model_dim = -1; });
    refuses("scale", kRotary, [](auto& p) { p.scale = 0; });
    refuses("window", Encoding::windowed, [](auto& p) { p.window = -1; });
    accepts("a window that is not used", kRotary, [](auto& p) { p.window = -1; });
    refuses("causal", Encoding::windowed, [](auto& p) { p.causal = false; });
    refuses("table", kLearned, [](auto& p) { p.table = nullptr; });
    refuses("table", Encoding::sinusoidal, [](auto& p) { p.table = nullptr; });
    accepts("no table", kRotary, [](auto& p) { p.table = nullptr; });
    accepts("no rotation", kLearned, [](auto& p) { p.cos = p.sin = p.gain = nullptr; });
    refuses("cos", kRotary, [](auto& p) { p.cos = nullptr; });
    refuses("sin", Encoding::windowed, [](auto& p) { p.sin = nullptr; });
    refuses("gain", Encoding::exposb, [](auto& p) { p.gain = nullptr; });
    refuses("x", kRotary, [](auto& p) { p.x = nullptr; });
    refuses("wq", kRotary, [](auto& p) { p.wq = nullptr; });
    refuses("wk", kRotary, [](auto& p) { p.wk = nullptr; });
    refuses("wv", kRotary, [](auto& p) { p.wv = nullptr; });
    refuses("o", kRotary, [](auto& p) { p.o = nullptr; });
    refuses("workspace", kRotary, [](auto& p) { p.workspace = nullptr; });
    refuses("workspace_bytes", kRotary, [](auto& p) { --p.workspace_bytes; });

    const auto backward = [&](Encoding encoding, const auto& change) {
      const Hidden p = hidden_problem(DType::bf16, encoding);
      return status_of(kHiddenBackwardLadder, p, change).message;
    };
    const auto no_dtable = [](auto& p) { p.dtable = nullptr; };
    CHECK(backward(kLearned, no_dtable).rfind("dtable: ", 0) == 0);
    CHECK(backward(Encoding::sinusoidal, no_dtable).empty());
    CHECK(backward(kRotary, [](auto& p) {
            p.dx = const_cast<void*>(p.x);
          }).rfind("dx: overlaps x", 0) == 0);
    CHECK(backward(kRotary, [](auto& p) { p.dwk = nullptr; }).rfind("dwk: ", 0) == 0);
    CHECK(backward(kRotary, [](auto& p) { p.lse = nullptr; }).rfind("lse: ", 0) == 0);
  }
}

}  // namespace windowed_rope
