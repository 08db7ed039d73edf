// Chapter 04's tests: what every step refuses, and how it launches.
#include "test_support.hpp"

namespace layernorm {
namespace {

constexpr std::int64_t kRows = 9, kCols = 7;

// Bytes of memory around every array, more than any of them but the workspace has.
constexpr std::int64_t kRoom = 2048;

// Memory for every array of such a problem, with more of it on both sides.
class Memory {
 public:
  explicit Memory(DType type) : element_(static_cast<std::int64_t>(tile::size_bytes(type))) {
    for (const char* name : {"x", "gamma", "beta", "y", "dy", "dx", "dgamma", "dbeta"}) {
      add(name, type);
    }
    for (const char* name : {"mean", "rstd"}) add(name, DType::fp32);
    const Problem p = toward(plain(type, kRows, kCols), Direction::backward);
    add("workspace", DType::fp32, (workspace_bytes(p) + 255) / 256 * 256);
  }

  Buffers buffers(const Problem& p) const {
    const bool forward = p.direction == Direction::forward, layer = p.norm == Norm::layer;
    Buffers b;
    b.x = at("x");
    b.gamma = at("gamma");
    if (layer) b.mean = static_cast<float*>(at("mean"));
    b.rstd = static_cast<float*>(at("rstd"));
    if (forward) {
      if (layer) b.beta = at("beta");
      b.y = at("y");
    } else {
      b.dy = at("dy");
      b.dx = at("dx");
      b.dgamma = at("dgamma");
      if (layer) b.dbeta = at("dbeta");
      b.workspace = at("workspace");
    }
    return b;
  }

  /// So many bytes behind the start of an array, or before it.
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

// A pointer among the Buffers, whatever it points to.
using Set = void (*)(Buffers&, void*);
struct Pointer {
  const char* name;
  Set set;
};
constexpr Pointer kPointers[] = {
    {"x", [](Buffers& b, void* p) { b.x = p; }},
    {"gamma", [](Buffers& b, void* p) { b.gamma = p; }},
    {"beta", [](Buffers& b, void* p) { b.beta = p; }},
    {"y", [](Buffers& b, void* p) { b.y = p; }},
    {"mean", [](Buffers& b, void* p) { b.mean = static_cast<float*>(p); }},
    {"rstd", [](Buffers& b, void* p) { b.rstd = static_cast<float*>(p); }},
    {"dy", [](Buffers& b, void* p) { b.dy = p; }},
    {"dx", [](Buffers& b, void* p) { b.dx = p; }},
    {"dgamma", [](Buffers& b, void* p) { b.dgamma = p; }},
    {"dbeta", [](Buffers& b, void* p) { b.dbeta = p; }},
    {"workspace", [](Buffers& b, void* p) { b.workspace = p; }},
};

Buffers with(Buffers b, const std::string& name, void* pointer) {
  for (const Pointer& each : kPointers) {
    if (name == each.name) each.set(b, pointer);
  }
  return b;
}

template <class Value>
Problem with(Problem p, Value Problem::*member, Value value) {
  p.*member = value;
  return p;
}

// Calls with memory of their own, that must be refused or accepted.
struct Caller {
  const Step& step;
  Memory& memory;

  void refuses(const Problem& p, const Buffers& b, const std::string& argument,
               tile::Code code = tile::Code::invalid_argument) const {
    CAPTURE(step.name);
    const std::string problem = describe(p, {}, {});
    CAPTURE(problem);
    CAPTURE(argument);
    const Status status = step.launch(p, b, nullptr);
    CHECK(status.code == code);
    CHECK_MESSAGE(status.message.rfind(argument + ": ", 0) == 0, status.message);
    const Status done = tile::synchronize_status(nullptr);
    CHECK_MESSAGE(done.ok(), done.message);
    memory.check_untouched();
  }
  void accepts(const Problem& p, const Buffers& b) const {
    CAPTURE(step.name);
    const std::string problem = describe(p, {}, {});
    CAPTURE(problem);
    const Status done = tile::run_step(step, p, b);
    CHECK_MESSAGE(done.ok(), done.message);
    memory.restore();
  }
};

// What each direction reads, and what it writes beside its workspace.
std::vector<std::string> read(const Problem& p) {
  const bool layer = p.norm == Norm::layer;
  if (p.direction == Direction::forward) {
    return layer ? std::vector<std::string>{"x", "gamma", "beta"}
                 : std::vector<std::string>{"x", "gamma"};
  }
  return layer ? std::vector<std::string>{"x", "gamma", "mean", "rstd", "dy"}
               : std::vector<std::string>{"x", "gamma", "rstd", "dy"};
}
std::vector<std::string> written(const Problem& p) {
  const bool layer = p.norm == Norm::layer;
  if (p.direction == Direction::forward) {
    return layer ? std::vector<std::string>{"y", "mean", "rstd"}
                 : std::vector<std::string>{"y", "rstd"};
  }
  return layer ? std::vector<std::string>{"dx", "dgamma", "dbeta"}
               : std::vector<std::string>{"dx", "dgamma"};
}
bool may_be_null(const std::string& name, Direction direction) {
  if (name == "gamma" || name == "beta" || name == "dgamma" || name == "dbeta") return true;
  return direction == Direction::forward && (name == "mean" || name == "rstd");
}

// Bytes from the start of an array to its end, with the padding between rows.
std::int64_t bytes_of(const std::string& name, const Problem& p) {
  const auto element = static_cast<std::int64_t>(tile::size_bytes(p.type));
  if (name == "mean" || name == "rstd") return p.rows * 4;
  if (name == "workspace") return workspace_bytes(p);
  if (name == "gamma" || name == "beta" || name == "dgamma" || name == "dbeta") {
    return p.cols * element;
  }
  const std::int64_t ld = name == "x"    ? p.ldx
                          : name == "y"  ? p.ldy
                          : name == "dy" ? p.lddy
                                         : p.lddx;
  return ((p.rows - 1) * ld + p.cols) * element;
}

}  // namespace

TEST_SUITE("step") {
  TEST_CASE("bad sizes and options are refused by name and nothing is written") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      Memory memory(type);
      const Caller caller{step, memory};
      const Problem good = toward(plain(type, kRows, kCols), direction);
      const Buffers buffers = memory.buffers(good);
      auto refuses = [&](const Problem& p, const char* argument) {
        caller.refuses(p, buffers, argument);
      };
      refuses(with(good, &Problem::rows, std::int64_t{-1}), "rows");
      refuses(with(good, &Problem::cols, std::int64_t{-1}), "cols");
      refuses(with(with(good, &Problem::cols, std::int64_t{0}), &Problem::rows, std::int64_t{-1}),
              "rows");
      for (const float eps :
           {-1e-30f, -1.f, static_cast<float>(kNaN), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        refuses(with_eps(good, eps), "eps");
      }
      for (const int unknown : {-1, 2}) {
        refuses(with(good, &Problem::norm, static_cast<Norm>(unknown)), "norm");
      }
      for (const int unknown : {-1, 31, 32}) {
        caller.refuses(with(good, &Problem::type, static_cast<DType>(unknown)), buffers, "type",
                       tile::Code::unsupported);
      }
      for (const DType other : tile::kDTypes) {
        if (step.types.contains(other)) continue;
        caller.refuses(with(good, &Problem::type, other), buffers, "type", tile::Code::unsupported);
      }

      // Distances of rows, and sizes: in elements and in bytes.
      struct Distance {
        const char* name;
        const char* matrix;
        std::int64_t Problem::*member;
      };
      using Distances = std::vector<Distance>;
      const Distances forward{{"ldx", "x", &Problem::ldx}, {"ldy", "y", &Problem::ldy}};
      const Distances backward{{"ldx", "x", &Problem::ldx},
                               {"lddy", "dy", &Problem::lddy},
                               {"lddx", "dx", &Problem::lddx}};
      const std::int64_t most = (INT64_MAX / memory.element() - kCols) / (kRows - 1);
      for (const Distance& d : direction == Direction::forward ? forward : backward) {
        for (const std::int64_t ld : {kCols - 1, std::int64_t{0}, -kCols}) {
          refuses(with(good, d.member, ld), d.name);
        }
        for (const std::int64_t ld : {most + 1, INT64_MAX / (kRows - 1) + 1, INT64_MAX}) {
          refuses(with(good, d.member, ld), d.matrix);
        }
        // As far apart as can be, if there is only one row.
        caller.accepts(with(with(good, &Problem::rows, std::int64_t{1}), d.member, INT64_MAX),
                       buffers);
        for (const std::int64_t rows : {std::int64_t{0}, kRows}) {
          const Problem empty =
              with(with(good, &Problem::rows, rows), &Problem::cols, std::int64_t{0});
          caller.accepts(with(empty, d.member, INT64_MAX), {});
          refuses(with(empty, d.member, std::int64_t{-1}), d.name);
        }
      }
      // The other direction's do not matter.
      for (const Distance& d : direction == Direction::forward ? backward : forward) {
        if (d.member == &Problem::ldx) continue;
        caller.accepts(with(good, d.member, std::int64_t{-1}), buffers);
      }
    });
  }

  TEST_CASE("mean and rstd count in bytes too") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      if (tile::size_bytes(type) != 2) return;
      Memory memory(type);
      // As many rows as x of 16 bits may have, which are too many numbers of 32 bits.
      const Problem p = toward(plain(type, INT64_MAX / 2, 1), direction);
      Caller{step, memory}.refuses(p, memory.buffers(p), "mean");
    });
  }

  TEST_CASE("null and misaligned pointers are refused by name") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      for (const Norm norm : kNorms) {
        Memory memory(type);
        const Caller caller{step, memory};
        const Problem p = toward(plain(type, kRows, kCols, norm), direction);
        const Buffers good = memory.buffers(p);
        std::vector<std::string> names = read(p);
        const std::vector<std::string> outputs = written(p);
        names.insert(names.end(), outputs.begin(), outputs.end());
        for (const std::string& name : names) {
          if (!may_be_null(name, direction)) caller.refuses(p, with(good, name, nullptr), name);
          caller.refuses(p, with(good, name, memory.at(name, 1)), name);
          if (name == "mean" || name == "rstd") {
            caller.refuses(p, with(good, name, memory.at(name, 2)), name);
          }
        }
        if (workspace_bytes(p) > 0) {
          caller.refuses(p, with(good, "workspace", nullptr), "workspace");
          for (const std::int64_t bytes : {1, 4, 8}) {
            caller.refuses(p, with(good, "workspace", memory.at("workspace", bytes)), "workspace");
          }
        }
        if (norm == Norm::rms) {
          for (const char* name : {"beta", "mean", "dbeta"}) {
            caller.refuses(p, with(good, name, memory.at(name)), name);
            const Problem empty = with(p, &Problem::cols, std::int64_t{0});
            caller.refuses(empty, with(Buffers{}, name, memory.at(name)), name);
          }
        }
        // The nearest that are right.
        for (const std::string& name : names) {
          if (may_be_null(name, direction)) caller.accepts(p, with(good, name, nullptr));
          const bool statistic = name == "mean" || name == "rstd";
          caller.accepts(p, with(good, name, memory.at(name, statistic ? 4 : memory.element())));
        }
        caller.accepts(p, with(good, "workspace", memory.at("workspace", 16)));
        if (direction == Direction::forward) {
          caller.accepts(p, with(good, "workspace", memory.at("workspace", 1)));  // is not used
        }
      }
    });
  }

  TEST_CASE("with nothing to compute pointers may be anything") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      Memory memory(type);
      const Caller caller{step, memory};
      const Problem good = toward(plain(type, kRows, kCols), direction);
      Buffers odd;
      for (const Pointer& pointer : kPointers) pointer.set(odd, memory.at("x", 1));
      for (const Buffers& buffers : {Buffers{}, odd}) {
        caller.accepts(with(good, &Problem::cols, std::int64_t{0}), buffers);
        if (direction == Direction::forward) {
          caller.accepts(with(good, &Problem::rows, std::int64_t{0}), buffers);
        }
      }
      if (direction == Direction::forward) return;
      // Without rows dgamma and dbeta are still written, and nothing is read.
      const Problem no_rows = with(good, &Problem::rows, std::int64_t{0});
      Buffers sums;
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
    });
  }

  TEST_CASE("what is written overlaps nothing else") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      tile::Selection selection(step.types, type);
      for (const Norm norm : kNorms) {
        if (!selection.takes_next()) continue;
        // With padding, in which nothing may lie either.
        const Problem p = padded(toward(plain(type, kRows, kCols, norm), direction), {5, 6, 9, 5});
        Memory memory(type);
        const Caller caller{step, memory};
        const Buffers good = memory.buffers(p);
        std::vector<std::string> before = read(p);
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
        if (direction == Direction::forward || workspace_bytes(p) == 0) continue;
        for (const std::string& other : before) check(other, "workspace", "workspace", 4);
      }
    });
  }

  TEST_CASE("the output may be an input with the same rows, and no other") {
    for_each_direction([](const Step& step, DType type, Direction direction) {
      Memory memory(type);
      const Caller caller{step, memory};
      const Problem p = toward(plain(type, kRows, kCols), direction);
      const Buffers good = memory.buffers(p);
      const bool forward = direction == Direction::forward;
      const std::string output = forward ? "y" : "dx";
      const auto ld = forward ? &Problem::ldy : &Problem::lddx;
      for (const std::string& input :
           forward ? std::vector<std::string>{"x"} : std::vector<std::string>{"x", "dy"}) {
        const Buffers same = with(good, output, memory.at(input));
        caller.refuses(with(p, ld, kCols + 1), same, output);
        caller.refuses(p, with(good, output, memory.at(input, 4)), output);
        // One row is the same at any distance to the next.
        const Problem one = with(p, &Problem::rows, std::int64_t{1});
        caller.accepts(p, same);
        caller.accepts(with(one, ld, kCols + 1), same);
        // But vectors, of which one row has as much, are not rows.
        caller.refuses(one, with(good, forward ? "rstd" : "dgamma", memory.at(input)),
                       forward ? "rstd" : "dgamma");
      }
      // Inputs may overlap.
      Buffers overlapping = with(good, "gamma", memory.at("x"));
      overlapping = forward ? with(overlapping, "beta", memory.at("x"))
                            : with(overlapping, "dy", memory.at("x"));
      caller.accepts(p, overlapping);
    });
  }

  TEST_CASE("the direction that a step does not know is refused") {
    tile::for_each_step(kSteps, [](const Step& step, DType type) {
      for (const Direction direction : kDirections) {
        const Problem p = toward(plain(type, kRows, kCols), direction);
        if (step.supports(p).ok()) continue;
        Memory memory(type);
        Caller{step, memory}.refuses(p, memory.buffers(p), "direction", tile::Code::unsupported);
        CHECK(step.supports(p).code == tile::Code::unsupported);
      }
    });
  }
}

TEST_SUITE("launch") {
  TEST_CASE("the kernels run in the stream they were given, and a launch that fails is reported") {
    // A stream that does not exist shows both.
    if (!tile::device().simulated) return tile::skip("a GPU's driver may crash on such a stream");
    for_each_direction([](const Step& step, DType type, Direction direction) {
      CAPTURE(step.name);
      for (const std::int64_t cols : {5, 64, 3000, 20'000}) {
        const Problem p = toward(plain(type, 3, cols), direction);
        const Arrays arrays(p, normal(p), {}, Poison::unwritten_nan);
        int no_stream = 0;
        const Status status = step.launch(p, arrays.buffers(), &no_stream);
        CHECK(status.code == tile::Code::device_error);
        const bool named =
            status.message.find("cudaErrorInvalidResourceHandle") != std::string::npos;
        CHECK_MESSAGE(named, status.message);
        arrays.check_untouched();
      }
    });
  }
}

}  // namespace layernorm
