// SPDX-License-Identifier: Apache-2.0
//
// The portable functions against double libm, and with a GPU the device against the host.
#include <algorithm>

#include "csrc/kernels/core/portable_double.h"
#include "tests/cpp/kernel_test.h"
#include "tests/cpp/portable_math_sweep.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// |got - exact| in units in the last place of the nearest float.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : kInfinity;
  const float nearest = static_cast<float>(exact);
  if (got == nearest) return 0;
  if (!std::isfinite(got) || !std::isfinite(nearest)) return kInfinity;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

double exact_value(SweepFunction function, float x) {
  const double wide = x;
  switch (function) {
    case SweepFunction::kExp: return std::exp(wide);
    case SweepFunction::kLog: return std::log(wide);
    case SweepFunction::kSigmoid: return wide < -700 ? 0.0 : 1 / (1 + std::exp(-wide));
    case SweepFunction::kSin: return std::sin(wide);
    case SweepFunction::kCos: return std::cos(wide);
    default: return std::atan2(wide, static_cast<double>(sweep_partner(x)));
  }
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

void check_accuracy(uint32_t step) {
  for (const SweepFunction function : kSweepFunctions) {
    double worst = 0;
    float at = 0;
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
      const float x = bit_cast<float>(static_cast<uint32_t>(bits));
      const double off = ulps(sweep_value(function, x), exact_value(function, x));
      if (off > worst) worst = off, at = x;
    }
    CAPTURE(function);
    CAPTURE(at);
    CHECK(worst <= 2);
  }
}

TEST_CASE("within 2 ulp") { check_accuracy(quick ? 65521 : 499); }

// Some minutes: --no-skip.
TEST_CASE("within 2 ulp, every float" * doctest::skip()) { check_accuracy(1); }

TEST_CASE("special values") {
  CHECK(same_bits(portable::sin(-0.0f), -0.0f));
  CHECK(same_bits(portable::sin(kNan), portable::not_a_number()));
  CHECK(same_bits(portable::cos(kInfinity), portable::not_a_number()));
  CHECK(portable::exp(-kInfinity) == 0);
  CHECK(portable::exp(kInfinity) == kInfinity);
  CHECK(portable::log(0.0f) == -kInfinity);
  CHECK(portable::log(-0.0f) == -kInfinity);
  CHECK(same_bits(portable::log(-1.0f), portable::not_a_number()));
  CHECK(portable::sigmoid(-kInfinity) == 0);
  CHECK(portable::sigmoid(kInfinity) == 1);
  CHECK(portable::sigmoid(0.0f) == 0.5f);
  CHECK(portable::atan2(0.0f, -1.0f) == 3.14159274f);
  const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, kInfinity, -kInfinity, 1e-40f, -3e38f};
  for (const float y : values) {
    for (const float x : values) {
      CAPTURE(y);
      CAPTURE(x);
      const float got = portable::atan2(y, x), want = std::atan2(y, x);
      CHECK(std::signbit(got) == std::signbit(want));
      CHECK(ulps(got, want) <= 2);
    }
  }
}

// Near multiples of pi / 2 the absolute error counts.
TEST_CASE("double sine and cosine") {
  Random random(5);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(random.below(1 << 30)) - (1 << 29), i % 40 - 30);
    const auto got = portable::sin_cos(x);
    for (const double off : {got.sin - std::sin(x), got.cos - std::cos(x)}) {
      worst = std::fabs(off) <= worst ? worst : std::fabs(off);  // NaN stays
    }
  }
  CHECK(worst < 4e-16);
}

TEST_CASE("double exponential and logarithm") {
  Random random(6);
  const auto off = [](double got, double want) {
    return std::fabs(got - want) / std::fabs(std::nextafter(want, kInfinity) - want);
  };
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = 1400 * (static_cast<double>(random.below(1 << 30)) / (1 << 30)) - 700;
    const double y =
        std::ldexp(1 + static_cast<double>(random.below(1 << 30)) / (1 << 30),
                   i % 40 == 0 ? static_cast<int>(random.below(2000)) - 1000 : i % 3 - 2);
    worst =
        std::max({worst, off(portable::exp(x), std::exp(x)), off(portable::log(y), std::log(y))});
  }
  CHECK(worst <= 2);
  CHECK(portable::exp(0.0) == 1);
  CHECK(portable::log(1.0) == 0);
}

#ifdef TORCHVOX_CUDA
TEST_CASE("the device gives the bits of the host") {
  if (!has_device()) return;
  for (const SweepFunction function : kSweepFunctions) {
    std::vector<float> want;
    for (uint32_t i = 0; i < kSweepCount; ++i) {
      want.push_back(sweep_value(function, bit_cast<float>(i * kSweepStep)));
    }
    CAPTURE(function);
    CHECK_SAME(sweep_on_device(function), want);
  }
  std::vector<double> want;
  for (int i = 0; i < kSweepCount; ++i) {
    const auto both = sweep_double(i - kSweepCount / 2);
    want.insert(want.end(), {both.sin, both.cos});
  }
  CHECK_SAME(sweep_double_on_device(), want);
}
#endif

}  // namespace
