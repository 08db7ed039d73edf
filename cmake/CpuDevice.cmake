# The CPU device: .cu files go through the translator and then to the C++ compiler.
if(NOT TARGET cpu_device)
  add_subdirectory("${TILE_ROOT}/cpu_device" "${CMAKE_BINARY_DIR}/cpu_device")
endif()
add_library(cuda_runtime_of_device ALIAS cpu_device)

# What CUDA programs take for granted and C++ does not: no strict aliasing (a float* may be read as
# a float4*), no fusing of a*b+c unless the source says fma, and pragmas for other compilers.
set(TILE_KERNEL_FLAGS -fno-strict-aliasing -ffp-contract=off -Wno-unknown-pragmas
  # A thread with large arrays must meet the page below its stack, not somebody else's stack.
  -fstack-clash-protection
  # Of an error in a launch, the rest is our own machinery.
  -ftemplate-backtrace-limit=2)

# tile_add_kernels(target file.cu …)
function(tile_add_kernels target)
  foreach(source IN LISTS ARGN)
    set(input "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
    set(output "${CMAKE_CURRENT_BINARY_DIR}/${source}.cpp")
    add_custom_command(
      OUTPUT "${output}"
      COMMAND cu2cpp "${input}" "${output}"
      DEPENDS cu2cpp "${input}"
      COMMENT "Translating ${source} for the CPU device"
      VERBATIM)
    target_sources(${target} PRIVATE "${output}")
    set_source_files_properties("${output}" PROPERTIES COMPILE_OPTIONS "${TILE_KERNEL_FLAGS}")
  endforeach()
  # The translated file lies elsewhere; its includes are relative to the original.
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC tile_flags cpu_device)
endfunction()
