# Shared by the whole project and each chapter on its own: the device, the compiler's flags, and the
# parts of a chapter.
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
# Asserts stay, and reports know the lines of the original .cu files. Information on variables for
# gdb takes a quarter of the time to compile a kernel: only a Debug build has it.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
enable_testing()

find_package(Threads REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(doctest REQUIRED)

# ---- Flags, for every target of ours ----
# Everything can become part of libtile_c.so (harness/c), and is invisible from outside: what is
# visible could be replaced there, so that the compiler would have to call it the long way.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

add_library(tile_flags INTERFACE)
target_compile_features(tile_flags INTERFACE cxx_std_20)
target_include_directories(tile_flags INTERFACE "${TILE_ROOT}")
target_compile_options(tile_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<BOOL:${TILE_WERROR}>:-Werror>
    # g++ 12 sees copies that overlap in the standard library's own strings (GCC's bug 105651).
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
    # Reports and messages name files as seen from the project's folder.
    -fmacro-prefix-map=${TILE_ROOT}/=>)

# Compiles headers once for a library; with g++ only (cmake/CpuDevice.cmake).
function(tile_precompile target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND TILE_DEVICE STREQUAL cpu)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

if(TILE_DEVICE STREQUAL gpu)
  include("${TILE_ROOT}/cmake/Gpu.cmake")
else()
  include("${TILE_ROOT}/cmake/CpuDevice.cmake")
endif()

if(NOT TARGET tile_host)
  add_subdirectory("${TILE_ROOT}/tile/host" "${CMAKE_BINARY_DIR}/tile/host")
endif()
if(NOT TARGET harness)
  add_subdirectory("${TILE_ROOT}/harness" "${CMAKE_BINARY_DIR}/harness")
endif()

# tile_add_test(NAME name COMMAND target [arguments] LABEL label): a CTest entry. 77 is a skip. The
# target <label>_tests builds the programs of all tests with this label.
function(tile_add_test)
  cmake_parse_arguments(arg "" "NAME;LABEL" "COMMAND" ${ARGN})
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  set(limit 300)
  if(TILE_CHECK OR TILE_ASAN)
    set(limit 900)  # the longest takes 150 s on two cores, and twice that on a loaded machine
  endif()
  set_tests_properties(${arg_NAME} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${limit}
                                              LABELS "${arg_LABEL}")
  if(NOT TARGET ${arg_LABEL}_tests)
    add_custom_target(${arg_LABEL}_tests)
  endif()
  list(GET arg_COMMAND 0 program)
  if(TARGET ${program})
    add_dependencies(${arg_LABEL}_tests ${program})
  endif()
endfunction()

# tile_chapter([KERNELS file.cu …] [USES chapter …] [LINKS library …]): a chapter, named like its
# folder, which holds
#   step1_….cu, or forward1_….cu and backward1_….cu   its steps, named after their ladder
#   attention/forward1_….cu …                         where there are several operations, a folder each
#   reference.cpp, arguments.cpp and other .cpp       the reference, and what is refused
#   exercises/, solutions/                            see tile_exercise()
#   test/                                             test*.cpp and their kernels; bench*.cpp for
#                                                     ./tour; c_interface*.cpp
# KERNELS are .cu files that steps share, USES earlier chapters whose steps it launches, LINKS what
# the reference needs beside the harness. It makes
#   <name>        runs its steps and shows what they do
#   <name>_test   its tests, and those that every chapter has (harness/chapter_tests.cpp); CTest has
#                 an entry for each step, which runs the suite "step", and for each of the suites
#                 chapter, launch and large
function(tile_chapter)
  cmake_parse_arguments(arg "" "" "KERNELS;USES;LINKS" ${ARGN})
  get_filename_component(name "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  foreach(used IN LISTS arg_USES)
    if(NOT TARGET ${used}_steps)  # this chapter is configured alone
      set(tile_steps_only ON)
      add_subdirectory("${TILE_ROOT}/${used}" "${CMAKE_BINARY_DIR}/${used}" EXCLUDE_FROM_ALL)
      unset(tile_steps_only)
    endif()
  endforeach()
  file(GLOB steps CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}"
       *[0-9]_*.cu */forward[0-9]*_*.cu */backward[0-9]*_*.cu)
  file(GLOB sources CONFIGURE_DEPENDS *.cpp */*.cpp)
  list(FILTER sources EXCLUDE REGEX "/test/[^/]*$")
  file(GLOB glue CONFIGURE_DEPENDS test/bench*.cpp)
  file(GLOB c_interface CONFIGURE_DEPENDS test/c_interface*.cpp)
  file(GLOB tests CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" test/test*.cpp)
  file(GLOB test_kernels CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" test/*.cu)
  file(GLOB exercises CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/exercises"
       exercises/*.cu)

  # Apart from the steps, because the checks of the exercises need it and are to work without them.
  add_library(${name}_reference STATIC ${sources})
  target_link_libraries(${name}_reference PUBLIC harness ${arg_LINKS} PRIVATE Eigen3::Eigen)
  tile_use_headers(${name}_reference reference)
  target_include_directories(${name}_reference PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")
  add_library(${name}_steps STATIC)
  tile_add_kernels(${name}_steps ${steps} ${arg_KERNELS})
  target_link_libraries(${name}_steps PUBLIC ${name}_reference)
  foreach(used IN LISTS arg_USES)
    target_link_libraries(${name}_reference PUBLIC ${used}_reference)
    target_link_libraries(${name}_steps PUBLIC ${used}_steps)
  endforeach()
  if(tile_steps_only)
    return()
  endif()

  # An object library: nothing refers to a chapter by name, it registers itself.
  add_library(${name}_chapter OBJECT ${glue})
  target_link_libraries(${name}_chapter PUBLIC ${name}_steps)
  tile_use_headers(${name}_chapter program)
  set_property(GLOBAL APPEND PROPERTY TILE_CHAPTERS ${name})

  # The chapter's operations for callers of C. harness/c makes a library of all chapters', without
  # bench.cpp, which brings the peers with it.
  add_library(${name}_c_interface OBJECT ${c_interface})
  target_link_libraries(${name}_c_interface PUBLIC ${name}_steps)
  tile_use_headers(${name}_c_interface program)

  add_executable(${name})
  target_link_libraries(${name} PRIVATE ${name}_chapter harness_tour)

  add_executable(${name}_test ${tests} $<TARGET_OBJECTS:chapter_tests>)
  tile_use_test_headers(${name}_test)
  if(test_kernels)
    add_library(${name}_test_kernels OBJECT)
    tile_add_kernels(${name}_test_kernels ${test_kernels})
    target_link_libraries(${name}_test_kernels PRIVATE ${name}_chapter)
    target_link_libraries(${name}_test PRIVATE ${name}_test_kernels)
  endif()
  target_link_libraries(${name}_test PRIVATE ${name}_chapter harness_test_main Eigen3::Eigen)
  foreach(step IN LISTS steps)
    string(REPLACE ".cu" "" step "${step}")
    string(REPLACE "/" "_" test "${step}")
    tile_add_test(NAME ${name}.${test} LABEL ${name}
                  COMMAND ${name}_test --step=${step} --test-suite=step)
  endforeach()
  foreach(suite chapter launch large)
    tile_add_test(NAME ${name}.${suite} LABEL ${name} COMMAND ${name}_test --test-suite=${suite})
  endforeach()
  # They fill what is free of a card. What else needs gigabytes has the same lock, and as these run
  # one after the other, they begin before other tests.
  set_tests_properties(${name}.large PROPERTIES RESOURCE_LOCK device_memory COST 900)
  foreach(exercise IN LISTS exercises)
    get_filename_component(exercise ${exercise} NAME_WE)
    tile_exercise(${name} ${exercise})
  endforeach()
endfunction()

# An exercise: exercises/<exercise>.cu is to be completed, test/exercises/check_<exercise>.cpp checks
# it. ./tour builds and runs <chapter>_exercise_<exercise>. With TILE_CHECK_EXERCISES, CTest proves that
# the check accepts the one in solutions, and refuses the file as shipped and every wrong answer
# that an entry of test/wrong_answers.txt makes of the solution, each with the message meant for it.
# The message for the shipped file is in the check, after "// Shipped: ", unless it is that nothing
# was written. What it needs is built by the targets exercise_proofs (of all chapters, but for the
# wrong answers) and <chapter>_wrong_answers. Entries that say "build: check" are for the check build
# alone, where they are tests of the chapter.
#
# A class's answers are graded in builds of their own (./tour grade), which take the exercises from
# another folder, <TILE_ANSWERS>/<chapter>/exercises. A clone for a class may lack the solutions.
set(TILE_ANSWERS "" CACHE PATH "Where the exercises are, if not in the chapters")
option(TILE_CHECK_EXERCISES "Prove the checks of the exercises; needs exercises as shipped" OFF)
# The parameters of a function that is still to be written are unused. Linked last, so that the flag
# comes after -Wextra.
add_library(tile_unfinished_flags INTERFACE)
target_compile_options(tile_unfinished_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-parameter>)
# A wrong answer leaves something out, so that a variable of the solution can be unused.
add_library(tile_wrong_answer_flags INTERFACE)
target_compile_options(tile_wrong_answer_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-variable>)
function(tile_exercise chapter exercise)
  set(check ${chapter}_check_${exercise})
  add_library(${check} OBJECT EXCLUDE_FROM_ALL test/exercises/check_${exercise}.cpp)
  target_link_libraries(${check} PUBLIC ${chapter}_reference harness_test_main)
  target_include_directories(${check} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}")

  function(add_answer target source)
    add_executable(${target} ${ARGN})
    tile_add_kernels(${target} ${source})
    target_link_libraries(${target} PRIVATE ${check})
    target_link_libraries(${target} PRIVATE tile_unfinished_flags)
  endfunction()
  set(exercises exercises)
  if(TILE_ANSWERS)
    set(exercises "${TILE_ANSWERS}/${chapter}/exercises")
  endif()
  add_answer(${chapter}_exercise_${exercise} ${exercises}/${exercise}.cu EXCLUDE_FROM_ALL)
  # An exercise is not solved if the check build finds something, so it must not in the solution.
  if((NOT TILE_CHECK_EXERCISES AND NOT TILE_CHECK) OR
     NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/solutions/${exercise}.cu")
    return()
  endif()
  set(label exercises)
  if(TILE_CHECK)  # in the check build they are the chapter's tests
    set(label ${chapter})
  endif()
  add_answer(${chapter}_solution_${exercise} solutions/${exercise}.cu)
  tile_add_test(NAME ${chapter}.solution_${exercise} LABEL ${label}
                COMMAND ${chapter}_solution_${exercise})
  if(NOT TILE_CHECK_EXERCISES)
    return()
  endif()

  set(refuse "${CMAKE_COMMAND}" -P "${TILE_ROOT}/cmake/must_fail.cmake")
  set(wrong_answers ${chapter}_tests)
  if(NOT TILE_CHECK)
    set(wrong_answers ${chapter}_wrong_answers)
    foreach(target exercise_proofs ${wrong_answers})
      if(NOT TARGET ${target})
        add_custom_target(${target})
      endif()
    endforeach()
    file(STRINGS test/exercises/check_${exercise}.cpp message REGEX "^// Shipped: ")
    if(NOT message)
      set(message "not written anything|never written")
    endif()
    string(REPLACE "// Shipped: " "" message "${message}")
    add_answer(${chapter}_shipped_${exercise} exercises/${exercise}.cu)
    add_dependencies(exercise_proofs ${chapter}_solution_${exercise}
                     ${chapter}_shipped_${exercise})
    tile_add_test(NAME ${chapter}.shipped_${exercise} LABEL exercises COMMAND ${refuse}
                  "${message}" $<TARGET_FILE:${chapter}_shipped_${exercise}>)
  endif()

  set(solution "${CMAKE_CURRENT_SOURCE_DIR}/solutions/${exercise}.cu")
  set(wrong "${CMAKE_CURRENT_SOURCE_DIR}/test/wrong_answers.txt")
  set(edits "${TILE_ROOT}/tools/edits.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${wrong}")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/wrong")
  file(READ "${wrong}" text)
  file(STRINGS "${wrong}" entries REGEX "^== ${exercise}\\.")
  foreach(entry IN LISTS entries)
    string(REPLACE "== " "" entry "${entry}")
    if(NOT text MATCHES "== ${entry}\nrefused: ([^\n]+)\n(build: check\n)?")
      message(FATAL_ERROR "${wrong}: ${entry} does not begin with refused:")
    endif()
    set(message "${CMAKE_MATCH_1}")
    if((CMAKE_MATCH_2 AND NOT TILE_CHECK) OR (TILE_CHECK AND NOT CMAKE_MATCH_2))
      continue()
    endif()
    set(answer "${CMAKE_CURRENT_BINARY_DIR}/wrong/${entry}.cu")
    add_custom_command(
      OUTPUT "${answer}"
      COMMAND Python3::Interpreter -B "${edits}" "${wrong}" ${entry} "${solution}" "${answer}"
      DEPENDS "${solution}" "${wrong}" "${edits}"
      VERBATIM)
    string(REPLACE . _ entry ${entry})
    add_answer(${chapter}_wrong_${entry} "${answer}")
    target_link_libraries(${chapter}_wrong_${entry} PRIVATE tile_wrong_answer_flags)
    add_dependencies(${wrong_answers} ${chapter}_wrong_${entry})
    set(limit "")
    if(message MATCHES "without end")
      set(limit --host-seconds=3)
    endif()
    tile_add_test(NAME ${chapter}.wrong_${entry} LABEL ${label} COMMAND ${refuse}
                  "${message}" $<TARGET_FILE:${chapter}_wrong_${entry}> ${limit})
  endforeach()
endfunction()

# What the harness's tests ask of each chapter.
function(tile_tests_of_all_chapters)
  get_property(chapters GLOBAL PROPERTY TILE_CHAPTERS)
  list(TRANSFORM chapters APPEND _chapter)
  target_link_libraries(harness_test PRIVATE ${chapters})

  # The target harness_tests builds what a test of harness_test runs.
  add_dependencies(harness_test 01_vector_add)
  tile_add_test(NAME harness.tour_runs_nothing LABEL harness
                COMMAND "${CMAKE_COMMAND}" -P "${TILE_ROOT}/cmake/must_fail.cmake"
                "type: fp64 is not one of .*Nothing was run"
                ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:01_vector_add>
                run 01 --type fp64)
endfunction()
