# The GPU: nvcc, for the card found unless CMAKE_CUDA_ARCHITECTURES says otherwise.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE tile_capability RESULT_VARIABLE tile_no_card
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(tile_no_card)
    message(FATAL_ERROR "No card found. Name one: -DCMAKE_CUDA_ARCHITECTURES=80")
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" tile_capability "${tile_capability}")
  string(REPLACE "." "" tile_capability "${tile_capability}")
  # 9.0 builds as 90a: wgmma and its like exist only in the architecture-specific target.
  string(REGEX REPLACE "^90$" "90a" tile_capability "${tile_capability}")
  set(CMAKE_CUDA_ARCHITECTURES ${tile_capability} CACHE STRING "Architectures to compile for")
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)
# The runtime is part of each program, as nvcc has it by default, and of libtile_c.so: that can then
# be loaded beside whatever runtime the process has, PyTorch's say. They share the device's memory
# and streams, which belong to the driver.
add_library(cuda_runtime_of_device ALIAS CUDA::cudart_static)

option(TILE_PTXAS_REPORT "Print the registers and spills of every kernel" OFF)
# The standard as a flag: CMake 3.25 does not know that nvcc 13 has C++20.
target_compile_options(tile_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xcompiler=-Wall,-Wextra
    $<$<BOOL:${TILE_PTXAS_REPORT}>:-Xptxas=-v>
    # On 12.0 .multicast::cluster is slow, which ptxas says at each one (CUDA 13.0): no error here.
    $<$<BOOL:${TILE_WERROR}>:-Werror=all-warnings -Xptxas=--suppress-async-bulk-multicast-advisory-warning>>)

# tile_add_kernels(target file.cu …). The target `kernels` builds all libraries that have some.
add_custom_target(kernels)
function(tile_add_kernels target)
  target_sources(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PUBLIC tile_flags cuda_runtime_of_device)
  get_target_property(type ${target} TYPE)
  if(type MATCHES "LIBRARY")
    add_dependencies(kernels ${target})
  endif()
endfunction()
