// SPDX-License-Identifier: Apache-2.0
//
// The portable functions: their bits on every side, and their distance from libm in double.
// Workspaces, and grids of blocks.
#include <algorithm>

#include "tests/cpp/harness.h"
#include "tests/cpp/portable_sweep.h"

namespace {

TEST_CASE(a_workspace_has_aligned_ranges) {
  char memory[1024];
  Workspace workspace(memory);
  CHECK(workspace.take<char>(1) == memory);
  CHECK(static_cast<void*>(workspace.take<double>(33)) == memory + 256);
  CHECK(static_cast<void*>(workspace.take<int32_t>(64)) == memory + 768);
  CHECK(workspace.bytes() == 1024);
}

// Cast alone, one block more than 2^32 would come out as one block, and the launch would succeed.
TEST_CASE(too_many_blocks_stay_too_many) {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  CHECK(grid_x(kMost) == kMost);
  for (const int64_t blocks : {kMost + 1, (int64_t{1} << 32) + 1, (int64_t{1} << 62) + 1}) {
    CHECK(grid_x(blocks) == kMost + 1);
  }
}

KERNEL_CASE(portable_bits, 0x6277825275afb11a) {
  for (int function = 0; function < kSwept; ++function) {
    uint64_t* const out = side.room<uint64_t>(kSweepCount);
#ifdef TORCHVOX_CUDA
    if (side.is_device()) {
      sweep_on_device(function, out);
      continue;
    }
#endif
    for (int i = 0; i < kSweepCount; ++i) out[i] = swept_bits(function, i);
  }
}

// |got - exact| in units in the last place of the nearest float.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : INFINITY;
  const float nearest = static_cast<float>(exact);
  if (got == nearest) return 0;
  if (!std::isfinite(got) || !std::isfinite(nearest)) return INFINITY;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

double exact_value(int function, float x) {
  const double wide = x;
  switch (function) {
    case kExp: return std::exp(wide);
    case kLog: return std::log(wide);
    case kSigmoid: return wide < -700 ? 0.0 : 1 / (1 + std::exp(-wide));
    case kSin: return std::sin(wide);
    case kCos: return std::cos(wide);
    default: return std::atan2(wide, static_cast<double>(sweep_partner(x)));
  }
}

// tests/core/test_portable_math.py looks at fewer floats, and at those that decide.
TEST_CASE(floats_are_within_2_ulp) {
  for (int function = 0; function < kSweptFloats; ++function) {
    double worst = 0;
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += every_float ? 1 : 1499) {
      const float x = bit_cast<float>(static_cast<uint32_t>(bits));
      worst = std::max(worst, ulps(swept_float(function, x), exact_value(function, x)));
    }
    CHECK(worst <= 2);
  }
}

TEST_CASE(doubles_are_within_2_ulp) {
  Random random(6);
  const auto off = [](double got, double exact) {
    return std::fabs(got - exact) / std::fabs(std::nextafter(exact, INFINITY) - exact);
  };
  for (int i = 0; i < 200000; ++i) {
    const double u = static_cast<double>(random.below(1 << 30)) / (1 << 30);
    const double x = 1400 * u - 700, turn = std::ldexp(2 * u - 1, i % 40);
    const double y = std::ldexp(1 + u, i % 40 ? i % 3 - 2 : static_cast<int>(1000 * u));
    CHECK(off(portable::exp(x), std::exp(x)) <= 2);
    CHECK(off(portable::log(y), std::log(y)) <= 2);
    // Near multiples of pi / 2 the absolute error counts.
    const auto got = portable::sin_cos(turn);
    CHECK(std::fabs(got.sin - std::sin(turn)) < 4e-16);
    CHECK(std::fabs(got.cos - std::cos(turn)) < 4e-16);
  }
  CHECK(portable::exp(0.0) == 1 && portable::log(1.0) == 0);
}

}  // namespace
