// Makes one mistake, named by its argument. AddressSanitizer must end the program with its report.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

#include "mistakes.hpp"

using device_test::AsanMistake;

namespace {

bool failed(cudaError_t error) {
  if (error != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return error != cudaSuccess;
}

bool ran(AsanMistake mistake) {
  void* array = nullptr;
  const bool free_first = mistake == AsanMistake::after_free;
  if (failed(cudaMalloc(&array, device_test::kElements * sizeof(float)))) return false;
  if (free_first && failed(cudaFree(array))) return false;
  device_test::make_asan_mistake(mistake, static_cast<float*>(array));
  if (failed(cudaGetLastError()) || failed(cudaDeviceSynchronize())) return false;
  return free_first || !failed(cudaFree(array));
}

}  // namespace

int main(int count, char** arguments) {
  const struct {
    const char* name;
    AsanMistake mistake;
  } known[] = {{"none", AsanMistake::none},
               {"past_local", AsanMistake::past_local},
               {"after_free", AsanMistake::after_free},
               {"past_global", AsanMistake::past_global},
               {"past_shared", AsanMistake::past_shared},
               {"past_dynamic", AsanMistake::past_dynamic},
               {"none_in_cluster", AsanMistake::none_in_cluster},
               {"past_shared_in_cluster", AsanMistake::past_shared_in_cluster},
               {"ended_in_cluster", AsanMistake::ended_in_cluster}};
  for (const auto& [name, mistake] : known) {
    if (count == 2 && std::strcmp(arguments[1], name) == 0) return ran(mistake) ? 0 : 1;
  }
  std::fprintf(stderr, "needs the name of a mistake\n");
  return 2;
}
