/*
 * The kernels of this project in plain C: for C, C++, and whatever calls C (Python's ctypes).
 *
 * Four rules hold for every function.
 *
 * 1. Structs are zero-initialised, then filled in, `struct_size` first. A field that is zero has
 *    its default, which is said beside it. A struct of another size is TILE_INVALID_ARGUMENT:
 *
 *        tile_matmul_args args = {.struct_size = sizeof args, .type = TILE_FP32, ...};   (C)
 *        tile_matmul_args args{}; args.struct_size = sizeof args; ...                    (C++)
 *
 * 2. A function that returns a tile_status sets the thread's message, tile_last_error(). It begins
 *    with the name of the argument that was wrong, or of the CUDA call that failed, and is "" after
 *    a success. After any status but TILE_OK nothing was launched and nothing was written.
 *    TILE_DEVICE_ERROR alone may also tell of work that failed while it ran; what that was writing
 *    is undefined then.
 *
 * 3. Matrices and vectors are device pointers, aligned to an element. On a GPU that is memory of
 *    the current device, whoever allocated it: tile_alloc(), cudaMalloc(), PyTorch. On the CPU
 *    device any memory of this process will do; a workspace must come from tile_alloc() there, too.
 *
 * 4. Operations are started in a stream and may still run when the function returns. `stream` is a
 *    cudaStream_t, and NULL is the default stream. Operations of one stream run one after another.
 *
 * Functions may be called from several threads at a time. Names and messages belong to the
 * library; names live for as long as it is loaded. No C++ exception leaves it.
 */
#ifndef TILE_H
#define TILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TILE_API __attribute__((visibility("default")))
#else
#define TILE_API
#endif

/* The library's version, "1.2.0". CHANGELOG.md says what each number means. */
TILE_API const char* tile_version(void);

/* ---- Status ---- */

/* int32_t and not an enum, so that its size does not depend on the compiler. */
typedef int32_t tile_status;
enum {
  TILE_OK = 0,
  TILE_INVALID_ARGUMENT = 1, /* the call is wrong, everywhere */
  TILE_UNSUPPORTED = 2,      /* the call is right, but not on this device or with this step */
  TILE_OUT_OF_MEMORY = 3,
  TILE_DEVICE_ERROR = 4 /* there is no device, or it reported a failure */
};

/* "ok", "invalid argument", ...; "unknown status" for any other number. */
TILE_API const char* tile_status_name(tile_status status);

/* The message of this thread's last function that returned a tile_status; "" if that was TILE_OK
 * or there was none. Never NULL. Valid until the thread calls the next such function. */
TILE_API const char* tile_last_error(void);

/* ---- Element types ---- */

/* 0 is none of them: an element type has no default. */
typedef int32_t tile_type;
enum {
  TILE_FP32 = 1,
  TILE_FP16 = 2,
  TILE_BF16 = 3,
  TILE_FP64 = 4,
  TILE_TF32 = 5, /* stored as fp32, multiplied with 11 significant bits */
  TILE_E4M3 = 6  /* 8 bits: 4 significant ones, up to 448, no infinity */
};

/* "fp32", ...; NULL if there is no such type. */
TILE_API const char* tile_type_name(tile_type type);
/* Bytes of an element; 0 if there is no such type. */
TILE_API int64_t tile_type_bytes(tile_type type);

/* ---- The device and its memory ---- */

/* The name of the device that work goes to. */
TILE_API tile_status tile_device_name(const char** name);
/* 1 if that is the CPU device, whose times say nothing about a GPU; 0 if it is a GPU. */
TILE_API int32_t tile_device_is_simulated(void);

/* Allocates device memory, aligned to 256 bytes. No bytes give NULL. */
TILE_API tile_status tile_alloc(void** memory, int64_t bytes);
/* Frees what tile_alloc() gave. NULL is allowed. */
TILE_API tile_status tile_free(void* memory);
/* Copy between device memory (tile_alloc's, or on a GPU any other) and host memory, in the default
 * stream, and wait until that is done. For work in other streams, synchronise first. */
TILE_API tile_status tile_copy_to_device(void* device, const void* host, int64_t bytes);
TILE_API tile_status tile_copy_from_device(void* host, const void* device, int64_t bytes);
/* Waits until the work in a stream is done, and reports its failure. */
TILE_API tile_status tile_synchronize(void* stream);

/* ---- Chapters and their steps ---- */

/* Each operation belongs to a chapter and is computed by its steps, from the first and simplest to
 * the last. Chapters and steps count from 0, in reading order: forward first, then the steps of a
 * backward pass. For a number that does not exist, name, title and idea are NULL, and the number of
 * steps is -1. */
TILE_API int32_t tile_chapter_count(void);
TILE_API const char* tile_chapter_name(int32_t chapter);  /* "01_vector_add" */
TILE_API const char* tile_chapter_title(int32_t chapter); /* what it is about, in a line */
TILE_API int32_t tile_step_count(int32_t chapter);
TILE_API const char* tile_step_name(int32_t chapter, int32_t step); /* as `step` below takes it */
TILE_API const char* tile_step_idea(int32_t chapter, int32_t step); /* in a line */

/* TILE_OK if the step runs on this device with elements of this type, TILE_UNSUPPORTED if not; the
 * message says what it lacks. */
TILE_API tile_status tile_step_takes(int32_t chapter, int32_t step, tile_type type);

/* The step whose kernel ran for this thread's last operation; "" if that failed or was a reference,
 * or if there was none. */
TILE_API const char* tile_last_step(void);

/* ---- Operations ---- */

/* Every operation takes
 *   step     a name from its chapter, or NULL for the best here: the last step that itself takes
 *            this type and problem on this device. If a step does not take them, an earlier one
 *            runs instead, which tile_last_step() names; if none takes them, the result is
 *            TILE_UNSUPPORTED. Another name, or that of a step of the other direction, is
 *            TILE_INVALID_ARGUMENT, and the message lists the names.
 *   type     of the elements; TILE_UNSUPPORTED if the chapter does not have it.
 *   stream   see rule 4.
 * Sizes are in elements and not negative. If there is nothing to compute, nothing is launched, and
 * pointers may be NULL. */

/* c = a + b, element by element. Types: fp32, fp16, bf16. */
typedef struct tile_vector_add_args {
  size_t struct_size; /* sizeof(tile_vector_add_args) */
  const char* step;
  tile_type type;
  int64_t n;     /* elements of each vector */
  const void* a; /* [n] */
  const void* b; /* [n] */
  void* c;       /* [n]; may be a or b, and must not overlap them otherwise */
  void* stream;
} tile_vector_add_args;
TILE_API tile_status tile_vector_add(const tile_vector_add_args* args);

/* The last function of each element. gelu is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
typedef int64_t tile_activation;
enum { TILE_NO_ACTIVATION = 0, TILE_RELU = 1, TILE_GELU = 2 };

/* C = activation(alpha op(A) op(B) + beta C + bias), where op(A) is A or its transpose, and the
 * bias has an element for each column. Matrices are row-major. The backward pass of C = A B is two
 * such products: dA = dC B^T and dB = A^T dC. Types: fp32, fp16, bf16, tf32, as steps take them.
 *
 * With e4m3, A and B have 8 bits, and C and the bias are bf16. Then the product is also multiplied
 * by a_scale and b_scale, of the whole matrices; A is stored m x k, B n x k, and rows begin at
 * multiples of 16 bytes; anything else is TILE_UNSUPPORTED. Sums keep some 14 bits on a GPU.
 */
typedef struct tile_matmul_args {
  size_t struct_size; /* sizeof(tile_matmul_args) */
  const char* step;
  tile_type type;
  int64_t m, n, k;     /* op(A) is m x k, op(B) is k x n, C is m x n */
  int32_t transpose_a; /* 1: A is stored k x m; 0: m x k */
  int32_t transpose_b; /* 1: B is stored n x k; 0: k x n */
  const void* a;
  const void* b;
  void* c;     /* overlaps neither A nor B */
  int64_t lda; /* elements from one stored row of A to the next, no less than a row; */
  int64_t ldb; /* 0: rows follow one another. Memory between two rows is not touched. */
  int64_t ldc;
  const float* alpha; /* on the host, read before the function returns; NULL: 1.
                         0: A and B are not read, and may be NULL */
  const float* beta;  /* as alpha; NULL: 0. 0: what C held is not read */
  void* stream;
  const void* bias; /* [n], of C's type, does not overlap C; NULL: none */
  tile_activation activation;
  const float* a_scale; /* one number in device memory, for e4m3 only; NULL: 1 */
  const float* b_scale; /* as a_scale */
  void* workspace; /* aligned to 16 bytes; may hold anything; none: slower where A or B has rows
                      that begin anywhere, or C few tiles */
  int64_t workspace_bytes; /* what tile_matmul_workspace_bytes() tells; with less, an earlier step
                              runs */
} tile_matmul_args;
TILE_API tile_status tile_matmul(const tile_matmul_args* args);

/* The bytes of device memory that the step args->step needs as its workspace, or the step that runs
 * instead; NULL: the best step here. 0 if there is nothing to compute. Reads all but the workspace.
 * Null pointers count as aligned to 16 bytes. */
TILE_API tile_status tile_matmul_workspace_bytes(const tile_matmul_args* args, int64_t* bytes);

/* The same product in double precision on the host, against which kernels and gradients are
 * checked. `type` must be TILE_FP64, and a, b and c point to doubles of the host, on a GPU too.
 * Computes before it returns; `step` and `stream` are not used. alpha and beta are fp32 here as
 * well, so the reference multiplies by the same numbers as the kernels. */
TILE_API tile_status tile_matmul_reference(const tile_matmul_args* args);

/* y = activation(x), of each element of a matrix: what tile_matmul() does last, as a call of its
 * own, for training, which keeps x. The only step is `activate`. Types: fp32, fp16, bf16. */
typedef struct tile_activate_args {
  size_t struct_size; /* sizeof(tile_activate_args) */
  const char* step;
  tile_type type;
  int64_t rows, cols;
  const void* x; /* [rows][cols] */
  void* y;       /* [rows][cols]; may be x, with the same rows, and does not overlap it otherwise */
  int64_t ldx; /* elements from one row of x to the next, no less than a row; 0: rows follow one */
  int64_t ldy; /* another. Memory between two rows is not touched. */
  tile_activation activation;
  void* stream;
} tile_activate_args;
TILE_API tile_status tile_activate(const tile_activate_args* args);

/* From dy, the gradient of a loss with respect to y = activation(x + bias), those with respect to x
 * and to the bias:
 *     dx = dy activation'(x)      dbias[j] = sum over rows of dx[i][j]
 * relu' is 0 at 0. gelu' is 0 at -infinity and 1 at infinity. The sum is that of dx before it is
 * rounded, and its bits are the same each time. Without rows dbias is 0. The only step is
 * `activate_backward`. Types: fp32, fp16, bf16. */
typedef struct tile_activate_backward_args {
  size_t struct_size; /* sizeof(tile_activate_backward_args) */
  const char* step;
  tile_type type;
  int64_t rows, cols;
  const void* x;  /* [rows][cols], with the bias added already; not read without an activation, and
                     may be NULL. For relu y will do in its place. */
  const void* dy; /* [rows][cols] */
  void* dx;       /* [rows][cols]; may be dy, with the same rows, and does not overlap anything
                     otherwise; NULL: not wanted */
  void* dbias;    /* [cols], does not overlap anything; NULL: not wanted */
  int64_t ldx, lddy, lddx; /* as for the forward pass */
  tile_activation activation;
  void* workspace; /* fp32 sums for dbias, aligned to 16 bytes; may hold anything. Without dbias it
                      may be NULL, of 0 bytes */
  int64_t workspace_bytes; /* what tile_activate_backward_workspace_bytes() tells */
  void* stream;
} tile_activate_backward_args;
TILE_API tile_status tile_activate_backward(const tile_activate_backward_args* args);

/* The bytes of device memory that dbias needs as a workspace. 0 if there is nothing to compute.
 * Reads all but the pointers. */
TILE_API tile_status tile_activate_backward_workspace_bytes(const tile_activate_backward_args* args,
                                                            int64_t* bytes);

/* The same in double precision on the host, as tile_matmul_reference(). */
TILE_API tile_status tile_activate_reference(const tile_activate_args* args);
TILE_API tile_status tile_activate_backward_reference(const tile_activate_backward_args* args);

/* y = softmax(scale x) along the rows of a matrix: exp(scale x) over its sum, or with `log` the
 * logarithm of that. In a row with nothing visible, or only -infinity, all of y is 0 (with `log`
 * -infinity). A NaN or +infinity makes the visible part of its row NaN.
 *
 * With `causal`, row r is query r % queries and sees the keys up to its own, the last query all of
 * them: columns j <= r % queries + cols - queries. Other columns are not read; their y is 0 or
 * -infinity, and their dx is 0. Types: fp32, fp16, bf16. */
typedef struct tile_softmax_args {
  size_t struct_size; /* sizeof(tile_softmax_args) */
  const char* step;
  tile_type type;
  float scale; /* positive and finite; 0: 1 */
  int64_t rows, cols;
  const void* x; /* [rows][cols] */
  void* y;       /* [rows][cols]; may be x, with the same rows, and does not overlap it otherwise */
  int64_t ldx; /* elements from one row of x to the next, no less than a row; 0: rows follow one */
  int64_t ldy; /* another. Memory between two rows is not touched. */
  int32_t log; /* 1: y is the logarithm of the softmax */
  int32_t causal;          /* 1: queries see the keys up to their own */
  int64_t queries;         /* of each matrix of scores, divides rows; 0: rows. Used with causal */
  void* workspace;         /* aligned to 16 bytes; may hold anything */
  int64_t workspace_bytes; /* what tile_softmax_workspace_bytes() tells; with less a slower step */
  void* stream;            /* runs */
} tile_softmax_args;
TILE_API tile_status tile_softmax(const tile_softmax_args* args);

/* The bytes of device memory that the step args->step needs as its workspace, or the step that runs
 * instead; NULL: the best step here. 0 if there is nothing to compute. Reads all but the workspace.
 * Of pointers only the alignment matters, and null pointers count as aligned. */
TILE_API tile_status tile_softmax_workspace_bytes(const tile_softmax_args* args, int64_t* bytes);

/* From y and the gradient dy of a loss with respect to it, the gradient with respect to x:
 *     dx = scale y (dy - sum y dy)        or with `log`    dx = scale (dy - exp(y) sum dy) */
typedef struct tile_softmax_backward_args {
  size_t struct_size; /* sizeof(tile_softmax_backward_args) */
  const char* step;
  tile_type type;
  float scale; /* these as for the forward pass */
  int64_t rows, cols;
  const void* y;  /* [rows][cols] */
  const void* dy; /* [rows][cols] */
  void* dx; /* [rows][cols]; may be y or dy, with the same rows, and overlaps neither otherwise */
  int64_t ldy, lddy, lddx;
  int32_t log, causal;
  int64_t queries;
  void* workspace;
  int64_t workspace_bytes;
  void* stream;
} tile_softmax_backward_args;
TILE_API tile_status tile_softmax_backward(const tile_softmax_backward_args* args);
TILE_API tile_status tile_softmax_backward_workspace_bytes(const tile_softmax_backward_args* args,
                                                           int64_t* bytes);

/* The same in double precision on the host, as tile_matmul_reference(). */
TILE_API tile_status tile_softmax_reference(const tile_softmax_args* args);
TILE_API tile_status tile_softmax_backward_reference(const tile_softmax_backward_args* args);

/* Normalises along the rows of a matrix, with n = cols:
 *     TILE_LAYER_NORM   mean = sum x / n    rstd = 1 / sqrt(sum (x - mean)^2 / n + eps)
 *     TILE_RMS_NORM     mean = 0            the rest is the same
 *     y = gamma (x - mean) rstd + beta
 * A NaN makes its row NaN, and no other row. An infinity does, too, but in RMSNorm it makes only
 * its own element NaN. */
typedef int32_t tile_norm;
enum { TILE_LAYER_NORM = 0, TILE_RMS_NORM = 1 };

/* Types: fp32, fp16, bf16. The backward pass needs mean and rstd, which are fp32 with all types. No
 * output overlaps anything else, but y may be x. */
typedef struct tile_layernorm_args {
  size_t struct_size; /* sizeof(tile_layernorm_args) */
  const char* step;
  tile_type type;
  tile_norm norm;
  int64_t rows, cols;
  const void* x;     /* [rows][cols] */
  const void* gamma; /* [cols]; NULL: ones */
  const void* beta;  /* [cols]; NULL: zeros, and for RMSNorm always NULL */
  void* y;           /* [rows][cols]; may be x, with the same rows */
  void* mean;        /* [rows], fp32; NULL: not wanted, and for RMSNorm always NULL */
  void* rstd;        /* [rows], fp32; NULL: not wanted */
  int64_t ldx;      /* elements from one row of x to the next, no less than a row; 0: rows follow */
  int64_t ldy;      /* one another. Memory between two rows is not touched. */
  const float* eps; /* on the host, read before the function returns, finite and not negative;
                       NULL: 1e-5 */
  void* workspace;  /* these as of tile_softmax_args */
  int64_t workspace_bytes;
  void* stream;
} tile_layernorm_args;
TILE_API tile_status tile_layernorm(const tile_layernorm_args* args);

/* As tile_softmax_workspace_bytes(). */
TILE_API tile_status tile_layernorm_workspace_bytes(const tile_layernorm_args* args,
                                                    int64_t* bytes);

/* From the gradient dy of a loss with respect to y, and with xhat = (x - mean) rstd and
 * w = gamma dy, the gradients with respect to x, gamma and beta:
 *     dx = rstd (w - sum w / n - xhat sum (w xhat) / n)        (RMSNorm: without sum w / n)
 *     dgamma = sum over rows of dy xhat        dbeta = sum over rows of dy
 * Without rows dgamma and dbeta are 0. No output overlaps anything else, nor does the workspace,
 * but dx may be x or dy. Types: fp32, fp16, bf16. */
typedef struct tile_layernorm_backward_args {
  size_t struct_size; /* sizeof(tile_layernorm_backward_args) */
  const char* step;
  tile_type type;
  tile_norm norm;
  int64_t rows, cols;
  const void* x;     /* [rows][cols] */
  const void* gamma; /* [cols]; NULL: ones */
  const void* mean;  /* [rows], fp32, from tile_layernorm(); for RMSNorm NULL */
  const void* rstd;  /* [rows], fp32, from tile_layernorm() too */
  const void* dy;    /* [rows][cols] */
  void* dx;          /* [rows][cols]; may be x or dy, with the same rows */
  void* dgamma;      /* [cols]; NULL: not wanted */
  void* dbeta;       /* [cols]; NULL: not wanted, and for RMSNorm always NULL */
  void* workspace;   /* tile_layernorm_backward_workspace_bytes(); aligned to 16 bytes */
  int64_t ldx, lddy, lddx;
  void* stream;
} tile_layernorm_backward_args;
TILE_API tile_status tile_layernorm_backward(const tile_layernorm_backward_args* args);

/* The bytes of device memory that tile_layernorm_backward() needs as its workspace, with any step.
 * Reads type, norm, rows and cols; the rest may still be zero. */
TILE_API tile_status
tile_layernorm_backward_workspace_bytes(const tile_layernorm_backward_args* args, int64_t* bytes);

/* The same in double precision on the host, as tile_matmul_reference(); mean and rstd are doubles
 * too, and there is no workspace. */
TILE_API tile_status tile_layernorm_reference(const tile_layernorm_args* args);
TILE_API tile_status tile_layernorm_backward_reference(const tile_layernorm_backward_args* args);

/* ---- Attention ---- */

/* A tensor of heads' rows, [batch][length][heads][head_dim]. An input is only read. */
typedef struct tile_tensor {
  void* data; /* its first element */
  /* Elements from one batch entry, from one head, from one row to the next. All zero: those of a
     tensor without gaps. The elements of a row are contiguous. */
  int64_t strides[3];
} tile_tensor;

/* How far apart a query at position i and a far key at position j are for the rotation. W is the
 * window, s the factor. */
typedef int32_t tile_far_rotation;
enum {
  TILE_FAR_NONE = 0,         /* i - j, as near keys */
  TILE_FAR_REROPE = 1,       /* W */
  TILE_FAR_LEAKY_REROPE = 2, /* W + (i - j - W) / s */
  TILE_FAR_SELF_EXTEND = 3   /* floor(i / s) - floor(j / s) + W - floor(W / s) */
};

/* The rotation of q and k before they are multiplied, as tile_rotary() rotates. */
typedef struct tile_rotation {
  const void* cos;          /* a cos(p f_i), fp32, [table_positions][rotary_dim / 2]; with a far
                               rotation [3][table_positions][rotary_dim / 2] */
  const void* sin;          /* a sin(p f_i), as cos */
  const void* frequencies;  /* f_i, fp64, [rotary_dim / 2], for the reference only */
  const int32_t* positions; /* of tokens, [batch][queries]; NULL: they count from first_position.
                               A row of q or k whose position is not in the tables is NaN */
  int64_t rotary_dim;       /* even, at most head_dim; 0: head_dim */
  int64_t table_positions;  /* positions are below this */
  int64_t first_position;   /* of each batch entry's first token, unless there are positions */
  int32_t interleaved;      /* 0 or 1: pairs of neighbours */
  double attention_factor;  /* a, for the reference: tables contain it already. Positive and finite;
                               0: 1 */
  tile_far_rotation far;    /* of far keys, where there is a window */
  double far_factor;        /* s, of Leaky ReRoPE and Self-Extend, there a whole number. At least 1;
                               0: 1 */
} tile_rotation;

/* For each batch entry and head, with rows as vectors:
 *     s_ij = scale q_i k_j            where query i sees key j
 *     lse_i = log sum_j exp(s_ij)
 *     o_i = sum_j exp(s_ij - lse_i) v_j
 * Query i stands beside key i + keys - queries. Causal: it sees no key after that. Windowed: it
 * sees `left` keys before and `right` after it. A query that sees no key has o = 0 and
 * lse = -infinity. heads / kv_heads heads of q share one of k and v. If a batch entry has lengths
 * of its own, they replace queries and keys (a greater one counts as these, a negative one as 0);
 * beyond them rows of o are 0 and rows of lse -infinity. Where a query sees a part of a tile of
 * keys, the kernel multiplies the others by 0: a NaN or an infinity in v of a hidden key may reach
 * o, and backward one in q, k or dout may reach the gradients of keys that its query does not see,
 * or of queries that do not see its key.
 *
 * Types: fp32, fp16, bf16, e4m3. What is written overlaps nothing else. With e4m3, o is bf16, and
 * each head of k has a scale for the rows of q that it is multiplied with, for k and for v;
 * head_dim is 64 or 128, and rows begin at multiples of 16 bytes. Weights have 4 significant bits
 * then: o may be off by some hundredths of the mean |v|.
 *
 * The steps of attention that start one block for each multiprocessor and keep it to the end leave
 * `free_multiprocessors` without one, or all but one, for a kernel that runs at the same time.
 * Other steps do not read it.
 *
 * Other functions below take this struct too, for attention with a rotation, or with a `window`
 * from which on keys are far. What a function has no use for is zero, or it is TILE_UNSUPPORTED:
 * tile_attention() has no use for what stands between workspace_bytes and the scales. */
typedef struct tile_attention_args {
  size_t struct_size; /* sizeof(tile_attention_args) */
  const char* step;
  tile_type type;
  int32_t causal;   /* 0 or 1 */
  int32_t windowed; /* 0 or 1: whether left and right are used */
  float scale;      /* positive and finite; 0: 1 / sqrt(head_dim) */
  int64_t batch, heads, queries, keys, head_dim;
  int64_t kv_heads;             /* divides heads; 0: heads */
  int64_t left, right;          /* not negative */
  tile_tensor q;                /* [batch][queries][heads][head_dim] */
  tile_tensor k;                /* [batch][keys][kv_heads][head_dim] */
  tile_tensor v;                /* [batch][keys][kv_heads][head_dim] */
  tile_tensor o;                /* [batch][queries][heads][head_dim] */
  void* lse;                    /* [batch][heads][queries], fp32; NULL: not wanted */
  const int32_t* query_lengths; /* [batch], device memory; NULL: all are `queries` */
  const int32_t* key_lengths;   /* [batch], device memory; NULL: all are `keys` */
  void* workspace;              /* aligned to 16 bytes; may hold anything */
  int64_t workspace_bytes;      /* at least what the function's own ..._workspace_bytes() tells */
  tile_tensor q_far;            /* [batch][queries][heads][head_dim] */
  tile_tensor k_far;            /* [batch][keys][kv_heads][head_dim] */
  int64_t window;               /* W */
  tile_rotation rotation;
  const float* q_scale; /* [batch][kv_heads], device memory, positive, for e4m3 only; NULL: 1 */
  const float* k_scale; /* as q_scale */
  const float* v_scale;
  int32_t free_multiprocessors; /* not negative */
  void* stream;
} tile_attention_args;
TILE_API tile_status tile_attention(const tile_attention_args* args);

/* The bytes of device memory that the step args->step needs as its workspace, or the step that runs
 * instead; NULL: the best step here. 0 if there is nothing to compute. Reads all but the workspace.
 * Pointers may still be NULL, which counts as aligned to 16 bytes. */
TILE_API tile_status tile_attention_workspace_bytes(const tile_attention_args* args,
                                                    int64_t* bytes);

/* The same in double precision on the host, as tile_matmul_reference(); lse is doubles too, the
 * lengths are on the host, and there is no workspace. */
TILE_API tile_status tile_attention_reference(const tile_attention_args* args);

/* From the gradient dout of a loss with respect to o, and with p_ij = exp(s_ij - lse_i):
 *     delta_i = dout_i o_i             ds_ij = p_ij (dout_i v_j - delta_i)
 *     dq_i = scale sum_j ds_ij k_j     dk_j = scale sum_i ds_ij q_i     dv_j = sum_i p_ij dout_i
 * dk and dv are sums over the heads that share them. Rows beyond the lengths are 0. What is written
 * overlaps nothing else; but rows of dq, dk and dv may be interleaved, as in one tensor. Steps
 * `one_pass`, `wgmma`, `late_dq`, `overlap` and `wide` add to dq in an order that differs from run
 * to run; the other steps give the same bits each time. Of them `in_order` is the fastest; it runs
 * only if it is named. */
typedef struct tile_attention_backward_args {
  size_t struct_size; /* sizeof(tile_attention_backward_args) */
  const char* step;
  tile_type type;
  int32_t causal, windowed; /* as in tile_attention_args, down to right */
  float scale;
  int64_t batch, heads, queries, keys, head_dim;
  int64_t kv_heads;
  int64_t left, right;
  tile_tensor q;    /* [batch][queries][heads][head_dim] */
  tile_tensor k;    /* [batch][keys][kv_heads][head_dim] */
  tile_tensor v;    /* [batch][keys][kv_heads][head_dim] */
  tile_tensor o;    /* [batch][queries][heads][head_dim], from the forward pass */
  const void* lse;  /* [batch][heads][queries], fp32, from it too */
  tile_tensor dout; /* [batch][queries][heads][head_dim] */
  tile_tensor dq;   /* [batch][queries][heads][head_dim] */
  tile_tensor dk;   /* [batch][keys][kv_heads][head_dim] */
  tile_tensor dv;   /* [batch][keys][kv_heads][head_dim] */
  const int32_t* query_lengths;
  const int32_t* key_lengths;
  void* workspace;         /* aligned to 16 bytes; may hold anything */
  int64_t workspace_bytes; /* at least what the function's own ..._workspace_bytes() tells */
  tile_tensor q_far;       /* [batch][queries][heads][head_dim] */
  tile_tensor k_far;       /* [batch][keys][kv_heads][head_dim] */
  tile_tensor dq_far;      /* [batch][queries][heads][head_dim] */
  tile_tensor dk_far;      /* [batch][keys][kv_heads][head_dim] */
  int64_t window;          /* these as for the forward pass */
  tile_rotation rotation;
  void* stream;
} tile_attention_backward_args;
TILE_API tile_status tile_attention_backward(const tile_attention_backward_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status
tile_attention_backward_workspace_bytes(const tile_attention_backward_args* args, int64_t* bytes);

/* As tile_attention_reference(). */
TILE_API tile_status tile_attention_backward_reference(const tile_attention_backward_args* args);

/* ---- Rotary position embeddings ---- */

/* Pair i = (x, y) of each row of q and of k is rotated by the angle p f_i, where p is the position
 * of its token, and multiplied by the attention factor a:
 *     x' = a (x cos(p f_i) - y sin(p f_i))         y' = a (y cos(p f_i) + x sin(p f_i))
 * A pair is elements i and i + rotary_dim / 2, or interleaved 2 i and 2 i + 1. Elements from
 * rotary_dim on are copied. Backward rotates by -p f_i, times the same a: from the gradients with
 * respect to q_out and k_out to those with respect to q and k.
 *
 * Types: fp32, fp16, bf16. q_out may be q with the same strides, and k_out k; otherwise what is
 * written overlaps nothing else. */
typedef struct tile_rotary_args {
  size_t struct_size; /* sizeof(tile_rotary_args) */
  const char* step;
  tile_type type;
  int32_t interleaved, backward; /* 0 or 1 */
  double attention_factor; /* a, for step `sincos`, which rounds it to fp32, and the reference:
                              tables contain it already. Positive and finite; 0: 1 */
  int64_t batch, length, heads, head_dim;
  int64_t kv_heads;         /* of k; 0: there is no k */
  int64_t rotary_dim;       /* even, at most head_dim; 0: head_dim */
  int64_t first_position;   /* of each batch entry's first token, unless there are positions */
  int64_t table_positions;  /* positions are below this */
  const void* q;            /* [batch][length][heads][head_dim] */
  const void* k;            /* [batch][length][kv_heads][head_dim] */
  void* q_out;              /* as q */
  void* k_out;              /* as k */
  const void* cos;          /* a cos(p f_i), fp32, [table_positions][rotary_dim / 2] */
  const void* sin;          /* a sin(p f_i), as cos */
  const void* frequencies;  /* f_i, fp64, [rotary_dim / 2], for step `sincos` and the reference;
                               NULL: neither can run. With them cos and sin may both be NULL */
  const int32_t* positions; /* of each token, [batch][length]; NULL: they count from first_position.
                               A token whose position is negative or not below table_positions has
                               rows of NaN */
  /* As in tile_tensor: from one batch entry, from one head, from one row to the next. */
  int64_t q_strides[3], k_strides[3], q_out_strides[3], k_out_strides[3];
  void* stream;
} tile_rotary_args;
TILE_API tile_status tile_rotary(const tile_rotary_args* args);

/* The same in double precision on the host, as tile_matmul_reference(), from the frequencies:
 * frequencies and positions are on the host too, and of the tables only table_positions is used. */
TILE_API tile_status tile_rotary_reference(const tile_rotary_args* args);

/* The frequencies f_i of d / 2 pairs, from the base b: b^(-2i/d); or b^(-i/(d/4 - 1)) for i < d/4,
 * then d/4 zeros. */
typedef int32_t tile_rotary_rule;
enum { TILE_ROTARY_PAPER = 0, TILE_ROTARY_HALF_TRUNCATED = 1 };
/* How they change for texts longer than those of the training, by the factor s. 06_rope/scaling.md
 * explains each. */
typedef int32_t tile_rotary_scaling;
enum {
  TILE_ROTARY_UNSCALED = 0,
  TILE_ROTARY_LINEAR = 1,
  TILE_ROTARY_NTK = 2,
  TILE_ROTARY_DYNAMIC_NTK = 3,
  TILE_ROTARY_YARN = 4,
  TILE_ROTARY_LLAMA3 = 5,
  TILE_ROTARY_LONGROPE = 6
};

/* The frequencies, cosines, sines and attention factor for tile_rotary_args. All pointers
 * are to the host's memory, and all is computed in double and rounded once. */
typedef struct tile_rotary_tables_args {
  size_t struct_size; /* sizeof(tile_rotary_tables_args) */
  tile_rotary_rule rule;
  tile_rotary_scaling scaling; /* ntk, dynamic_ntk and yarn: with the paper's rule only */
  int64_t rotary_dim;          /* d, even; half-truncated: a multiple of 4 */
  int64_t positions;           /* rows of the tables */
  double base;                 /* b, above 1; 0: 10000 */
  double factor;               /* s, at least 1; 0: 1 */
  int64_t trained_length;      /* L, for dynamic_ntk, yarn, llama3 and longrope */
  int64_t length;              /* of the text at hand, for dynamic_ntk and longrope */
  double beta_fast, beta_slow; /* for yarn; 0: 32 and 1 */
  double high_frequency_factor, low_frequency_factor; /* for llama3; 0: 4 and 1 */
  const double* short_factors; /* [rotary_dim / 2], for longrope: for texts of up to L tokens */
  const double* long_factors;  /* [rotary_dim / 2]: for longer ones */
  double* frequencies;         /* f_i, [rotary_dim / 2]; NULL: not wanted */
  float* cos;                  /* a cos(p f_i), [positions][rotary_dim / 2]; NULL: not wanted */
  float* sin;                  /* a sin(p f_i), as cos */
  int32_t untruncated;         /* 1: yarn begins and ends to blend between two pairs, not at one */
  int64_t unrotated_pairs;     /* the last ones: their f_i is 0 */
  double attention_factor;     /* a, for yarn and longrope; 0: what they make of s */
  double* used_attention_factor; /* a, which is 1 with other scalings; NULL: not wanted */
} tile_rotary_tables_args;
TILE_API tile_status tile_rotary_tables(const tile_rotary_tables_args* args);

/* ---- Attention with rotary position embeddings ---- */

/* Attention of as many keys as queries. R rotates rows of q and k as `rotation` says, before they
 * are multiplied:
 *     s_ij = scale (R_i q_i) (R_j k_j)
 * From these come lse and o, as in tile_attention(). Causal: a query sees the keys up to its own.
 * There is no window of any kind, no far rotation, and no lengths.
 *
 * Types: fp16, bf16. head_dim is 64 or 128, rotary_dim a multiple of 16, or of 8 if interleaved.
 * Rows of tensors and of tables begin at multiples of 16 bytes. What is written overlaps nothing
 * else. Step `fused` does not take positions, or rows that are rotated in part: `composed` runs
 * instead, which rotates q and k in memory. */
TILE_API tile_status tile_rotary_attention(const tile_attention_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_rotary_attention_workspace_bytes(const tile_attention_args* args,
                                                           int64_t* bytes);

/* The same in double precision on the host, as tile_attention_reference() and, from the
 * frequencies, as tile_rotary_reference(). */
TILE_API tile_status tile_rotary_attention_reference(const tile_attention_args* args);

/* From the gradient dout of a loss with respect to o, with p_ij and ds_ij as for
 * tile_attention_backward():
 *     dq_i = scale R_i^T sum_j ds_ij R_j k_j     dk_j = scale R_j^T sum_i ds_ij R_i q_i
 *     dv_j = sum_i p_ij dout_i
 * dk and dv are sums over the heads that share them. What is written overlaps nothing else; but
 * rows of dq, dk and dv may be interleaved, as in one tensor. */
TILE_API tile_status tile_rotary_attention_backward(const tile_attention_backward_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_rotary_attention_backward_workspace_bytes(
    const tile_attention_backward_args* args, int64_t* bytes);

/* As tile_rotary_attention_reference(). */
TILE_API tile_status
tile_rotary_attention_backward_reference(const tile_attention_backward_args* args);

/* ---- Absolute position embeddings ---- */

/* The table's row of its position is added to each token, once, before the first layer. The table
 * is learned or sinusoidal:
 *     y[b, s, :] = x[b, s, :] + table[position(b, s), :]
 * Without x, y is the row itself: with token ids as positions and a table of the vocabulary, a
 * token embedding. Types: fp32, fp16, bf16. y may be x; otherwise what is written overlaps nothing
 * else. */
typedef struct tile_embedding_args {
  size_t struct_size; /* sizeof(tile_embedding_args) */
  const char* step;
  tile_type type;
  int64_t batch, length, dim;
  int64_t table_positions;  /* rows of the table; positions are below this */
  int64_t first_position;   /* of each batch entry's first token, unless there are positions */
  const void* x;            /* [batch][length][dim]; NULL: y is the row */
  const void* table;        /* [table_positions][dim] */
  void* y;                  /* [batch][length][dim] */
  const int32_t* positions; /* of each token, [batch][length]; NULL: they count from first_position.
                               A token whose position is negative or not below table_positions has
                               a row of NaN */
  void* stream;
} tile_embedding_args;
TILE_API tile_status tile_embedding(const tile_embedding_args* args);

/* From the gradient dy of a loss with respect to y, that with respect to the table:
 *     dtable[p, :] = sum over position(b, s) = p of dy[b, s, :]
 * Every row is written, with zeros if no token has its position. A token whose position is not in
 * the table adds to no row. The gradient with respect to x is dy. What is written overlaps nothing
 * else. Step `atomics` adds in an order that differs from run to run, `by_position` in that of the
 * tokens. */
typedef struct tile_embedding_backward_args {
  size_t struct_size; /* sizeof(tile_embedding_backward_args) */
  const char* step;
  tile_type type;
  int64_t batch, length, dim; /* these as for the forward pass */
  int64_t table_positions;
  int64_t first_position;
  const void* dy;           /* [batch][length][dim] */
  void* dtable;             /* [table_positions][dim] */
  const int32_t* positions; /* as for the forward pass */
  void* workspace; /* fp32, [table_positions][dim], aligned to 16 bytes, for step `atomics`;
                      may hold anything; NULL: that step cannot run */
  void* stream;
} tile_embedding_backward_args;
TILE_API tile_status tile_embedding_backward(const tile_embedding_backward_args* args);

/* The same in double precision on the host, as tile_matmul_reference(); the positions are on the
 * host too, and there is no workspace. */
TILE_API tile_status tile_embedding_reference(const tile_embedding_args* args);
TILE_API tile_status tile_embedding_backward_reference(const tile_embedding_backward_args* args);

/* ---- Attention with two scores ---- */

/* Attention in which near keys are scored by q and k, and far keys by q_far and k_far:
 *     s_ij = scale q_i k_j   if |i + keys - queries - j| < W,   else scale q_far_i k_far_j
 * W is `window`; 0 or less: every key is far; INT64_MAX: every key is near. From these come lse and
 * o, as in tile_attention(), with the same rules for queries, heads and lengths. If it is causal, a
 * query sees the keys up to the one it stands beside, otherwise all: there is no left and right. It
 * rotates nothing.
 *
 * Types: fp32, fp16, bf16. What is written overlaps nothing else. */
TILE_API tile_status tile_windowed_attention(const tile_attention_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_windowed_attention_workspace_bytes(const tile_attention_args* args,
                                                             int64_t* bytes);

/* The same in double precision on the host, as tile_attention_reference(). */
TILE_API tile_status tile_windowed_attention_reference(const tile_attention_args* args);

/* From the gradient dout of a loss with respect to o, with p_ij and ds_ij as for
 * tile_attention_backward():
 *     dq_i = scale sum_j ds_ij k_j          and  dk_j = scale sum_i ds_ij q_i          of near keys
 *     dq_far_i = scale sum_j ds_ij k_far_j  and  dk_far_j = scale sum_i ds_ij q_far_i  of far keys
 *     dv_j = sum_i p_ij dout_i              of both
 * dk, dk_far and dv are sums over the heads that share them. Rows beyond the lengths are 0. What is
 * written overlaps nothing else; but rows of the gradients may be interleaved, as in one tensor.
 * Where a tile of up to 128 queries or keys has far keys and others, the kernel multiplies the rows
 * of the pair that a score does not use by 0: a NaN or an infinity in one may reach the gradients
 * of that pair. The forward pass and the references read rows only where a score uses them. Steps
 * `one_pass` and `wgmma` add in an order that differs from run to run; the other steps give the
 * same bits each time. */
TILE_API tile_status tile_windowed_attention_backward(const tile_attention_backward_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_windowed_attention_backward_workspace_bytes(
    const tile_attention_backward_args* args, int64_t* bytes);

/* As tile_attention_reference(). */
TILE_API tile_status
tile_windowed_attention_backward_reference(const tile_attention_backward_args* args);

/* ---- Attention with a window of rotations ---- */

/* Cosines and sines for tile_windowed_rotary_attention(), from frequencies that
 * tile_rotary_tables() gives. All pointers are to the host's memory. A table has three parts, each
 * with a row of cosines or sines for each position: for the position itself, for the position by
 * which a query is rotated for far keys, and for that by which a far key is rotated. */
typedef struct tile_windowed_rotary_tables_args {
  size_t struct_size;    /* sizeof(tile_windowed_rotary_tables_args) */
  tile_far_rotation far; /* these as for tile_windowed_rotary_attention() */
  double attention_factor;
  int64_t window;
  double far_factor;
  int64_t rotary_dim;        /* even */
  int64_t positions;         /* of each third of the tables */
  const double* frequencies; /* f_i, [rotary_dim / 2] */
  float* cos;                /* [3][positions][rotary_dim / 2]; NULL: not wanted */
  float* sin;                /* as cos */
} tile_windowed_rotary_tables_args;
TILE_API tile_status tile_windowed_rotary_tables(const tile_windowed_rotary_tables_args* args);

/* Windowed attention of one q and k, which are rotated before they are multiplied: by their own
 * positions for near keys, and for far ones as `rotation.far` says. R(m) rotates by the position m
 * as tile_rotary() does, i is the position of the key that a query stands beside, and i' and j' are
 * the positions of query and key for far keys:
 *     s_ij = scale (R(i) q_i) (R(j) k_j)   if i - j < W,   else scale (R(i') q_i) (R(j') k_j)
 * W is `window`, at least 0. From these come lse and o, as in tile_attention(), with the same rules
 * for queries, heads and lengths. It is always causal: for keys after a query there is no far
 * rotation; without `causal` it is TILE_UNSUPPORTED. There is no left and right, and no second q
 * and k. The tables are those of tile_windowed_rotary_tables() with the same numbers, for at least
 * as many positions as there are keys. Positions count from 0.
 *
 * Types: fp32, fp16, bf16. What is written overlaps nothing else. */
TILE_API tile_status tile_windowed_rotary_attention(const tile_attention_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_windowed_rotary_attention_workspace_bytes(const tile_attention_args* args,
                                                                    int64_t* bytes);

/* As tile_rotary_attention_reference(). */
TILE_API tile_status tile_windowed_rotary_attention_reference(const tile_attention_args* args);

/* From the gradient dout of a loss with respect to o, where dq1, dk1, dq2 and dk2 are the gradients
 * of the rotated rows, near and far, as dq, dk, dq_far and dk_far are those of
 * tile_windowed_attention_backward():
 *     dq_i = R(i)^T dq1_i + R(i')^T dq2_i     dk_j = R(j)^T dk1_j + R(j')^T dk2_j
 * dk and dv are sums over the heads that share them. Rows beyond the lengths are 0. What is written
 * overlaps nothing else; but rows of dq, dk and dv may be interleaved, as in one tensor. */
TILE_API tile_status
tile_windowed_rotary_attention_backward(const tile_attention_backward_args* args);

/* As tile_attention_workspace_bytes(). */
TILE_API tile_status tile_windowed_rotary_attention_backward_workspace_bytes(
    const tile_attention_backward_args* args, int64_t* bytes);

/* As tile_rotary_attention_reference(). */
TILE_API tile_status
tile_windowed_rotary_attention_backward_reference(const tile_attention_backward_args* args);

#ifdef __cplusplus
}
#endif

#endif
