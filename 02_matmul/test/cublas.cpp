#include "cublas.hpp"

#include <cublas_v2.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace matmul {
namespace {

tile::Status cublas_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return tile::device_error(call, cublasGetStatusString(status));
}

/// What this process was told from outside about arithmetic on fp32 with fewer bits. cuBLAS reads
/// these variables itself, and they overrule what a program asks for. The comparison with the
/// reference alone would not do: its bound grows faster with k than the error of TF32, which
/// exceeds it at k = 4096 and no longer does at 8192. And with TF32 forbidden cuBLAS would be a
/// slow peer.
tile::Status check_environment(tile::DType type) {
  if (tile::size_bytes(type) == 2) return {};
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"}) {
    const char* value = std::getenv(name);
    if (!value || (type == tile::DType::fp32 && std::string(value) == "0")) continue;
    return tile::unsupported("cuBLAS", std::string("the environment sets ") + name +
                                           ", and so may change precision and speed; unset it");
  }
  return {};
}

/// Made by the first product, because that takes long.
class Handle {
 public:
  tile::Status get(cublasHandle_t* handle) {
    if (!handle_) {
      cublasHandle_t made = nullptr;
      TILE_TRY(cublas_status(cublasCreate(&made), "cublasCreate"));
      handle_.reset(made);
      // This mode computes fp32 with at least fp32's precision and range, by the comment on
      // cublasComputeType_t in cublas_api.h, so never in TF32. CUBLAS_PEDANTIC_MATH promises no
      // more that matters here, but forbids kernels: a peer must be at its best.
      TILE_TRY(cublas_status(cublasSetMathMode(made, CUBLAS_DEFAULT_MATH), "cublasSetMathMode"));
    }
    *handle = handle_.get();
    return {};
  }

 private:
  struct Destroy {
    void operator()(cublasHandle_t handle) const { static_cast<void>(cublasDestroy(handle)); }
  };
  std::unique_ptr<cublasContext, Destroy> handle_;
};

tile::Status multiply(Handle& owner, const Problem& p, const Buffers& buffers, void* stream) {
  using tile::DType;
  TILE_TRY(validate(p, buffers));
  TILE_TRY(check_environment(p.type));
  cublasHandle_t handle = nullptr;
  TILE_TRY(owner.get(&handle));
  TILE_TRY(
      cublas_status(cublasSetStream(handle, static_cast<cudaStream_t>(stream)), "cublasSetStream"));
  // cuBLAS stores by columns, so it sees the transpose of each matrix. Cᵀ = op(B)ᵀ op(A)ᵀ: the
  // operands change places, and each is transposed or not as before.
  const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const cudaDataType_t type = p.type == DType::fp16   ? CUDA_R_16F
                              : p.type == DType::bf16 ? CUDA_R_16BF
                                                      : CUDA_R_32F;
  const cublasComputeType_t compute =
      p.type == DType::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  TILE_TRY(
      cublas_status(cublasGemmEx_64(handle, op(p.transpose_b), op(p.transpose_a), p.n, p.m, p.k,
                                    &p.alpha, buffers.b, type, p.ldb, buffers.a, type, p.lda,
                                    &p.beta, buffers.c, type, p.ldc, compute, CUBLAS_GEMM_DEFAULT),
                    "cublasGemmEx_64"));
  return add_bias_and_activate(p, buffers, stream);
}

}  // namespace

tile::Peer cublas(const Problem& problem, const Buffers& buffers) {
  auto handle = std::make_shared<Handle>();
  const bool more = buffers.bias || problem.activation != Activation::none;
  return {more ? "cuBLAS, then a kernel" : "cuBLAS",
          [=](void* stream) { return multiply(*handle, problem, buffers, stream); }};
}

}  // namespace matmul
