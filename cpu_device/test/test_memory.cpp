// Vector types, loads and stores with hints, copies and fills, page-locked memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "block_kernels.hpp"
#include "device_array.hpp"
#include "memory_kernels.hpp"

using namespace device_test;

namespace {

template <class T>
std::vector<unsigned char> bytes_of(const std::vector<T>& values) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Copies bytes that are all different, by every load and store.
template <class T>
void check_hints() {
  const unsigned count = 150;
  std::vector<T> in(count);
  for (unsigned i = 0; i < count; ++i) {
    unsigned char bytes[sizeof(T)];
    // Numbers, not NaNs, in float and double.
    for (size_t b = 0; b < sizeof(T); ++b) bytes[b] = static_cast<unsigned char>((i * 5 + b) % 63);
    std::memcpy(&in[i], bytes, sizeof(T));
  }
  const DeviceArray<T> device_in(in), device_out(count * (kLoads + kStores));
  copy_with_hints(device_in.data(), device_out.data(), count);
  const std::vector<unsigned char> out = bytes_of(device_out.download());
  std::vector<unsigned char> expected;
  for (int copy = 0; copy < kLoads + kStores; ++copy) {
    const std::vector<unsigned char> bytes = bytes_of(in);
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  CHECK(out == expected);
}

}  // namespace

TEST_CASE("loads and stores with hints") {
#define CHECK_HINTS(T) check_hints<T>();
  DEVICE_TEST_LOADED_TYPES(CHECK_HINTS)
}

namespace {

template <class Vector, class Element>
void check_vector(const unsigned char* bytes, size_t elements, size_t alignment) {
  CHECK(sizeof(Vector) == sizeof(Element) * elements);
  CHECK(alignof(Vector) == alignment);
  for (size_t i = 0; i < elements; ++i) {
    Element element;
    std::memcpy(&element, bytes + i * sizeof element, sizeof element);
    CHECK(element == static_cast<Element>(i + 1));
  }
}

}  // namespace

TEST_CASE("vectors are their elements one after the other, on the host and on the device") {
  const DeviceArray<unsigned char> device_bytes(64 * kVectorBytes);
  const int made = make_vectors(device_bytes.data());
  const std::vector<unsigned char> bytes = device_bytes.download();
  int checked = 0;
#define CHECK_VECTOR(Vector, Element, elements, alignment)                                       \
  check_vector<Vector, Element>(&bytes[kVectorBytes * static_cast<size_t>(checked++)], elements, \
                                alignment);
  DEVICE_TEST_VECTOR_TYPES(CHECK_VECTOR)
  CHECK(checked == made);
}

namespace {

/// What cudaMemcpy2D promises, on the host.
void copy_rows(unsigned char* to, size_t to_pitch, const unsigned char* from, size_t from_pitch,
               size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) {
    std::copy_n(from + row * from_pitch, width, to + row * to_pitch);
  }
}

std::vector<unsigned char> some_bytes(size_t count, int seed) {
  std::vector<unsigned char> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 31 + i / 256 + seed);
  return bytes;
}

}  // namespace

TEST_CASE("copies between host and device, in every direction") {
  const size_t count = 10'000;
  const std::vector<unsigned char> in = some_bytes(count, 1);
  const DeviceArray<unsigned char> a(count), b(count);
  std::vector<unsigned char> out(count);
  for (const bool named : {true, false}) {
    CAPTURE(named);
    auto kind = [named](cudaMemcpyKind k) { return named ? k : cudaMemcpyDefault; };
    std::ranges::fill(out, 0);
    require(cudaMemset(a.data(), 0, count));
    require(cudaMemcpy(a.data(), in.data(), count, kind(cudaMemcpyHostToDevice)));
    require(cudaMemcpyAsync(b.data(), a.data(), count, kind(cudaMemcpyDeviceToDevice), nullptr));
    // Inside an allocation, at odd places.
    require(cudaMemcpy(a.data() + 13, b.data() + 501, 77, kind(cudaMemcpyDeviceToDevice)));
    require(cudaMemcpy(out.data(), b.data(), count, kind(cudaMemcpyDeviceToHost)));
    CHECK(out == in);
    require(cudaMemcpyAsync(out.data(), a.data(), count, kind(cudaMemcpyDeviceToHost), nullptr));
    require(cudaStreamSynchronize(nullptr));
    std::vector<unsigned char> expected = in;
    std::copy_n(in.begin() + 501, 77, expected.begin() + 13);
    CHECK(out == expected);
    require(cudaMemcpy(out.data(), in.data(), count, kind(cudaMemcpyHostToHost)));
    CHECK(out == in);
  }
  require(cudaMemcpy(a.data(), nullptr, 0, cudaMemcpyHostToDevice));
}

TEST_CASE("copies of rows") {
  const struct {
    size_t to_pitch, from_pitch, width, height;
  } shapes[] = {
      {100, 100, 100, 7}, {64, 48, 33, 9}, {33, 128, 33, 5}, {10, 10, 10, 1}, {40, 50, 1, 20}};
  for (const auto& [to_pitch, from_pitch, width, height] : shapes) {
    const std::vector<unsigned char> in = some_bytes(from_pitch * height, 2);
    const std::vector<unsigned char> before = some_bytes(to_pitch * height, 3);
    std::vector<unsigned char> expected = before, out = before;
    copy_rows(expected.data(), to_pitch, in.data(), from_pitch, width, height);

    const DeviceArray<unsigned char> from(in), to(before);
    require(cudaMemcpy2D(to.data(), to_pitch, from.data(), from_pitch, width, height,
                         cudaMemcpyDeviceToDevice));
    CHECK(to.download() == expected);
    require(cudaMemcpy2D(out.data(), to_pitch, from.data(), from_pitch, width, height,
                         cudaMemcpyDeviceToHost));
    CHECK(out == expected);
    const DeviceArray<unsigned char> again(before);
    require(cudaMemcpy2D(again.data(), to_pitch, in.data(), from_pitch, width, height,
                         cudaMemcpyDefault));
    CHECK(again.download() == expected);
  }
}

TEST_CASE("fills") {
  const size_t count = 1000;
  const std::vector<unsigned char> before = some_bytes(count, 4);
  const DeviceArray<unsigned char> a(before);
  std::vector<unsigned char> expected = before;
  require(cudaMemset(a.data() + 3, 0x1ab, 500));  // the low byte counts
  std::fill_n(expected.begin() + 3, 500, 0xab);
  require(cudaMemsetAsync(a.data() + 999, 7, 1, nullptr));
  expected[999] = 7;
  require(cudaMemset(a.data(), 9, 0));
  CHECK(a.download() == expected);
}

TEST_CASE("allocations are aligned, apart, and counted") {
  size_t free_before = 0, total = 0, free_after = 0;
  require(cudaMemGetInfo(&free_before, &total));
  CHECK(free_before <= total);
  void* pointers[40];
  for (size_t i = 0; i < std::size(pointers); ++i) {
    require(cudaMalloc(&pointers[i], i * 1000 + 1));
    CHECK(reinterpret_cast<size_t>(pointers[i]) % 256 == 0);
    require(cudaMemset(pointers[i], static_cast<int>(i), i * 1000 + 1));
  }
  for (size_t i = 0; i < std::size(pointers); ++i) {
    std::vector<unsigned char> got(i * 1000 + 1);
    require(cudaMemcpy(got.data(), pointers[i], got.size(), cudaMemcpyDeviceToHost));
    CHECK(std::ranges::count(got, i) == static_cast<long>(got.size()));
    require(cudaFree(pointers[i]));
  }
  void* large = nullptr;
  const size_t bytes = size_t{64} << 20;
  require(cudaMemGetInfo(&free_before, &total));
  require(cudaMalloc(&large, bytes));
  require(cudaMemGetInfo(&free_after, &total));
  CHECK(free_before - free_after >= bytes);
  require(cudaFree(large));
  require(cudaFree(nullptr));
  void* nothing = large;
  require(cudaMalloc(&nothing, 0));
  CHECK(nothing == nullptr);
}

TEST_CASE("page-locked memory is the host's and the device's") {
  void* memory = nullptr;
  require(cudaMallocHost(&memory, 64 * sizeof(int)));
  int* const host = static_cast<int*>(memory);
  std::fill_n(host, 64, -1);
  number_threads(host, 2, 32);
  require_kernels_ran();
  for (int i = 0; i < 64; ++i) CHECK(host[i] == i);

  const DeviceArray<int> device(64);
  cudaPointerAttributes attributes{};
  require(cudaPointerGetAttributes(&attributes, host));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(attributes.hostPointer == host);
  require(cudaPointerGetAttributes(&attributes, device.data() + 5));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 0);
  CHECK(attributes.devicePointer == device.data() + 5);
  int local = 0;
  require(cudaPointerGetAttributes(&attributes, &local));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);

  require(cudaMemcpy(device.data(), host, 64 * sizeof(int), cudaMemcpyHostToDevice));
  std::vector<int> expected(64);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(device.download() == expected);
  require(cudaFreeHost(host));
  require(cudaFreeHost(nullptr));
}

namespace {

cudaMemPoolProps pool_properties() {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  return properties;
}

cudaMemPool_t make_pool() {
  cudaMemPool_t pool = nullptr;
  const cudaMemPoolProps properties = pool_properties();
  require(cudaMemPoolCreate(&pool, &properties));
  return pool;
}

}  // namespace

TEST_CASE("memory in the order of a stream") {
  cudaMemPool_t pool = make_pool();
  std::uint64_t threshold = ~std::uint64_t{0};
  require(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  const std::vector<unsigned char> in = some_bytes(1000, 5);
  for (int round = 0; round < 3; ++round) {
    void* a = nullptr;
    void* b = nullptr;
    require(cudaMallocFromPoolAsync(&a, in.size(), pool, stream));
    require(cudaMallocFromPoolAsync(&b, 1, pool, stream));
    CHECK(a != b);
    CHECK(reinterpret_cast<size_t>(a) % 256 == 0);
    std::vector<unsigned char> out(in.size());
    require(cudaMemcpyAsync(a, in.data(), in.size(), cudaMemcpyHostToDevice, stream));
    require(cudaMemcpyAsync(out.data(), a, in.size(), cudaMemcpyDeviceToHost, stream));
    require(cudaFreeAsync(b, stream));
    require(cudaFreeAsync(a, stream));
    require(cudaStreamSynchronize(stream));
    CHECK(out == in);
  }
  // The pool may go before its memory, and cudaFree frees that as well.
  void* last = nullptr;
  require(cudaMallocFromPoolAsync(&last, 10, pool, stream));
  require(cudaMemPoolDestroy(pool));
  require(cudaMemsetAsync(last, 1, 10, stream));
  require(cudaStreamSynchronize(stream));
  require(cudaFree(last));
  require(cudaStreamDestroy(stream));
}

TEST_CASE("what is wrong with a pool") {
  cudaMemPool_t pool = nullptr;
  const auto create = [&](auto spoil) {
    cudaMemPoolProps properties = pool_properties();
    spoil(properties);
    const cudaError_t error = cudaMemPoolCreate(&pool, &properties);
    CHECK(cudaGetLastError() == error);
    return error;
  };
  CHECK(create([](auto& p) { p.allocType = cudaMemAllocationTypeInvalid; }) != cudaSuccess);
  CHECK(create([](auto& p) { p.location.type = cudaMemLocationTypeInvalid; }) != cudaSuccess);
  CHECK(create([](auto& p) { p.location.id = 1000; }) != cudaSuccess);
  CHECK(cudaMemPoolCreate(nullptr, nullptr) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);

  pool = make_pool();
  int dummy = 0;
  CHECK(cudaMemPoolSetAttribute(pool, static_cast<cudaMemPoolAttr>(99), &dummy) ==
        cudaErrorInvalidValue);
  void* pointer = nullptr;
  CHECK(cudaMallocFromPoolAsync(nullptr, 10, pool, nullptr) == cudaErrorInvalidValue);
  CHECK(cudaMallocFromPoolAsync(&pointer, size_t{1} << 50, pool, nullptr) ==
        cudaErrorMemoryAllocation);
  CHECK(cudaMallocFromPoolAsync(&pointer, 10, nullptr, nullptr) == cudaErrorInvalidValue);
  CHECK(cudaFreeAsync(&dummy, nullptr) == cudaErrorInvalidValue);
  cudaGetLastError();
  require(cudaMemPoolDestroy(pool));
}
