// SPDX-License-Identifier: Apache-2.0
//
// The portable functions against double libm, over every 101st float; `--all` takes every float
// (some minutes), `--quick` few. With a GPU: device against host, bit for bit.
#include "csrc/kernels/core/portable_math.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/cpp/check.h"
#include "tests/cpp/portable_math_sweep.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

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
    std::printf("%s: at most %.3f ulp, at %a\n", sweep_name(function), worst, at);
    check(worst <= 2, std::string(sweep_name(function)) + " within 2 ulp");
  }
}

void check_special_values() {
  const float inf = INFINITY, nan = NAN, pi = 3.14159274f;
  check(same_bits(portable::sin(-0.0f), -0.0f), "sin(-0) is -0");
  check(same_bits(portable::sin(nan), portable::not_a_number()), "sin(nan)");
  check(same_bits(portable::cos(inf), portable::not_a_number()), "cos(inf)");
  check(portable::exp(-inf) == 0 && portable::exp(inf) == inf, "exp of infinities");
  check(portable::log(0.0f) == -inf && portable::log(-0.0f) == -inf, "log(0)");
  check(same_bits(portable::log(-1.0f), portable::not_a_number()), "log(-1)");
  check(portable::sigmoid(-inf) == 0 && portable::sigmoid(inf) == 1, "sigmoid of infinities");
  check(portable::sigmoid(0.0f) == 0.5f, "sigmoid(0)");
  const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf, 1e-40f, -3e38f};
  for (const float y : values) {
    for (const float x : values) {
      const float got = portable::atan2(y, x), want = std::atan2(y, x);
      check(std::signbit(got) == std::signbit(want) && ulps(got, want) <= 2, "atan2 of specials");
    }
  }
  check(portable::atan2(0.0f, -1.0f) == pi, "atan2(0, -1) is pi");
  // Doubles: near multiples of pi / 2 the absolute error counts.
  Random random(5);
  for (int i = 0; i < 200000; ++i) {
    const double x =
        std::ldexp(static_cast<double>(random.below(1 << 30)) - (1 << 29), i % 40 - 30);
    const auto got = portable::sin_cos(x);
    check(std::fabs(got.sin - std::sin(x)) < 4e-16 && std::fabs(got.cos - std::cos(x)) < 4e-16,
          "double sine and cosine of " + std::to_string(x));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  check_special_values();
  check_accuracy(option == "--all" ? 1 : option == "--quick" ? 65521 : 101);
#ifdef TORCHVOX_CUDA
  check_sweep_on_device();
#endif
  return finish("test_portable_kernels");
}
