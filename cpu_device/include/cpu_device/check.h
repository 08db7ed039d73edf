// What programs tell the check build about their memory. In the fast build all of it is empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

// clang, checking accesses, calls plain memcpy for copies of structs (from version 17 on
// __tsan_memcpy): in code that is checked the names are those of the callbacks.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
__asm__(
    ".set memcpy, __tsan_memcpy\n"
    ".set memmove, __tsan_memmove\n"
    ".set memset, __tsan_memset");
#endif
#endif

namespace cpu_device {

#ifdef CPU_DEVICE_CHECK
inline constexpr bool kChecking = true;
#else
inline constexpr bool kChecking = false;
#endif

namespace check {

/// An array inside device memory, as reports name it: rows x cols elements, ld of them from one row
/// to the next. The rest of an allocation in which there are such arrays must not be touched.
struct NamedArray {
  const char* name;
  const void* data;
  size_t element_bytes;
  int64_t rows, cols, ld;
  bool written;  // otherwise a read before a write is an error
};
void name_array_in_check_build(const NamedArray& array);
inline void name_array(const NamedArray& array) {
  if constexpr (kChecking) name_array_in_check_build(array);
}

/// The shape of a shared array: float[32][33] has elements of 4 bytes and the extents 32, 33.
struct Shape {
  size_t element_bytes;
  int rank;
  size_t extents[4];
};
template <class T>
constexpr Shape shape_of() {
  Shape shape{sizeof(std::remove_all_extents_t<T>), static_cast<int>(std::rank_v<T>), {}};
  static_assert(std::rank_v<T> <= 4);
  [&]<size_t... i>(std::index_sequence<i...>) { ((shape.extents[i] = std::extent_v<T, i>), ...); }
  (std::make_index_sequence<std::rank_v<T>>());
  return shape;
}

/// A shared array, as its declaration tells it.
struct SharedArray {
  const char* name;
  Shape shape;
  bool is_dynamic;  // then it is as long as the launch's third parameter says
};
void name_shared_in_check_build(const void* data, const SharedArray& array);
inline void name_shared(const void* data, const SharedArray& array) {
  if constexpr (kChecking) name_shared_in_check_build(data, array);
}

}  // namespace check
}  // namespace cpu_device
