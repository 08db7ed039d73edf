// Chapter 01 for ./tour and the benchmark.
#include "harness/inputs.hpp"
#include "harness/sample.hpp"
#include "harness/workload.hpp"
#include "reference.hpp"
#include "tile/host/text.hpp"

namespace vector_add {
namespace {

class Addition : public tile::LadderWorkload<Ladder> {
 public:
  explicit Addition(const Problem& p) : LadderWorkload(kLadder, p) {
    const std::vector<double> a = tile::uniform(p.n, p.type, 1, -1, 1);
    const std::vector<double> b = tile::uniform(p.n, p.type, 2, -1, 1);
    place(buffers_.a, tensors_.input("a", p.type, 1, p.n, a));
    place(buffers_.b, tensors_.input("b", p.type, 1, p.n, b));
    place(buffers_.c, tensors_.output("c", p.type, 1, p.n, {0}, reference(p.type, a, b)));
  }

  std::string name() const override {
    return std::string(tile::name(problem_.type)) + " n" + std::to_string(problem_.n);
  }
  double bytes() const override {
    return 3.0 * static_cast<double>(problem_.n) *
           static_cast<double>(tile::size_bytes(problem_.type));
  }
  std::string checked_part() const override {
    return tile::checked_text(problem_.n, problem_.n, "element");
  }
};

std::unique_ptr<tile::Workload> make(const std::vector<std::int64_t>& size, tile::DType type) {
  return std::make_unique<Addition>(Problem{type, size.at(0)});
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .ladders = {{.name = kLadder.name,
                 .kernels = kLadder.kernels,
                 .steps = tile::infos_of(kLadder),
                 .extents = {"n"},
                 .size_hint = "the elements of each vector",
                 .make = make,
                 .benchmark_sizes = {{1 << 20}, {1 << 24}, {1 << 28}},
                 .benchmark_types = {tile::DType::fp32, tile::DType::fp16, tile::DType::bf16},
                 // More than the CPU device's card runs threads at one time.
                 .whole_tiles = {{{98'304}, {4096}}}}}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace vector_add
