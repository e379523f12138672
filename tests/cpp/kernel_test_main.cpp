// SPDX-License-Identifier: Apache-2.0
//
// The main of every kernel test: doctest's, and `--quick`.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // a crash is the sanitizer's to report
#include <cstdio>

#include "tests/cpp/kernel_test.h"

int main(int argc, char** argv) {
  using namespace torchvox::testing;
  for (int i = 1; i < argc; ++i) quick = quick || std::strcmp(argv[i], "--quick") == 0;
  if (!has_device()) std::puts("no GPU: host only");
  return doctest::Context(argc, argv).run();
}
