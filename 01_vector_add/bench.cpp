// Chapter 01 for ./tour and the benchmark.
#include <stdexcept>

#include "harness/buffer.hpp"
#include "harness/chapter.hpp"
#include "harness/cuda_check.hpp"
#include "harness/inputs.hpp"
#include "vector_add.hpp"

namespace vector_add {
namespace {

class Addition : public tile::Workload {
 public:
  explicit Addition(const Problem& problem)
      : problem_(problem),
        a_host_(tile::uniform(problem.n, problem.type, 1, -1, 1)),
        b_host_(tile::uniform(problem.n, problem.type, 2, -1, 1)),
        expected_(reference(problem.type, a_host_, b_host_)),
        a_(tile::DeviceBuffer::input("a", layout(), a_host_)),
        b_(tile::DeviceBuffer::input("b", layout(), b_host_)),
        c_(tile::DeviceBuffer::output("c", layout(), tile::Poison::unwritten_nan)) {}

  std::string name() const override {
    return std::string(tile::name(problem_.type)) + " n" + std::to_string(problem_.n);
  }
  double bytes() const override {
    return 3.0 * static_cast<double>(problem_.n) *
           static_cast<double>(tile::size_bytes(problem_.type));
  }
  tile::Status launch(std::size_t step, void* stream) override {
    return kSteps[step].launch(problem_, {a_.raw(), b_.raw(), c_.raw()}, stream);
  }
  tile::Comparison check() override {
    tile::Comparison result;
    const tile::Status status = tile::synchronize_status(nullptr);
    if (!status.ok()) {
      result.message = status.message;
      return result;
    }
    const std::vector<double> got = c_.download();
    c_.restore();
    return tile::compare("c", got, expected_);
  }

 private:
  tile::Layout layout() const { return tile::vector_layout(problem_.type, problem_.n); }

  Problem problem_;
  std::vector<double> a_host_, b_host_;
  tile::Expected expected_;
  tile::DeviceBuffer a_, b_, c_;
};

std::unique_ptr<tile::Workload> make(const std::vector<std::int64_t>& size, tile::DType type) {
  return std::make_unique<Addition>(Problem{type, size.at(0)});
}

const tile::Chapter kChapter{
    .name = kName,
    .title = kTitle,
    .next =
        "read 01_vector_add/README.md; then `./tour run 01 1 --size 1000` and "
        "`./tour test 01`",
    .steps = tile::infos_of(kSteps),
    .extents = {"n"},
    .size_on_cpu = {100'003},  // prime: the last block is not full
    .size_on_gpu = {1 << 26},
    .benchmark_sizes = {{1 << 20}, {1 << 24}, {1 << 28}},
    .benchmark_types = {tile::DType::fp32, tile::DType::fp16, tile::DType::bf16},
    .make = {make}};
const tile::RegisterChapter kRegistered{kChapter};

}  // namespace
}  // namespace vector_add
