# SPDX-License-Identifier: Apache-2.0
#
# cmake --toolchain configs/cmake/aarch64.cmake: builds for 64-bit Arm on another machine, with the
# cross compiler of Debian and Ubuntu (g++-aarch64-linux-gnu); ctest runs the tests under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;/usr/aarch64-linux-gnu)
