// snippet-begin program
/* Causal attention of two texts of different lengths, whose queries, keys and values lie in one
 * tensor [batch][length][heads + 2 kv_heads][head_dim], held against the same in double. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tile.h"

enum { B = 2, S = 50, H = 4, HKV = 2, D = 64, ROW = (H + 2 * HKV) * D };
static uint16_t qkv[B * S * ROW], o[B * S * H * D]; /* bf16: the upper half of a float */
static double qkv64[B * S * ROW], o64[B * S * H * D], lse64[B * H * S];
static float lse[B * H * S];
static const int32_t lengths[B] = {50, 31};

static void check(tile_status status) {
  if (status == TILE_OK) return;
  fprintf(stderr, "%s: %s\n", tile_status_name(status), tile_last_error());
  exit(1);
}

static float to_float(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void* on_device(const void* data, int64_t bytes) {
  void* memory;
  check(tile_alloc(&memory, bytes)), check(tile_copy_to_device(memory, data, bytes));
  return memory;
}

int main(void) {
  for (int i = 0; i < B * S * ROW; ++i) {
    const float x = sinf(i);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    qkv64[i] = to_float(qkv[i] = bits >> 16);
  }
  tile_attention_args exact = {.struct_size = sizeof exact, .type = TILE_FP64};
  exact.causal = 1; /* the scale is 1 / sqrt(D): that is what 0 stands for */
  exact.batch = B, exact.queries = exact.keys = S, exact.head_dim = D;
  exact.heads = H, exact.kv_heads = HKV;
  exact.query_lengths = exact.key_lengths = lengths;
  const tile_tensor packed = {qkv64, {S * ROW, D, ROW}}; /* strides of batch, head and row */
  exact.q = exact.k = exact.v = packed;
  exact.k.data = qkv64 + H * D, exact.v.data = qkv64 + (H + HKV) * D;
  exact.o.data = o64, exact.lse = lse64; /* without gaps */
  check(tile_attention_reference(&exact));

  tile_attention_args args = exact; /* the same in bf16 and on the device */
  uint16_t* x = on_device(qkv, sizeof qkv);
  args.type = TILE_BF16;
  args.q.data = x, args.k.data = x + H * D, args.v.data = x + (H + HKV) * D;
  args.o.data = on_device(o, sizeof o), args.lse = on_device(lse, sizeof lse);
  args.query_lengths = args.key_lengths = on_device(lengths, sizeof lengths);
  check(tile_attention(&args));
  check(tile_copy_from_device(o, args.o.data, sizeof o));
  check(tile_copy_from_device(lse, args.lse, sizeof lse));

  for (int i = 0; i < B * S * H * D; ++i) { /* values up to 1; weights and o are rounded */
    if (!(fabs(to_float(o[i]) - o64[i]) <= 2 * 0x1p-8)) return puts("o is wrong"), 1;
  }
  for (int i = 0; i < B * H * S; ++i) { /* also -infinity after a text's end */
    if (lse[i] != lse64[i] && !(fabs(lse[i] - lse64[i]) <= 1e-4)) return puts("lse is wrong"), 1;
  }
  puts("o and lse are right");
  return tile_free(x) || tile_free(args.o.data) || tile_free(args.lse) ||
         tile_free((void*)args.key_lengths);
}
// snippet-end program
