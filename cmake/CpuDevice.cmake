# The CPU device: .cu files go through the translator and then to the C++ compiler.
option(TILE_CHECK "Look for races, bad addresses and unwritten memory in kernels" OFF)
option(TILE_ASAN "Build with AddressSanitizer: local arrays, freed memory" OFF)
if(TILE_CHECK AND TILE_ASAN)
  message(FATAL_ERROR "TILE_CHECK and TILE_ASAN exclude each other: each has a build of its own")
endif()
if(NOT TARGET cpu_device)
  add_subdirectory("${TILE_ROOT}/cpu_device" "${CMAKE_BINARY_DIR}/cpu_device")
endif()
add_library(cuda_runtime_of_device ALIAS cpu_device)

# Properties that CUDA programs rely on and C++ does not guarantee: no strict aliasing (a float* may
# be read as a float4*), integers that wrap, no fusing of a*b+c unless the source says fma, and
# pragmas for other compilers.
set(TILE_KERNEL_FLAGS -fno-strict-aliasing -fwrapv -ffp-contract=off -Wno-unknown-pragmas
  # A thread with large arrays must touch the page below its stack, not another thread's stack.
  -fstack-clash-protection
  # In programs as in libraries, which share the compiled headers below.
  -fPIC
  # After an error in a launch, the other messages are about our own machinery.
  -ftemplate-backtrace-limit=2)
# A learner edits a kernel and waits for it: with -Og it compiles in half the time of -O1, and runs by
# a tenth slower. In the check build an access stands where the source has it, because little is
# optimised.
if(TILE_CHECK OR TILE_ASAN)
  list(APPEND TILE_KERNEL_FLAGS -O1)
else()
  list(APPEND TILE_KERNEL_FLAGS -Og)
endif()

# A function that ends without its return would go on in the next one (cpu_device/src/undefined.cpp).
if(NOT TILE_ASAN)
  list(APPEND TILE_KERNEL_FLAGS -fsanitize=return)
endif()

# The check build: the compiler calls our functions around every load and store, and in every loop
# (cpu_device/src/check/callbacks.cpp).
if(TILE_CHECK)
  list(APPEND TILE_KERNEL_FLAGS -fsanitize=thread,alignment,shift-exponent,float-cast-overflow
    -fsanitize-coverage=trace-pc -gdwarf-4)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # From -O1 on loads are merged or leave their loop, and then have no line any more.
    list(APPEND TILE_KERNEL_FLAGS -O0 -mllvm -tsan-instrument-read-before-write=1
      -mllvm -tsan-distinguish-volatile=1)
  else()
    list(APPEND TILE_KERNEL_FLAGS -fno-finite-loops --param=tsan-distinguish-volatile=1
      # A float4 is one access, and not four of its parts.
      -fno-tree-sra
      -Wno-tsan)  # of fences: ours understand them
  endif()
endif()

# For AddressSanitizer too: two branches that end in like stores must not share one, which then has
# no line.
if(TILE_ASAN AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  list(APPEND TILE_KERNEL_FLAGS -mllvm -sink-common-insts=false)
endif()

# The headers that every step includes are compiled once: they are most of what the compiler reads.
# With g++ only: in clang's build each file still has to include what it needs.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/kernel_headers.cpp" CONTENT "")
  add_library(tile_kernel_headers OBJECT "${CMAKE_BINARY_DIR}/kernel_headers.cpp")
  target_precompile_headers(tile_kernel_headers PRIVATE <cuda_runtime.h>
    "${TILE_ROOT}/tile/basics.cuh")
  target_compile_options(tile_kernel_headers PRIVATE ${TILE_KERNEL_FLAGS})
  target_link_libraries(tile_kernel_headers PRIVATE tile_flags cpu_device)
endif()

# tile_add_kernels(target file.cu …)
function(tile_add_kernels target)
  if(TARGET tile_kernel_headers)
    get_target_property(others ${target} SOURCES)
    if(others)
      list(FILTER others EXCLUDE REGEX "\\.cu\\.cpp$")
      set_source_files_properties(${others} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    target_precompile_headers(${target} REUSE_FROM tile_kernel_headers)
  endif()
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE input)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
               OUTPUT_VARIABLE output)
    string(APPEND output .cpp)
    add_custom_command(
      OUTPUT "${output}"
      COMMAND cu2cpp "${input}" "${output}"
      DEPENDS cu2cpp "${input}"
      COMMENT "Translating ${source} for the CPU device"
      VERBATIM)
    target_sources(${target} PRIVATE "${output}")
    # The translated file lies elsewhere; its includes are relative to the original.
    cmake_path(GET input PARENT_PATH folder)
    target_include_directories(${target} PRIVATE "${folder}")
    set_source_files_properties("${output}" PROPERTIES COMPILE_OPTIONS "${TILE_KERNEL_FLAGS}")
  endforeach()
  target_link_libraries(${target} PUBLIC tile_flags cpu_device)
endfunction()
