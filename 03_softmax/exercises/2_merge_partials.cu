// Exercise 03.2: merging parts
//
// Attention takes an average of vectors, the values: each column of a row has one, and y says how
// much it counts. Where rows are few and long, their columns are cut into parts, so that more
// blocks have something to do (chapter 05). Step 7 did the same with the blocks of a cluster. A
// part knows its own columns only: their maximum, sum exp(x - max) and sum exp(x - max) value.
// Another kernel merges the parts, this one: average = sum y value, with the softmax y of the whole
// row. Step 4 merged pairs of a maximum and a sum. Here a vector is merged as well, which is to be
// divided by the sum in the end.
// A part may be empty: maximum -infinity, sum 0, vector 0. It counts as nothing. If all parts of a
// row are empty, its average is 0. If a part holds a NaN, its row's average is NaN, and no other.
// Write the kernel's body. A block has a row, and a thread every 128th number of the vector.
// Check it with: ./tour exercise 03.2
#include "exercises/exercises.hpp"
#include "softmax.cuh"

namespace softmax {
namespace {

constexpr int kThreads = 128;

__global__ void merge_partials_kernel(Partials partials,  // see exercises.hpp for the shapes
                                      float* average) {   // [rows][width]
  // TODO: What are all parts to be relative to? By which factor is a part wrong, and what is to be
  // multiplied by it? What is -infinity minus -infinity? When would you divide 0 by 0?
}

}  // namespace

tile::Status merge_partials(const Partials& partials, float* average) {
  if (partials.rows == 0 || partials.width == 0) return {};
  unsigned blocks = 0;
  TILE_TRY(tile::blocks_for("rows", partials.rows, 1, &blocks));
  merge_partials_kernel<<<blocks, kThreads>>>(partials, average);
  return tile::launch_status("merge_partials_kernel");
}

}  // namespace softmax
