// Vector types, and loads and stores with hints.
#pragma once

#include <cuda_runtime_api.h>

namespace device_test {

// clang-format off
/// Calls OP with every type that CUDA loads and stores with hints.
#define DEVICE_TEST_LOADED_TYPES(OP)                                              \
  OP(char) OP(signed char) OP(short) OP(int) OP(long) OP(long long)               \
  OP(unsigned char) OP(unsigned short) OP(unsigned)                               \
  OP(unsigned long) OP(unsigned long long) OP(float) OP(double)                   \
  OP(char2) OP(char4) OP(short2) OP(short4) OP(int2) OP(int4) OP(longlong2)       \
  OP(uchar2) OP(uchar4) OP(ushort2) OP(ushort4) OP(uint2) OP(uint4) OP(ulonglong2) \
  OP(float2) OP(float4) OP(double2)
// clang-format on

inline constexpr int kLoads = 6, kStores = 4;
/// Copies in[count] by every load, and then by every store: out is [kLoads + kStores][count].
template <class T>
void copy_with_hints(const T* in, T* out, unsigned count);

/// The bytes of vectors made of 1, 2, 3 and 4 in a kernel, each type in 32 bytes of its own, in the
/// order of DEVICE_TEST_VECTOR_TYPES. Returns how many there are.
inline constexpr unsigned kVectorBytes = 32;
int make_vectors(unsigned char* bytes);

// clang-format off
// name, element, number of elements, alignment (CUDA C++ Programming Guide, "Built-in Vector
// Types"). Missing: 32-byte vectors, whose names CUDA 13 calls deprecated.
#define DEVICE_TEST_VECTOR_TYPES(OP)                                                            \
  OP(char1, signed char, 1, 1) OP(char2, signed char, 2, 2)                                     \
    OP(char3, signed char, 3, 1) OP(char4, signed char, 4, 4)                                   \
  OP(uchar1, unsigned char, 1, 1) OP(uchar2, unsigned char, 2, 2)                               \
    OP(uchar3, unsigned char, 3, 1) OP(uchar4, unsigned char, 4, 4)                             \
  OP(short1, short, 1, 2) OP(short2, short, 2, 4)                                               \
    OP(short3, short, 3, 2) OP(short4, short, 4, 8)                                             \
  OP(ushort1, unsigned short, 1, 2) OP(ushort2, unsigned short, 2, 4)                           \
    OP(ushort3, unsigned short, 3, 2) OP(ushort4, unsigned short, 4, 8)                         \
  OP(int1, int, 1, 4) OP(int2, int, 2, 8) OP(int3, int, 3, 4) OP(int4, int, 4, 16)              \
  OP(uint1, unsigned, 1, 4) OP(uint2, unsigned, 2, 8)                                           \
    OP(uint3, unsigned, 3, 4) OP(uint4, unsigned, 4, 16)                                        \
  OP(float1, float, 1, 4) OP(float2, float, 2, 8)                                               \
    OP(float3, float, 3, 4) OP(float4, float, 4, 16)                                            \
  OP(long1, long, 1, 8) OP(long2, long, 2, 16) OP(long3, long, 3, 8)                            \
  OP(ulong1, unsigned long, 1, 8) OP(ulong2, unsigned long, 2, 16)                              \
    OP(ulong3, unsigned long, 3, 8)                                                             \
  OP(longlong1, long long, 1, 8) OP(longlong2, long long, 2, 16) OP(longlong3, long long, 3, 8) \
  OP(ulonglong1, unsigned long long, 1, 8) OP(ulonglong2, unsigned long long, 2, 16)            \
    OP(ulonglong3, unsigned long long, 3, 8)                                                    \
  OP(double1, double, 1, 8) OP(double2, double, 2, 16) OP(double3, double, 3, 8)
// clang-format on

}  // namespace device_test
