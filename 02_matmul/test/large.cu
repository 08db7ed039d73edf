#include "large.hpp"

#include <string>

#include "matmul_launch.hpp"

namespace matmul {
namespace {

constexpr int kBlocks = 1024, kThreads = 256;

__device__ std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t all_threads() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
__device__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

__device__ std::uint64_t random_bits(std::uint64_t seed, std::int64_t row, std::int64_t col) {
  return mix(mix(mix(seed) + static_cast<std::uint64_t>(row)) + static_cast<std::uint64_t>(col));
}

template <class T>
__global__ void fill(T* data, Matrix x, std::uint64_t seed) {
  for (std::int64_t i = first_item(); i < x.rows * x.cols; i += all_threads()) {
    const std::int64_t row = i / x.cols, col = i % x.cols;
    const std::uint64_t bits = random_bits(seed, row, col);
    const int bit = static_cast<int>(bits % 8);
    const int value = sizeof(T) == 2 ? (bit == 0) - (bit == 1) : static_cast<int>(bits % 17) - 8;
    data[row * x.ld + col] = static_cast<T>(static_cast<float>(value));
  }
}

// Integers of 20 bits.
__global__ void fill_vector(std::int64_t* vector, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = first_item(); i < count; i += all_threads()) {
    vector[i] = static_cast<std::int64_t>(random_bits(seed, 0, i) >> 44);
  }
}

// What a row with an element that no sum of integers gives is projected to.
constexpr std::int64_t kNotIntegers = INT64_MIN;

// result = x vector, for x of integers.
template <class T>
__global__ void project(Operand<T> x, std::int64_t rows, std::int64_t cols,
                        const std::int64_t* vector, std::int64_t* result) {
  for (std::int64_t row = first_item(); row < rows; row += all_threads()) {
    std::int64_t sum = 0;
    bool integers = true;
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto value = static_cast<float>(x(row, col));
      if (fabsf(value) <= 0x1p24f && value == rintf(value)) {
        sum += static_cast<std::int64_t>(value) * vector[col];
      } else {
        integers = false;
      }
    }
    result[row] = integers ? sum : kNotIntegers;
  }
}

// What the kernels below report: how many, and the first.
struct Found {
  unsigned long long count, first;

  __device__ void add(std::int64_t at) {
    atomicAdd(&count, 1ull);
    atomicMin(&first, static_cast<unsigned long long>(at));
  }
};

__global__ void find_different(const std::int64_t* x, const std::int64_t* y, std::int64_t count,
                               Found* found) {
  for (std::int64_t i = first_item(); i < count; i += all_threads()) {
    if (x[i] != y[i]) found->add(i);
  }
}

// The wrong columns in a row of C, each computed anew.
template <class T>
__global__ void find_wrong_columns(Operand<T> a, Operand<T> b, Operand<T> c, std::int64_t row,
                                   std::int64_t n, std::int64_t k, Found* found) {
  for (std::int64_t col = first_item(); col < n; col += all_threads()) {
    float sum = 0;
    for (std::int64_t l = 0; l < k; ++l) {
      sum += static_cast<float>(a(row, l)) * static_cast<float>(b(l, col));
    }
    if (!(static_cast<float>(c(row, col)) == sum)) found->add(col);
  }
}

// The elements of memory[0, count) outside of the matrix that do not have all bits one.
template <class Bits>
__global__ void find_written(const Bits* memory, std::int64_t count, std::int64_t start,
                             std::int64_t extent, std::int64_t cols, std::int64_t ld,
                             Found* found) {
  for (std::int64_t i = first_item(); i < count; i += all_threads()) {
    const std::int64_t at = i - start;
    const bool inside = at >= 0 && at < extent && at % ld < cols;
    if (!inside && memory[i] != static_cast<Bits>(~Bits{0})) found->add(i);
  }
}

// Device memory for `count` values, freed at the end.
template <class T>
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { static_cast<void>(cudaFree(data_)); }

  tile::Status allocate(std::int64_t count) {
    TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)));
    return {};
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

// Where kernels report, and how the host reads it.
class Finding {
 public:
  tile::Status begin() {
    TILE_TRY(found_.allocate(1));
    const Found none{0, ~0ull};
    TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(device(), &none, sizeof none, cudaMemcpyHostToDevice));
    return {};
  }
  tile::Status end(Found* found) const {
    TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(found, device(), sizeof *found, cudaMemcpyDeviceToHost));
    return {};
  }
  Found* device() const { return found_.data(); }

 private:
  Array<Found> found_;
};

// Fails if the rows of C, times a vector made of the seed, are not those of op(A) op(B).
template <class T>
tile::Status check_projection(const Problem& p, const Buffers& buffers, std::uint64_t seed) {
  const Operand<T> a = op_a<T>(p, buffers), b = op_b<T>(p, buffers);
  const Operand<T> c{static_cast<const T*>(buffers.c), p.ldc, 1};
  Array<std::int64_t> vector, b_vector, ab_vector, c_vector;
  TILE_TRY(vector.allocate(p.n));
  TILE_TRY(b_vector.allocate(p.k));
  TILE_TRY(ab_vector.allocate(p.m));
  TILE_TRY(c_vector.allocate(p.m));
  Finding rows;
  TILE_TRY(rows.begin());

  fill_vector<<<kBlocks, kThreads>>>(vector.data(), p.n, seed);
  TILE_TRY(tile::launch_status("fill_vector"));
  project<T><<<kBlocks, kThreads>>>(b, p.k, p.n, vector.data(), b_vector.data());
  TILE_TRY(tile::launch_status("project"));
  project<T><<<kBlocks, kThreads>>>(a, p.m, p.k, b_vector.data(), ab_vector.data());
  TILE_TRY(tile::launch_status("project"));
  project<T><<<kBlocks, kThreads>>>(c, p.m, p.n, vector.data(), c_vector.data());
  TILE_TRY(tile::launch_status("project"));
  find_different<<<kBlocks, kThreads>>>(ab_vector.data(), c_vector.data(), p.m, rows.device());
  TILE_TRY(tile::launch_status("find_different"));
  Found wrong{};
  TILE_TRY(rows.end(&wrong));
  if (wrong.count == 0) return {};

  // Which element is it?
  Finding columns;
  TILE_TRY(columns.begin());
  const auto row = static_cast<std::int64_t>(wrong.first);
  find_wrong_columns<T><<<kBlocks, kThreads>>>(a, b, c, row, p.n, p.k, columns.device());
  TILE_TRY(tile::launch_status("find_wrong_columns"));
  Found wrong_columns{};
  TILE_TRY(columns.end(&wrong_columns));
  return tile::device_error("c", std::to_string(wrong.count) + " of " + std::to_string(p.m) +
                                     " rows are wrong; in the first, row " + std::to_string(row) +
                                     ", " + std::to_string(wrong_columns.count) + " of " +
                                     std::to_string(p.n) + " elements, the first in column " +
                                     std::to_string(wrong_columns.first));
}

// As the type is stored.
template <class Launch>
tile::Status with_stored_type(tile::DType type, Launch launch) {
  return tile::with_element_type(type == tile::DType::tf32 ? tile::DType::fp32 : type, launch);
}

}  // namespace

tile::Status fill_integers(const Matrix& matrix, std::uint64_t seed) {
  return with_stored_type(matrix.type, [&](auto element) {
    using T = decltype(element);
    fill<T><<<kBlocks, kThreads>>>(static_cast<T*>(matrix.data), matrix, seed);
    return tile::launch_status("fill");
  });
}

tile::Status check_product(const Problem& problem, const Buffers& buffers) {
  return with_stored_type(problem.type, [&](auto element) -> tile::Status {
    using T = decltype(element);
    for (const std::uint64_t seed : {11, 12}) {
      TILE_TRY(check_projection<T>(problem, buffers, seed));
    }
    return {};
  });
}

tile::Status check_surroundings(const void* memory, std::int64_t count, const Matrix& matrix) {
  Finding finding;
  TILE_TRY(finding.begin());
  const auto bytes = static_cast<std::int64_t>(tile::size_bytes(matrix.type));
  const std::int64_t start =
      (static_cast<const char*>(matrix.data) - static_cast<const char*>(memory)) / bytes;
  const auto find = [&](auto bits) {
    using Bits = decltype(bits);
    find_written<Bits><<<kBlocks, kThreads>>>(static_cast<const Bits*>(memory), count, start,
                                              matrix.extent(), matrix.cols, matrix.ld,
                                              finding.device());
  };
  if (bytes == 2) {
    find(std::uint16_t{});
  } else {
    find(std::uint32_t{});
  }
  TILE_TRY(tile::launch_status("find_written"));
  Found written{};
  TILE_TRY(finding.end(&written));
  if (written.count == 0) return {};
  return tile::device_error(
      "c", std::to_string(written.count) + " elements outside of it were written, the first at " +
               std::to_string(static_cast<std::int64_t>(written.first) - start) + " of " +
               std::to_string(matrix.extent()));
}

}  // namespace matmul
