# Cross-compiles for 64-bit Arm on Debian and runs the result under qemu-user. Needs the packages
# g++-aarch64-linux-gnu and qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# Static, because a dynamically linked program hangs in its first pthread_create under Debian 12's
# qemu-user 7.2, even one that does nothing else.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
