// CUDA's vector types: int2, float4, uint3, dim3 … with CUDA's sizes and alignments
// (CUDA C++ Programming Guide, "Built-in Vector Types").
#pragma once

// One struct an element count. The 3-element types have the alignment of one element.
#define CPU_DEVICE_VECTOR_TYPES(Name, T)                                \
  struct Name##1 {                                                      \
    T x;                                                                \
  };                                                                    \
  struct alignas(sizeof(T) * 2) Name##2 {                               \
    T x, y;                                                             \
  };                                                                    \
  struct Name##3 {                                                      \
    T x, y, z;                                                          \
  };                                                                    \
  struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Name##4 {     \
    T x, y, z, w;                                                       \
  };                                                                    \
  constexpr Name##1 make_##Name##1(T x) { return {x}; }                 \
  constexpr Name##2 make_##Name##2(T x, T y) { return {x, y}; }         \
  constexpr Name##3 make_##Name##3(T x, T y, T z) { return {x, y, z}; } \
  constexpr Name##4 make_##Name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CPU_DEVICE_VECTOR_TYPES(char, signed char)
CPU_DEVICE_VECTOR_TYPES(uchar, unsigned char)
CPU_DEVICE_VECTOR_TYPES(short, short)
CPU_DEVICE_VECTOR_TYPES(ushort, unsigned short)
CPU_DEVICE_VECTOR_TYPES(int, int)
CPU_DEVICE_VECTOR_TYPES(uint, unsigned int)
CPU_DEVICE_VECTOR_TYPES(long, long)
CPU_DEVICE_VECTOR_TYPES(ulong, unsigned long)
CPU_DEVICE_VECTOR_TYPES(longlong, long long)
CPU_DEVICE_VECTOR_TYPES(ulonglong, unsigned long long)
CPU_DEVICE_VECTOR_TYPES(float, float)
CPU_DEVICE_VECTOR_TYPES(double, double)
#undef CPU_DEVICE_VECTOR_TYPES

// Extents of a grid or a block. Missing extents are 1.
struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
      : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
