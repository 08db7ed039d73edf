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

/// What this process was told from outside about arithmetic with fewer bits. cuBLAS reads these
/// variables itself, and they overrule what a program asks for. The comparison with the reference
/// alone would not do: its bound grows faster with k than the error of TF32, which exceeds it at
/// k = 4096 and no longer does at 8192.
tile::Status check_environment() {
  for (const char* name : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"}) {
    const char* value = std::getenv(name);
    if (value && std::string(value) != "0") {
      return tile::unsupported("cuBLAS", std::string("the environment sets ") + name +
                                             ", and so may trade precision for speed; unset it");
    }
  }
  return {};
}

/// Made by the first product, because that takes long.
class Handle {
 public:
  tile::Status get(cublasHandle_t* handle) {
    if (!handle_) {
      cublasHandle_t made = nullptr;
      if (auto s = cublas_status(cublasCreate(&made), "cublasCreate"); !s.ok()) return s;
      handle_.reset(made);
      // This mode computes fp32 with at least fp32's precision and range, by the comment on
      // cublasComputeType_t in cublas_api.h, so never in TF32. CUBLAS_PEDANTIC_MATH promises no
      // more that matters here, but forbids kernels: a peer must be at its best.
      if (auto s = cublas_status(cublasSetMathMode(made, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
          !s.ok()) {
        return s;
      }
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
  if (p.type != tile::DType::fp32) return tile::unsupported("cuBLAS", "only fp32 is compared");
  if (tile::Status s = validate(p, buffers); !s.ok()) return s;
  if (tile::Status s = check_environment(); !s.ok()) return s;
  cublasHandle_t handle = nullptr;
  if (tile::Status s = owner.get(&handle); !s.ok()) return s;
  if (auto s = cublas_status(cublasSetStream(handle, static_cast<cudaStream_t>(stream)),
                             "cublasSetStream");
      !s.ok()) {
    return s;
  }
  // cuBLAS stores by columns, so it sees the transpose of each matrix. Cᵀ = op(B)ᵀ op(A)ᵀ: the
  // operands change places, and each is transposed or not as before.
  const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  return cublas_status(cublasSgemm_64(handle, op(p.transpose_b), op(p.transpose_a), p.n, p.m, p.k,
                                      &p.alpha, static_cast<const float*>(buffers.b), p.ldb,
                                      static_cast<const float*>(buffers.a), p.lda, &p.beta,
                                      static_cast<float*>(buffers.c), p.ldc),
                       "cublasSgemm_64");
}

}  // namespace

tile::Peer cublas(const Problem& problem, const Buffers& buffers) {
  auto handle = std::make_shared<Handle>();
  return {"cuBLAS", [=](void* stream) { return multiply(*handle, problem, buffers, stream); }};
}

}  // namespace matmul
