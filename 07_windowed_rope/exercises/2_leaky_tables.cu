// Exercise 07.2: a window that leaks
//
// To ReRoPE all far keys stand W away: by their places a query cannot tell them apart. Leaky ReRoPE
// lets a part of the distance through. For a key with i - j >= W the rotation should see
//
//     D(i, j) = W + (i - j - W) / factor
//
// which is W at the border, so that near and far scores agree there, and grows slowly from then on.
// A rotation of a query does not know which key it will meet, nor that of a key the query. So each
// of them has a place: the query's depends on i and not on j, the key's on j and not on i, and a
// score sees the difference of the two. Find places whose difference is D. They need not be whole
// numbers.
// The first kernel below makes the tables from these places, a thread for each position and pair,
// the second one rotates all rows of q and k. Right now far keys are where near ones would be.
// Check it with: ./tour exercise 07.2
#include "exercises/exercises.hpp"
#include "tile/basics.cuh"

namespace windowed_rope {
namespace {

constexpr int kThreads = 256;

// TODO: What of D belongs to the query, and what to the key? Where does the rest of W belong? And
// of which type is position / factor?
__device__ double place_of_query(const LeakyRows& rows, int position) { return position; }
__device__ double place_of_key(const LeakyRows& rows, int position) { return position; }

__global__ void leaky_tables_kernel(LeakyRows rows) {  // see exercises.hpp for the shapes
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int pairs = rows.dim / 2, entries = rows.count * pairs;
  if (at >= entries) return;
  const int position = rows.first + at / pairs, pair = at % pairs;
  const double frequency = pow(1e4, -2.0 * pair / rows.dim);
  const double of_query = place_of_query(rows, position) * frequency;
  const double of_key = place_of_key(rows, position) * frequency;
  rows.cos[at] = static_cast<float>(cos(of_query));
  rows.sin[at] = static_cast<float>(sin(of_query));
  rows.cos[entries + at] = static_cast<float>(cos(of_key));
  rows.sin[entries + at] = static_cast<float>(sin(of_key));
}

__global__ void leaky_rotation_kernel(LeakyRows rows) {
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int pairs = rows.dim / 2, entries = rows.count * pairs;
  if (at >= entries) return;
  const int first = at / pairs * rows.dim + at % pairs, second = first + pairs;
  for (const bool is_key : {false, true}) {
    const float* from = is_key ? rows.k : rows.q;
    float* to = is_key ? rows.k2 : rows.q2;
    const float c = rows.cos[is_key * entries + at], s = rows.sin[is_key * entries + at];
    to[first] = from[first] * c - from[second] * s;
    to[second] = from[second] * c + from[first] * s;
  }
}

}  // namespace

tile::Status leaky_tables(const LeakyRows& rows) {
  unsigned blocks = 0;
  if (tile::Status s =
          tile::blocks_for("rows", std::int64_t{rows.count} * rows.dim / 2, kThreads, &blocks);
      !s.ok())
    return s;
  if (blocks == 0) return {};
  leaky_tables_kernel<<<blocks, kThreads>>>(rows);
  if (tile::Status s = tile::launch_status("leaky_tables_kernel"); !s.ok()) return s;
  leaky_rotation_kernel<<<blocks, kThreads>>>(rows);
  return tile::launch_status("leaky_rotation_kernel");
}

}  // namespace windowed_rope
