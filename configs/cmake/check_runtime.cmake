# SPDX-License-Identifier: Apache-2.0
# cmake -DLIBRARY=lib.so -P check_runtime.cmake: stops where a library does not share libstdc++ with
# torch. A copy of its own unwinds into torch's at the first error, and the process ends.
file(STRINGS "${LIBRARY}" runtime REGEX "^libstdc\\+\\+\\.so" LIMIT_COUNT 1)
if(NOT runtime)
  message(FATAL_ERROR "${LIBRARY} does not need libstdc++.so, which torch uses: build with compilers (CXX, CUDAHOSTCXX) and flags that link it as a shared library, without -static-libstdc++")
endif()
