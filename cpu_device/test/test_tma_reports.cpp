// When copies by TMA happen, and what is said of what goes wrong with them, with named barriers and
// with setmaxnreg. CPU device only.
#include <cudaTypedefs.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "marks.hpp"
#include "report.hpp"
#include "tma_kernels.hpp"

using namespace device_test;
using cpu_device::options;

namespace {

constexpr const char* kFile = "cpu_device/test/tma_kernels.cu";

tile::TensorMap map_of(const float* data) {
  tile::TensorMap map;
  const tile::Status status = tile::make_tensor_map(
      "matrix", {tile::DType::fp32, data, 2, {32, 32}, {32}, {32, 4}, 0}, &map);
  if (!status.ok()) throw std::runtime_error(status.message);
  return map;
}

KernelFailure run(TmaMisuse what) {
  const DeviceArray<float> out(1024);
  misuse_tma(what, map_of(out.data()), out.data());
  return take_failure();
}

// Programs that are not part of this project ask the driver for its function.
TEST_CASE("tma: the driver's function makes the same map, and refuses what a card does") {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CHECK(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12000, cudaEnableDefault,
                                         &found) == cudaSuccess);
  CHECK(found == cudaDriverEntryPointSymbolNotFound);
  CHECK(function == nullptr);
  REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found) == cudaSuccess);
  REQUIRE(found == cudaDriverEntryPointSuccess);

  struct {
    size_t offset = 0;  // bytes
    cuuint32_t rank = 2;
    cuuint64_t extents[2] = {40, 30}, strides[1] = {80};
    cuuint32_t box[2] = {64, 16}, steps[2] = {1, 1};
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  } right;
  const DeviceArray<uint16_t> data(1200);
  CUtensorMap map;
  const auto encode = [&](const auto& with) {
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, with.rank,
        reinterpret_cast<char*>(data.data()) + with.offset, with.extents, with.strides, with.box,
        with.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, with.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  REQUIRE(encode(right) == CUDA_SUCCESS);
  tile::TensorMap ours;
  REQUIRE(tile::make_tensor_map(
              "matrix", {tile::DType::bf16, data.data(), 2, {40, 30}, {40}, {64, 16}, 128}, &ours)
              .ok());
  CHECK(map.tag == ours.tag);
  CHECK(map.type == ours.type);
  CHECK(map.rank == ours.rank);
  CHECK(map.element_bytes == ours.element_bytes);
  CHECK(map.swizzle_bytes == ours.swizzle_bytes);
  CHECK(map.data == ours.data);
  CHECK(std::memcmp(map.extents, ours.extents, sizeof map.extents) == 0);
  CHECK(std::memcmp(map.strides, ours.strides, sizeof map.strides) == 0);
  CHECK(std::memcmp(map.box, ours.box, sizeof map.box) == 0);

  const auto refuses = [&](auto change) {
    auto wrong = right;
    change(wrong);
    return encode(wrong) == CUDA_ERROR_INVALID_VALUE;
  };
  CHECK(refuses([](auto& w) { w.offset = 8; }));
  CHECK(refuses([](auto& w) { w.rank = 0; }));
  CHECK(refuses([](auto& w) { w.rank = 6; }));
  CHECK(refuses([](auto& w) { w.extents[1] = 0; }));
  CHECK(refuses([](auto& w) { w.strides[0] = 88; }));
  CHECK(refuses([](auto& w) { w.strides[0] = cuuint64_t{1} << 40; }));
  CHECK(refuses([](auto& w) { w.box[1] = 257; }));
  CHECK(refuses([](auto& w) { w.box[1] = 0; }));
  CHECK(refuses([](auto& w) { w.box[0] = 12; }));
  CHECK(refuses([](auto& w) { w.steps[1] = 2; }));
  CHECK(refuses([](auto& w) { w.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }));
}

struct Mistake {
  TmaMisuse misuse;
  const char* mark;
  cudaError_t error;
  std::string what;  // up to the line, if that follows
};

const Mistake kMistakes[] = {
    {TmaMisuse::misaligned_box, "box", cudaErrorMisalignedAddress,
     "thread 3 calls cp.async.bulk.tensor with an address in shared memory that is no multiple of "
     "128\n  at "},
    {TmaMisuse::misaligned_run, "run", cudaErrorMisalignedAddress,
     "thread 3 calls cp.async.bulk with an address in shared memory that is no multiple of 16\n  "
     "at "},
    {TmaMisuse::misaligned_global, "global", cudaErrorMisalignedAddress,
     "thread 3 calls cp.async.bulk with an address in global memory that is no multiple of 16\n  "
     "at "},
    {TmaMisuse::odd_bytes, "odd", cudaErrorLaunchFailure,
     "thread 3 calls cp.async.bulk with a number of bytes that is no multiple of 16\n  at "},
    {TmaMisuse::not_in_shared, "not_in_shared", cudaErrorIllegalAddress,
     "thread 3 calls cp.async.bulk.tensor with what is not in shared memory of its block\n  at "},
    {TmaMisuse::past_shared, "past", cudaErrorIllegalAddress,
     "thread 3 calls cp.async.bulk with what is not in shared memory of its block\n  at "},
    {TmaMisuse::from_shared, "from_shared", cudaErrorInvalidAddressSpace,
     "thread 3 calls cp.async.bulk with what is not in global memory\n  at "},
    {TmaMisuse::no_map, "no_map", cudaErrorLaunchFailure,
     "thread 3 calls prefetch.tensormap with a tensor map that make_tensor_map() has not made\n  "
     "at "},
    {TmaMisuse::three_coordinates, "three", cudaErrorLaunchFailure,
     "thread 3 calls cp.async.bulk.tensor with 3 coordinates, for a tensor of 2 axes\n  at "},
    {TmaMisuse::odd_column, "column", cudaErrorIllegalInstruction,
     "thread 3 calls cp.async.bulk.tensor with a box that begins at no multiple of 16 bytes of its "
     "rows\n  at "},
    {TmaMisuse::store_in_front, "in_front", cudaErrorIllegalInstruction,
     "thread 3 calls cp.async.bulk.tensor with a box to be stored that begins in front of the "
     "tensor\n  at "},
    {TmaMisuse::no_ranks, "no_ranks", cudaErrorLaunchFailure,
     "thread 3 calls cp.async.bulk.tensor with no block to load for\n  at "},
    {TmaMisuse::rank_too_large, "rank", cudaErrorIllegalAddress,
     "thread 3 asks for an address in the block of rank 1; its cluster has 1 block\n  at "},
    {TmaMisuse::mbarrier_in_global, "mbarrier", cudaErrorIllegalAddress,
     "thread 3 calls cp.async.bulk.tensor with an mbarrier that is not in shared memory\n  at "},
    {TmaMisuse::load_under_way, "load_under_way", cudaErrorLaunchFailure,
     "a block has ended before a load into its shared memory\n  issued by thread 3 at "},
    {TmaMisuse::store_under_way, "store_under_way", cudaErrorLaunchFailure,
     "thread 3 has ended before its store has read shared memory\n  issued at "},
    {TmaMisuse::store_in_no_group, "store_in_no_group", cudaErrorLaunchFailure,
     "thread 3 has ended before its store has read shared memory\n  issued at "},
    {TmaMisuse::barrier_0, "barrier_0", cudaErrorLaunchFailure,
     "thread 3 calls barrier.sync with a number that is not 1 to 15\n  at "},
    {TmaMisuse::odd_threads, "odd_threads", cudaErrorLaunchFailure,
     "thread 3 calls barrier.arrive with a number of threads that is no multiple of 32\n  at "},
    {TmaMisuse::more_threads, "more_threads", cudaErrorLaunchFailure,
     "thread 3 calls barrier.sync with more threads than the block has\n  at "},
    {TmaMisuse::second_arrival, "second", cudaErrorLaunchFailure,
     "thread 3 comes to barrier 1 a second time before the barrier is complete\n  at "},
    {TmaMisuse::registers_of_half, "of_half", cudaErrorLaunchFailure,
     "calls setmaxnreg.dec in a warpgroup of 64 threads; it takes 128\n  at "},
    {TmaMisuse::more_by_dec, "more", cudaErrorLaunchFailure,
     "calls setmaxnreg.dec for 48 registers, and has 40\n  at "},
    {TmaMisuse::fewer_by_inc, "fewer", cudaErrorLaunchFailure,
     "calls setmaxnreg.inc for 40 registers, and has 200\n  at "},
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

// The check build reports both.
TEST_CASE("a load lands when a thread waits, a store reads when its own thread does" *
          doctest::skip(cpu_device::kChecking)) {
  for (const NamedOrder& order : kOrders) {
    const OptionsGuard guard;
    options().order = order.order;
    options().seed = order.seed;
    std::vector<float> numbers(64), expected(64, -1);
    for (std::size_t i = 0; i < 64; ++i) numbers[i] = static_cast<float>(i);
    expected.insert(expected.end(), numbers.begin(), numbers.end());
    const DeviceArray<float> in(numbers), out(128), seen(2), to(64);
    look_at_load(in.data(), out.data());
    CHECK(out.download() == expected);
    overwrite_source(to.data(), seen.data());
    CHECK(seen.download() == std::vector<float>{0, 2});
    CHECK(to.download() == std::vector<float>(64, 2));
  }
}

TEST_CASE("a reduction that has only been read can come after that of the next block") {
  const OptionsGuard guard;
  for (const bool waits_until_done : {true, false}) {
    bool any_differs = false;
    for (uint64_t seed = 0; seed < 30; ++seed) {
      options().order = seed == 0 ? cpu_device::Order::forward : cpu_device::Order::random;
      options().seed = seed;
      const DeviceArray<unsigned> counters(std::vector<unsigned>(2));
      const DeviceArray<float> sums(std::vector<float>(4));
      add_in_turn(waits_until_done, counters.data(), sums.data());
      any_differs = any_differs || sums.download() != std::vector<float>(4);
    }
    CHECK(any_differs == !waits_until_done);
  }
}

TEST_CASE("a mistake with TMA, a named barrier or setmaxnreg ends the kernel with a report") {
  const OptionsGuard guard;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    CAPTURE(std::string(order.name));
    for (const Mistake& mistake : kMistakes) {
      CAPTURE(mistake.what);
      const KernelFailure failure = run(mistake.misuse);
      CHECK(std::string(cudaGetErrorName(failure.error)) == cudaGetErrorName(mistake.error));
      CHECK_MESSAGE(contains(failure.report, mistake.what + marked(kFile, mistake.mark)),
                    failure.report);
    }
    CHECK(run(TmaMisuse::none).error == cudaSuccess);
  }
}

TEST_CASE("what is missing after the copy is said") {
  const OptionsGuard guard;
  CHECK(
      contains(run(TmaMisuse::load_under_way).report, "\n  missing: an mbarrier_wait() for it\n"));
  CHECK(contains(run(TmaMisuse::store_under_way).report, "\n  missing: a bulk_wait_read<0>()\n"));
  CHECK(contains(run(TmaMisuse::store_in_no_group).report,
                 "\n  missing: a bulk_commit() and a bulk_wait_read<0>()\n"));
}

TEST_CASE("threads that wait for ever say what for") {
  const OptionsGuard guard;
  options().hang_seconds = 1000;
  for (const NamedOrder& order : kOrders) {
    options().order = order.order;
    options().seed = order.seed;
    CAPTURE(std::string(order.name));
    const auto check = [](TmaMisuse misuse, const char* call, const char* mark,
                          const std::string& what) {
      const KernelFailure failure = run(misuse);
      CHECK(failure.error == cudaErrorLaunchFailure);
      CHECK_MESSAGE(contains(failure.report,
                             std::string(" at ") + call + ", " + marked(kFile, mark) + what + "\n"),
                    failure.report);
    };
    check(TmaMisuse::too_few_bytes, "mbarrier_wait()", "bytes",
          ", for phase 1 (parity 0) of barrier, which has 240 bytes that no thread expects");
    check(TmaMisuse::too_many_bytes, "mbarrier_wait()", "bytes",
          ", for phase 1 (parity 0) of barrier, which misses 256 bytes");
    check(TmaMisuse::waits_alone, "barrier_sync()", "alone",
          ", barrier 5, to which 32 of 64 threads have come");
    check(TmaMisuse::too_many_registers, "setmaxnreg", "too_many",
          ", for 7168 registers more, of which other warpgroups have given up 1024");
    check(TmaMisuse::one_of_warpgroup, "setmaxnreg", "one",
          ", to which 32 of 128 threads have come");
  }
}

TEST_CASE("a barrier is for whole warps, and for as many as all of them say") {
  const OptionsGuard guard;
  CHECK(contains(
      run(TmaMisuse::other_threads).report,
      "names 96 threads at barrier 2, where another has named 64, at " + marked(kFile, "named")));
  CHECK(contains(run(TmaMisuse::half_warp).report,
                 "completes barrier 4, to which 16 of 32 threads of warp 0 have come; all threads "
                 "of a warp must"));
}

// In the check build it is a finding.
TEST_CASE("a block that has ended is out of reach" * doctest::skip(cpu_device::kChecking)) {
  const OptionsGuard guard;
  const DeviceArray<float> memory(1024);
  reach_the_ended(false, map_of(memory.data()));
  CHECK(contains(take_failure().report, "arrives at an mbarrier of a block that has ended\n  at " +
                                            marked(kFile, "arrive_at_ended")));
  reach_the_ended(true, map_of(memory.data()));
  CHECK(contains(take_failure().report,
                 "calls cp.async.bulk.tensor for a block that has ended\n  at " +
                     marked(kFile, "load_for_ended")));
}

TEST_CASE("a card without TMA refuses it") {
  const OptionsGuard guard;
  const DeviceArray<float> out(1024);
  const tile::TensorMap map = map_of(out.data());
  options().capability = 89;
  misuse_tma(TmaMisuse::none, map, out.data());
  CHECK(contains(take_failure().report, ", which needs compute capability 9.0; this card has 8.9"));
}
