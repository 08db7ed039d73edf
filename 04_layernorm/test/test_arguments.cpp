// Chapter 04's tests: what is refused before any step. All steps of a ladder share the same checks,
// so its first stands for them here.
#include "test_support.hpp"

namespace layernorm {
namespace {

constexpr std::int64_t kFewRows = 9, kFewCols = 7;

// Bytes of memory around every array, more than any of them but the workspace has.
constexpr std::int64_t kRoom = 2048;

template <class Problem>
using BuffersOf = typename Arrays<Problem>::Buffers;

// Memory for every array of such a problem, with more of it on both sides.
class Memory {
 public:
  explicit Memory(DType type) : element_(static_cast<std::int64_t>(tile::size_bytes(type))) {
    for (const char* name : {"x", "gamma", "beta", "y", "dy", "dx", "dgamma", "dbeta"}) {
      add(name, type);
    }
    for (const char* name : {"mean", "rstd"}) add(name, DType::fp32);
    add("workspace", DType::fp32, (workspace_bytes({type, kFewRows, kFewCols}) + 255) / 256 * 256);
  }

  ForwardBuffers buffers(const ForwardProblem& p) const {
    const bool layer = p.norm == Norm::layer;
    return {.x = at("x"),
            .gamma = at("gamma"),
            .beta = layer ? at("beta") : nullptr,
            .y = at("y"),
            .mean = static_cast<float*>(layer ? at("mean") : nullptr),
            .rstd = static_cast<float*>(at("rstd"))};
  }
  BackwardBuffers buffers(const BackwardProblem& p) const {
    const bool layer = p.norm == Norm::layer;
    return {.x = at("x"),
            .gamma = at("gamma"),
            .mean = static_cast<const float*>(layer ? at("mean") : nullptr),
            .rstd = static_cast<const float*>(at("rstd")),
            .dy = at("dy"),
            .dx = at("dx"),
            .dgamma = at("dgamma"),
            .dbeta = layer ? at("dbeta") : nullptr,
            .workspace = at("workspace")};
  }

  /// So many bytes after the start of an array, or before it.
  void* at(const std::string& name, std::int64_t bytes = 0) const {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return static_cast<char*>(arrays_[i].raw()) + kRoom + bytes;
    }
    FAIL("there is no " << name);
    return nullptr;
  }
  std::int64_t element() const { return element_; }

  void check_untouched() const {
    for (const DeviceBuffer& array : arrays_) {
      const Status untouched = array.check_unchanged();
      CHECK_MESSAGE(untouched.ok(), untouched.message);
    }
  }
  /// After a call that may have written something: checks the guards, and makes it undone.
  void restore() {
    for (DeviceBuffer& array : arrays_) {
      const Status intact = array.check_guards();
      CHECK_MESSAGE(intact.ok(), intact.message);
      array.restore();
    }
  }

 private:
  void add(const char* name, DType type, std::int64_t bytes = kRoom) {
    const auto element = static_cast<std::int64_t>(tile::size_bytes(type));
    const std::int64_t count = (2 * kRoom + bytes) / element;
    names_.emplace_back(name);
    arrays_.push_back(DeviceBuffer::in_out(name, tile::vector_layout(type, count),
                                           Values(static_cast<std::size_t>(count), 1.0)));
  }

  std::int64_t element_;
  std::vector<std::string> names_;
  std::vector<DeviceBuffer> arrays_;
};

// Sets a pointer among the buffers, whatever it points to.
void set(ForwardBuffers& b, const std::string& name, void* pointer) {
  if (name == "x") b.x = pointer;
  if (name == "gamma") b.gamma = pointer;
  if (name == "beta") b.beta = pointer;
  if (name == "y") b.y = pointer;
  if (name == "mean") b.mean = static_cast<float*>(pointer);
  if (name == "rstd") b.rstd = static_cast<float*>(pointer);
}
void set(BackwardBuffers& b, const std::string& name, void* pointer) {
  if (name == "x") b.x = pointer;
  if (name == "gamma") b.gamma = pointer;
  if (name == "mean") b.mean = static_cast<float*>(pointer);
  if (name == "rstd") b.rstd = static_cast<float*>(pointer);
  if (name == "dy") b.dy = pointer;
  if (name == "dx") b.dx = pointer;
  if (name == "dgamma") b.dgamma = pointer;
  if (name == "dbeta") b.dbeta = pointer;
  if (name == "workspace") b.workspace = pointer;
}

template <class Buffers>
Buffers with(Buffers b, const std::string& name, void* pointer) {
  set(b, name, pointer);
  return b;
}

template <class Problem, class Value>
Problem with(Problem p, Value Problem::*member, Value value) {
  p.*member = value;
  return p;
}

// Calls with memory of their own, that must be refused or accepted.
template <class Ladder>
struct Caller {
  using Problem = typename Ladder::Problem;
  using Buffers = typename Ladder::Buffers;
  const Ladder& ladder;
  Memory& memory;

  void refuses(const Problem& p, const Buffers& b, const std::string& argument,
               tile::Code code = tile::Code::invalid_argument) const {
    const std::string problem = describe(p, {}, {});
    CAPTURE(problem);
    CAPTURE(argument);
    const Status status = run(ladder, 0, p, b, nullptr);
    CHECK(status.code == code);
    CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
    const Status done = tile::synchronize_status(nullptr);
    CHECK_MESSAGE(done.ok(), done.message);
    memory.check_untouched();
  }
  void accepts(const Problem& p, const Buffers& b) const {
    const std::string problem = describe(p, {}, {});
    CAPTURE(problem);
    const Status launched = run(ladder, 0, p, b, nullptr);
    CHECK_MESSAGE(launched.ok(), launched.message);
    const Status done = tile::synchronize_status(nullptr);
    CHECK_MESSAGE(done.ok(), done.message);
    memory.restore();
  }
};

/// Calls `check(caller, type)` for both ladders and all types.
template <class Check>
void for_each_ladder(Check check) {
  for (const DType type : kTypesOfSteps) {
    Memory memory(type);
    check(Caller<ForwardLadder>{kForwardLadder, memory}, type);
    check(Caller<BackwardLadder>{kBackwardLadder, memory}, type);
  }
}

// What each pass reads, and what it writes beside its workspace.
using Names = std::vector<std::string>;
Names read(const ForwardProblem& p) {
  return p.norm == Norm::layer ? Names{"x", "gamma", "beta"} : Names{"x", "gamma"};
}
Names read(const BackwardProblem& p) {
  return p.norm == Norm::layer ? Names{"x", "gamma", "mean", "rstd", "dy"}
                               : Names{"x", "gamma", "rstd", "dy"};
}
Names written(const ForwardProblem& p) {
  return p.norm == Norm::layer ? Names{"y", "mean", "rstd"} : Names{"y", "rstd"};
}
Names written(const BackwardProblem& p) {
  return p.norm == Norm::layer ? Names{"dx", "dgamma", "dbeta"} : Names{"dx", "dgamma"};
}
template <class Problem>
bool may_be_null(const std::string& name) {
  if (name == "gamma" || name == "beta" || name == "dgamma" || name == "dbeta") return true;
  return kIsForward<Problem> && (name == "mean" || name == "rstd");
}

std::int64_t ld_of(const std::string& name, const ForwardProblem& p) {
  return name == "x" ? p.ldx : p.ldy;
}
std::int64_t ld_of(const std::string& name, const BackwardProblem& p) {
  return name == "x" ? p.ldx : name == "dy" ? p.lddy : p.lddx;
}

// Bytes from the start of an array to its end, with the padding between rows.
template <class Problem>
std::int64_t bytes_of(const std::string& name, const Problem& p) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  if (name == "mean" || name == "rstd") return p.rows * 4;
  if constexpr (!kIsForward<Problem>) {
    if (name == "workspace") return workspace_bytes(p);
  }
  if (name == "gamma" || name == "beta" || name == "dgamma" || name == "dbeta") {
    return p.cols * element;
  }
  return ((p.rows - 1) * ld_of(name, p) + p.cols) * element;
}

template <class Problem>
struct Distance {
  const char* name;
  const char* matrix;
  std::int64_t Problem::*member;
};
std::vector<Distance<ForwardProblem>> distances(const ForwardProblem&) {
  return {{"ldx", "x", &ForwardProblem::ldx}, {"ldy", "y", &ForwardProblem::ldy}};
}
std::vector<Distance<BackwardProblem>> distances(const BackwardProblem&) {
  return {{"ldx", "x", &BackwardProblem::ldx},
          {"lddy", "dy", &BackwardProblem::lddy},
          {"lddx", "dx", &BackwardProblem::lddx}};
}

}  // namespace

TEST_SUITE("chapter") {
  TEST_CASE("bad sizes and options are refused by name and nothing is written") {
    for_each_ladder([]<class Ladder>(const Caller<Ladder>& caller, DType type) {
      using Problem = typename Ladder::Problem;
      const Problem good{type, kFewRows, kFewCols};
      const auto buffers = caller.memory.buffers(good);
      auto refuses = [&](const Problem& p, const char* argument) {
        caller.refuses(p, buffers, argument);
      };
      refuses(with(good, &Problem::rows, std::int64_t{-1}), "rows");
      refuses(with(good, &Problem::cols, std::int64_t{-1}), "cols");
      refuses(with(with(good, &Problem::cols, std::int64_t{0}), &Problem::rows, std::int64_t{-1}),
              "rows");
      if constexpr (kIsForward<Problem>) {
        for (const float eps :
             {-1e-30f, -1.f, static_cast<float>(kNaN), std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity()}) {
          refuses(with_eps(good, eps), "eps");
        }
      }
      for (const int unknown : {-1, 2}) {
        refuses(with(good, &Problem::norm, static_cast<Norm>(unknown)), "norm");
      }
      for (const int unknown : {-1, 31, 32}) {
        caller.refuses(with(good, &Problem::type, static_cast<DType>(unknown)), buffers, "type",
                       tile::Code::unsupported);
      }
      for (const DType other : {DType::fp64, DType::tf32}) {
        caller.refuses(with(good, &Problem::type, other), buffers, "type", tile::Code::unsupported);
      }

      // Distances of rows, and sizes: in elements and in bytes.
      const std::int64_t most = (INT64_MAX / caller.memory.element() - kFewCols) / (kFewRows - 1);
      for (const Distance<Problem>& d : distances(good)) {
        for (const std::int64_t ld : {kFewCols - 1, std::int64_t{0}, -kFewCols}) {
          refuses(with(good, d.member, ld), d.name);
        }
        for (const std::int64_t ld : {most + 1, INT64_MAX / (kFewRows - 1) + 1, INT64_MAX}) {
          refuses(with(good, d.member, ld), d.matrix);
        }
        // As far apart as can be, if there is only one row.
        caller.accepts(with(with(good, &Problem::rows, std::int64_t{1}), d.member, INT64_MAX),
                       buffers);
        for (const std::int64_t rows : {std::int64_t{0}, kFewRows}) {
          const Problem empty =
              with(with(good, &Problem::rows, rows), &Problem::cols, std::int64_t{0});
          caller.accepts(with(empty, d.member, INT64_MAX), {});
          refuses(with(empty, d.member, std::int64_t{-1}), d.name);
        }
      }
      // As many rows as x of 16 bits may have, which are too many numbers of 32 bits.
      if (tile::size_bytes(type) == 2) refuses({type, INT64_MAX / 2, 1}, "mean");
    });
  }

  TEST_CASE("null and misaligned pointers are refused by name") {
    for_each_ladder([]<class Ladder>(const Caller<Ladder>& caller, DType type) {
      using Problem = typename Ladder::Problem;
      Memory& memory = caller.memory;
      for (const Norm norm : kNorms) {
        const Problem p{type, kFewRows, kFewCols, norm};
        const auto good = memory.buffers(p);
        Names names = read(p);
        const Names outputs = written(p);
        names.insert(names.end(), outputs.begin(), outputs.end());
        for (const std::string& name : names) {
          if (!may_be_null<Problem>(name)) caller.refuses(p, with(good, name, nullptr), name);
          caller.refuses(p, with(good, name, memory.at(name, 1)), name);
          if (name == "mean" || name == "rstd") {
            caller.refuses(p, with(good, name, memory.at(name, 2)), name);
          }
        }
        if constexpr (!kIsForward<Problem>) {
          caller.refuses(p, with(good, "workspace", nullptr), "workspace");
          for (const std::int64_t bytes : {1, 4, 8}) {
            caller.refuses(p, with(good, "workspace", memory.at("workspace", bytes)), "workspace");
          }
          caller.accepts(p, with(good, "workspace", memory.at("workspace", 16)));
        }
        if (norm == Norm::rms) {
          const Names absent = kIsForward<Problem> ? Names{"beta", "mean"} : Names{"mean", "dbeta"};
          for (const std::string& name : absent) {
            caller.refuses(p, with(good, name, memory.at(name)), name);
            const Problem empty = with(p, &Problem::cols, std::int64_t{0});
            caller.refuses(empty, with(typename Ladder::Buffers{}, name, memory.at(name)), name);
          }
        }
        // The nearest that are right.
        for (const std::string& name : names) {
          if (may_be_null<Problem>(name)) caller.accepts(p, with(good, name, nullptr));
          const bool statistic = name == "mean" || name == "rstd";
          caller.accepts(p, with(good, name, memory.at(name, statistic ? 4 : memory.element())));
        }
      }
    });
  }

  TEST_CASE("with nothing to compute pointers may be anything") {
    for_each_ladder([]<class Ladder>(const Caller<Ladder>& caller, DType type) {
      using Problem = typename Ladder::Problem;
      using Buffers = typename Ladder::Buffers;
      Memory& memory = caller.memory;
      const Problem good{type, kFewRows, kFewCols};
      const Problem no_rows = with(good, &Problem::rows, std::int64_t{0});
      Buffers odd;
      for (const char* name : {"x", "gamma", "beta", "y", "mean", "rstd", "dy", "dx", "dgamma",
                               "dbeta", "workspace"}) {
        set(odd, name, memory.at("x", 1));
      }
      for (const Buffers& buffers : {Buffers{}, odd}) {
        caller.accepts(with(good, &Problem::cols, std::int64_t{0}), buffers);
        if (kIsForward<Problem>) caller.accepts(no_rows, buffers);
      }
      if constexpr (!kIsForward<Problem>) {
        // Without rows dgamma and dbeta are still written, and nothing is read.
        BackwardBuffers sums;
        sums.workspace = memory.at("workspace");
        caller.accepts(no_rows, sums);
        for (const char* name : {"dgamma", "dbeta"}) {
          caller.refuses(no_rows, with(sums, name, memory.at(name, 1)), name);
        }
        sums.dgamma = memory.at("dgamma");
        caller.refuses(no_rows, with(sums, "dbeta", memory.at("dgamma", 6 * memory.element())),
                       "dbeta");
        odd.dgamma = memory.at("dgamma");
        odd.dbeta = memory.at("dgamma", 7 * memory.element());
        odd.workspace = memory.at("workspace");
        caller.accepts(no_rows, odd);
      }
    });
  }

  TEST_CASE("what is written overlaps nothing else") {
    for_each_ladder([]<class Ladder>(const Caller<Ladder>& caller, DType type) {
      Memory& memory = caller.memory;
      for (const Norm norm : kNorms) {
        // With padding, in which nothing may lie either.
        const auto p =
            padded(typename Ladder::Problem{type, kFewRows, kFewCols, norm}, Paddings{5, 6, 9, 5});
        const auto good = memory.buffers(p);
        Names before = read(p);
        // `moved` is laid over the first and over the last elements of `fixed`, and beside it.
        auto check = [&](const std::string& moved, const std::string& fixed,
                         const std::string& refused, std::int64_t alignment) {
          auto whole = [alignment](std::int64_t bytes) {
            return (bytes + alignment - 1) / alignment * alignment;
          };
          const std::int64_t end = bytes_of(fixed, p), size = bytes_of(moved, p);
          const std::int64_t last = (end - 1) / alignment * alignment;
          auto at = [&](std::int64_t bytes) { return with(good, moved, memory.at(fixed, bytes)); };
          caller.refuses(p, at(last), refused);
          caller.refuses(p, at(alignment - whole(size)), refused);
          caller.accepts(p, at(whole(end)));
          caller.accepts(p, at(-whole(size)));
        };
        for (const std::string& output : written(p)) {
          for (const std::string& other : before) check(output, other, output, 4);
          before.push_back(output);
        }
        if (kIsForward<typename Ladder::Problem>) continue;
        for (const std::string& other : before) check(other, "workspace", "workspace", 4);
      }
    });
  }

  TEST_CASE("the output may be an input with the same rows, and no other") {
    for_each_ladder([]<class Ladder>(const Caller<Ladder>& caller, DType type) {
      using Problem = typename Ladder::Problem;
      Memory& memory = caller.memory;
      const Problem p{type, kFewRows, kFewCols};
      const auto good = memory.buffers(p);
      constexpr bool kForwardPass = kIsForward<Problem>;
      const std::string output = kForwardPass ? "y" : "dx";
      const auto ld = distances(p).back().member;
      for (const std::string& input : kForwardPass ? Names{"x"} : Names{"x", "dy"}) {
        const auto same = with(good, output, memory.at(input));
        caller.refuses(with(p, ld, kFewCols + 1), same, output);
        caller.refuses(p, with(good, output, memory.at(input, 4)), output);
        // One row is the same at any distance to the next.
        const Problem one = with(p, &Problem::rows, std::int64_t{1});
        caller.accepts(p, same);
        caller.accepts(with(one, ld, kFewCols + 1), same);
        // But vectors, of which one row has as much, are not rows.
        const char* vector = kForwardPass ? "rstd" : "dgamma";
        caller.refuses(one, with(good, vector, memory.at(input)), vector);
      }
      // Inputs may overlap.
      const auto overlapping = with(good, "gamma", memory.at("x"));
      caller.accepts(p, with(overlapping, kForwardPass ? "beta" : "dy", memory.at("x")));
    });
  }
}

}  // namespace layernorm
