# cmake -DBUILD=… -DVERSION=… -DCC=… -DCXX=… -P check_installed.cmake: installs the library of a build
# and builds and runs programs with it, as a user of it does.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(folder "${BUILD}/installed")
file(REMOVE_RECURSE "${folder}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${folder}/before")
# It works wherever it is moved to.
file(RENAME "${folder}/before" "${folder}/prefix")
file(GLOB_RECURSE files RELATIVE "${folder}/prefix" "${folder}/prefix/*")
list(TRANSFORM files REPLACE "^lib/[^/]*-linux-gnu/" "lib/")  # as Debian has it below /usr
list(TRANSFORM files REPLACE "(Config)-[a-z]+\\." "\\1-type.")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${VERSION}")
set(wanted include/tile_by_tile/tile.h lib/cmake/tile_by_tile/tile_by_tileConfig-type.cmake
    lib/cmake/tile_by_tile/tile_by_tileConfig.cmake
    lib/cmake/tile_by_tile/tile_by_tileConfigVersion.cmake lib/libtile_c.so lib/libtile_c.so.${minor}
    lib/libtile_c.so.${VERSION} share/tile_by_tile/LICENSE)
list(SORT files)
list(SORT wanted)
if(NOT files STREQUAL wanted)
  message(FATAL_ERROR "installed: ${files}\nwanted: ${wanted}")
endif()

# A program for another major version does not get this one.
set(CMAKE_PREFIX_PATH "${folder}/prefix")
foreach(other 0.9 2.0)
  find_package(tile_by_tile ${other} QUIET)
  if(tile_by_tile_FOUND OR NOT tile_by_tile_CONSIDERED_VERSIONS STREQUAL VERSION)
    message(FATAL_ERROR "for ${other}, '${tile_by_tile_CONSIDERED_VERSIONS}' was looked at; "
                        "found: ${tile_by_tile_FOUND}")
  endif()
endforeach()

run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${folder}/outside" -G Ninja
    "-DCMAKE_PREFIX_PATH=${folder}/prefix" "-DCMAKE_C_COMPILER=${CC}" "-DCMAKE_CXX_COMPILER=${CXX}")
run("${CMAKE_COMMAND}" --build "${folder}/outside")
run("${folder}/outside/example")
run("${folder}/outside/sum")
