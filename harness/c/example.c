// snippet-begin program
/* C = 2 A B by two operations on the device, held against the product in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tile.h"

enum { M = 50, N = 70, K = 30 };
static float a[M * K], b[K * N], c[M * N];
static double a64[M * K], b64[K * N], c64[M * N];

static void check(tile_status status) {
  if (status == TILE_OK) return;
  fprintf(stderr, "%s: %s\n", tile_status_name(status), tile_last_error());
  exit(1);
}

int main(void) {
  for (int i = 0; i < M * K; ++i) a64[i] = a[i] = sinf(i);
  for (int i = 0; i < K * N; ++i) b64[i] = b[i] = cosf(i);
  void *x, *y, *z; /* on the device */
  check(tile_alloc(&x, sizeof a)), check(tile_alloc(&y, sizeof b)), check(tile_alloc(&z, sizeof c));
  check(tile_copy_to_device(x, a, sizeof a)), check(tile_copy_to_device(y, b, sizeof b));
  tile_matmul_args product = {sizeof product, NULL, TILE_FP32, M, N, K, .a = x, .b = y, .c = z};
  check(tile_matmul(&product));
  tile_vector_add_args sum = {sizeof sum, NULL, TILE_FP32, M * N, .a = z, .b = z, .c = z};
  check(tile_vector_add(&sum));
  check(tile_copy_from_device(c, z, sizeof c));
  tile_matmul_args exact = {sizeof exact, NULL, TILE_FP64, M, N, K, .a = a64, .b = b64, .c = c64};
  check(tile_matmul_reference(&exact));
  for (int i = 0; i < M * N; ++i) { /* K terms of at most 1, K roundings by 2^-24, all twice */
    if (!(fabs(c[i] - 2 * c64[i]) <= 2 * K * K * 0x1p-24)) return puts("C is wrong"), 1;
  }
  product.step = "fastest";
  if (tile_matmul(&product) != TILE_INVALID_ARGUMENT) return puts("not refused"), 1;
  printf("C is right. %s\n", tile_last_error());
  return tile_free(x) || tile_free(y) || tile_free(z);
}
// snippet-end program
