# cmake -DNM=… -DLIBRARY=… -DHEADER=… -P check_symbols.cmake: the library exports the functions of
# the header and nothing else.
execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${symbols}")
list(TRANSFORM exported STRIP)
list(SORT exported)

file(READ "${HEADER}" header)
string(REGEX MATCHALL "\nTILE_API [^(;]*\\(" declared "${header}")
list(TRANSFORM declared REPLACE ".*(tile_[a-z_]+)\\($" "\\1")
list(SORT declared)

list(LENGTH declared count)
if(count EQUAL 0 OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "declared: ${declared}\nexported: ${exported}")
endif()
message(STATUS "${count} functions, and nothing else")
