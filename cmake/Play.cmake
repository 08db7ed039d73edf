# play.ninja in the build folder: how `./tour play` compiles and links a program that is not part of
# this project. ./tour includes it in a file of Ninja's that names the program's sources. No warnings
# are enabled beyond the compiler's own: the source may be foreign. Where it includes tile/ptx/…, these
# are this project's.
if(TILE_DEVICE STREQUAL gpu)
  list(GET CMAKE_CUDA_ARCHITECTURES 0 card)
  set(compiler "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_FLAGS_RELEASE} -std=c++20 -arch=sm_${card}")
  set(compile "${compiler} $folders -I${TILE_ROOT} -MMD -MF $out.d -c $in -o $out")
  set(compile_c "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_FLAGS_RELEASE} $folders -MMD -MF $out.d -c $in -o $out")
  set(link "${compiler} $in -o $out")
  set(tools "")
  add_custom_target(play_tools)
else()
  set(include "${TILE_ROOT}/cpu_device/include")
  # The last flag that says how much is optimised counts, as it does for the project's own kernels.
  string(JOIN " " flags -std=c++20 ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE} "-I${include}"
         "-D$<JOIN:$<TARGET_PROPERTY:cpu_device,INTERFACE_COMPILE_DEFINITIONS>, -D>"
         ${TILE_KERNEL_FLAGS} -Wno-error)  # -Werror is for this project's own warnings
  # For the lines in reports: in DWARF 5 addr2line takes some headers for the translated file. And
  # shifts that a card defines and C++ does not (cpu_device/src/undefined.cpp).
  if(NOT TILE_CHECK)
    string(APPEND flags " -gdwarf-4 -g1 -fsanitize=shift-exponent")
  endif()
  set(tools "$<TARGET_FILE:cu2cpp> $<TARGET_FILE:cpu_device>")
  # The translation has the name of its source, by which the linker speaks of it.
  string(CONCAT compile "$<TARGET_FILE:cu2cpp> --program ${include} $folders $in $translated $out.d && "
         "${CMAKE_CXX_COMPILER} ${flags} $folders -I${TILE_ROOT} -x c++ -c $translated -o $out")
  # As nvcc does, C is left to the compiler of C.
  set(compile_c "${CMAKE_CXX_COMPILER} ${CMAKE_CXX_FLAGS_RELEASE} $folders -MMD -MF $out.d -x c -c $in -o $out")
  string(JOIN " " link ${CMAKE_CXX_COMPILER} ${CMAKE_EXE_LINKER_FLAGS} $in -o $out
         $<TARGET_FILE:cpu_device> -pthread -ldl)
  add_custom_target(play_tools DEPENDS cu2cpp cpu_device)
endif()
file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/play.ninja" CONTENT
"build play_tools: phony ${tools}
rule object
  command = ${compile}
  depfile = $out.d
  deps = gcc
rule c_object
  command = ${compile_c}
  depfile = $out.d
  deps = gcc
rule program
  command = ${link}
")
