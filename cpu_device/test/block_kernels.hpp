// Grids and blocks, barriers, shared and constant memory, and the ways to write a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace device_test {

// ---- Who am I? ----

struct Indices {
  uint3 thread, block;
  dim3 threads, blocks;
};

/// Each thread adds 1 to visits[i] and writes its built-in variables to indices[i], i counting the
/// threads of the grid, x fastest, block by block.
void who_am_i(Indices* indices, int* visits, dim3 grid, dim3 block);

// ---- Barriers ----

inline constexpr int kRounds = 6;
struct BarrierResults {
  int count, all, any;
};

/// Thread t votes with bits[t] >> round & 1. results is [kRounds][threads].
void barrier_votes(const unsigned* bits, BarrierResults* results, dim3 block);

/// Turns each block's part of `data` round, through shared memory.
void reverse_blocks(int* data, unsigned blocks, unsigned threads);

/// A warp waits in a loop for a flag that another warp of the block sets. out[0] is what it found
/// after the flag was set.
void wait_for_flag(int* out);

/// Of two warps `poller` votes until the other, after 100 shuffles, has set a flag. *out is 100.
void poll_by_votes(unsigned poller, int* out);

// ---- Shared memory. Each works with one block of 64 threads and counts in *wrong what it found
// other than expected; `visited` shows that all threads got to the end ----

void several_arrays(int* wrong, int* visited);
void declared_in_functions(int* wrong, int* visited);
void in_template_for_int_and_double(int* wrong, int* visited);  // two kernels, visited twice
/// `bytes` of dynamic shared memory seen as three types, beside `kStaticBytes` of static.
inline constexpr unsigned kStaticBytes = 2048;
void dynamic_and_static(int* wrong, int* visited, unsigned bytes);
cudaError_t allow_dynamic_bytes(int bytes);

// ---- Constant memory and variables of the device ----

inline constexpr unsigned kConstants = 16;
cudaError_t set_constants(const float* values, size_t count, size_t first);
cudaError_t get_constants(float* values, size_t count, size_t first);
cudaError_t set_settings(double scale, int offset);  // a __constant__ struct
/// out[i] = constant i * scale + offset; each thread also adds 1 to a variable of the device.
void use_constants(double* out);
cudaError_t set_counter(long long value);
cudaError_t get_counter(long long* value);

/// cudaMemcpyToSymbol and cudaMemcpyFromSymbol on the constants, with these arguments.
cudaError_t to_constants(const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind);
cudaError_t from_constants(void* to, size_t bytes, size_t offset, cudaMemcpyKind kind);

// ---- Launches ----

/// Every way to write a launch. The n-th writes to out[n], and (*expected)[n] says what; there are
/// fewer than 32.
void launch_in_all_ways(int* out, std::vector<int>* expected, cudaStream_t stream);

/// A kernel's parameter whose copies are counted, launched in one of several ways. Thread i adds i
/// to its own, and stores it to out[i], from 7 on.
struct Copies {
  int made, destroyed;
};
inline constexpr int kWaysToPass = 6;
Copies pass_what_is_counted(int way, int* out, unsigned threads);

/// out[i] = i for all threads, with any configuration.
void number_threads(int* out, dim3 grid, dim3 block, size_t shared_bytes = 0,
                    cudaStream_t stream = nullptr);

}  // namespace device_test
