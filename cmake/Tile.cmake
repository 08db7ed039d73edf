# What the whole project and each chapter on its own have in common: the device, the compiler's
# flags, and what a chapter consists of.
include_guard(GLOBAL)

get_filename_component(TILE_ROOT "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)

set(TILE_DEVICE cpu CACHE STRING "cpu: the CPU device, no CUDA needed; gpu: nvcc and a card")
set_property(CACHE TILE_DEVICE PROPERTY STRINGS cpu gpu)
option(TILE_WERROR "Warnings are errors" OFF)
if(NOT TILE_DEVICE MATCHES "^(cpu|gpu)$")
  message(FATAL_ERROR "TILE_DEVICE is '${TILE_DEVICE}'; it must be cpu or gpu")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g")  # asserts stay; gdb sees the original .cu lines
enable_testing()

find_package(Threads REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(doctest REQUIRED)

# ---- Flags, for every target of ours ----
add_library(tile_flags INTERFACE)
target_compile_features(tile_flags INTERFACE cxx_std_20)
target_include_directories(tile_flags INTERFACE "${TILE_ROOT}")
target_compile_options(tile_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<BOOL:${TILE_WERROR}>:-Werror>
    # Reports and messages name files as seen from the project's folder.
    -fmacro-prefix-map=${TILE_ROOT}/=>)

if(TILE_DEVICE STREQUAL gpu)
  include("${TILE_ROOT}/cmake/Gpu.cmake")
else()
  include("${TILE_ROOT}/cmake/CpuDevice.cmake")
endif()

if(NOT TARGET harness)
  add_subdirectory("${TILE_ROOT}/harness" "${CMAKE_BINARY_DIR}/harness")
endif()

# tile_add_test(NAME name COMMAND target [arguments] [LABEL label]): a CTest entry. 77 is a skip.
function(tile_add_test)
  cmake_parse_arguments(arg "" "NAME;LABEL" "COMMAND" ${ARGN})
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  set_tests_properties(${arg_NAME} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 300 LABELS "${arg_LABEL}")
endfunction()

# tile_chapter(STEPS step1_… step2_…): a chapter, named like its folder. Its steps are the .cu
# files of these names; beside them stand bench.cpp, reference.cpp and test.cpp.
#   <name>        runs its steps and shows what they do
#   <name>_test   its tests; CTest has an entry a step
function(tile_chapter)
  cmake_parse_arguments(arg "" "" "STEPS" ${ARGN})
  get_filename_component(name "${CMAKE_CURRENT_SOURCE_DIR}" NAME)

  list(TRANSFORM arg_STEPS APPEND .cu OUTPUT_VARIABLE kernels)
  add_library(${name}_steps STATIC reference.cpp)
  tile_add_kernels(${name}_steps ${kernels})
  target_link_libraries(${name}_steps PUBLIC harness PRIVATE Eigen3::Eigen)

  # An object library: nothing refers to a chapter by name, it registers itself.
  add_library(${name}_chapter OBJECT bench.cpp)
  target_link_libraries(${name}_chapter PUBLIC ${name}_steps)
  set_property(GLOBAL APPEND PROPERTY TILE_CHAPTERS ${name})

  add_executable(${name})
  target_link_libraries(${name} PRIVATE ${name}_chapter harness_tour)

  add_executable(${name}_test test.cpp)
  target_link_libraries(${name}_test PRIVATE ${name}_steps harness_test_main Eigen3::Eigen)
  foreach(step IN LISTS arg_STEPS)
    # step1_thread_per_element.cu holds the step thread_per_element.
    string(REGEX REPLACE "^step[0-9]+_" "" step_name ${step})
    tile_add_test(NAME ${name}.${step} LABEL ${name}
                  COMMAND ${name}_test --step=${step_name} --test-suite=step)
  endforeach()
  tile_add_test(NAME ${name}.chapter LABEL ${name} COMMAND ${name}_test --test-suite=chapter)
endfunction()

# The program behind ./tour: all chapters in one.
function(tile_tour)
  get_property(chapters GLOBAL PROPERTY TILE_CHAPTERS)
  list(TRANSFORM chapters APPEND _chapter)
  add_executable(tour_program)
  target_link_libraries(tour_program PRIVATE ${chapters} harness_tour)
endfunction()
