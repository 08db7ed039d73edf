// Each line of main() calls a kernel as if it were a function. None of them may compile.
#include <cuda_runtime.h>

__global__ void add(int n, float* a);
namespace ns {
template <class T>
__global__ void __launch_bounds__(256) scale(int n, T* a) {
  if (n > 0) a[0] *= 2;
}
}  // namespace ns
template <class T>
void both(int n, T* a) {
  ns::scale<T>(n, a);
}

int main() {
  float* a = nullptr;
  add(1, a);
  ::add(1, a);
  ns::scale(1, a);
  ns::scale<float>(1, a);
  if (a) add(1, a);
  for (int i = 0; i < 2; ++i) add(i, a);
  if (a)
    return 1;
  else
    add(1, nullptr);
  [&] { add(1, a); }();
  both(1, a);
}
__global__ void add(int n, float* a) { a[n] += 1; }
