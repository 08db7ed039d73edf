# cmake -P must_fail.cmake MESSAGE PROGRAM [ARGUMENT …]: succeeds if the program ends by itself with
# exit code 1, that of a failed check, and says what the regular expression MESSAGE matches. CTest's
# own WILL_FAIL would take a crash for a failure, and cannot ask for a message.
set(message "${CMAKE_ARGV3}")
set(program "")
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE 4 ${last})
  list(APPEND program "${CMAKE_ARGV${i}}")
endforeach()
execute_process(COMMAND ${program} RESULT_VARIABLE code OUTPUT_VARIABLE output
                ERROR_VARIABLE output TIMEOUT 60)
if(NOT code STREQUAL "1")
  message(FATAL_ERROR "ended with '${code}' and not with a failed check:\n${output}")
elseif(NOT output MATCHES "${message}")
  message(FATAL_ERROR "does not say '${message}':\n${output}")
endif()
