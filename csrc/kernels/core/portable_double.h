// SPDX-License-Identifier: Apache-2.0
//
// exp and log in double that give the same bits on every processor, as those in float of
// portable_math.h: the steps of fdlibm (Sun Microsystems, 1993), each rounded once, within 1 ulp.
#pragma once

#include "csrc/kernels/core/portable_math.h"

namespace torchvox::portable {

inline constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 bits
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

TORCHVOX_HD double exp(double x) {
  if (is_nan(x)) return static_cast<double>(not_a_number());
  if (x > 709.782712893384) return static_cast<double>(infinity());
  if (x < -745.2) return 0.0;
  const double n = (x * 1.44269504088896338700 + 6755399441055744.0) - 6755399441055744.0;
  const double high = x - n * kLn2High, low = n * kLn2Low;
  const double r = high - low, s = r * r;
  double p = 4.13813679705723846039e-08;
  p = -1.65339022054652515390e-06 + s * p;
  p = 6.61375632143793436117e-05 + s * p;
  p = -2.77777777770155933842e-03 + s * p;
  p = 1.66666666666666019037e-01 + s * p;
  const double c = r - s * p;
  const double y = 1.0 - ((low - (r * c) / (2.0 - c)) - high);
  // In two steps, each of an exponent that a double has.
  const int whole = static_cast<int>(n), half = whole / 2;
  const double first = bit_cast<double>(static_cast<uint64_t>(half + 1023) << 52);
  return y * first * bit_cast<double>(static_cast<uint64_t>(whole - half + 1023) << 52);
}

// x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2).
TORCHVOX_HD double log(double x) {
  if (is_nan(x) || x < 0.0) return static_cast<double>(not_a_number());
  if (x == 0.0) return -static_cast<double>(infinity());
  if (!is_finite(x)) return x;
  double e = 0.0;
  if (x < 2.2250738585072014e-308) {  // subnormal
    x *= 18014398509481984.0;
    e = -54.0;
  }
  const uint64_t bits = float_bits(x);
  const uint64_t shift = (bits - 0x3fe6a09e667f3bcdu) & 0xfff0000000000000u;
  const int64_t exponent = static_cast<int64_t>(shift) / (int64_t{1} << 52);
  e += static_cast<double>(exponent);
  const double f = bit_cast<double>(bits - shift) - 1.0, s = f / (2.0 + f);
  const double z = s * s, w = z * z;
  double even = 1.531383769920937332e-01, odd = 1.479819860511658591e-01;
  even = 2.222219843214978396e-01 + w * even;
  even = 3.999999999940941908e-01 + w * even;
  odd = 1.818357216161805012e-01 + w * odd;
  odd = 2.857142874366239149e-01 + w * odd;
  odd = 6.666666666666735130e-01 + w * odd;
  const double rest = w * even + z * odd, half_square = 0.5 * f * f;
  return e * kLn2High - ((half_square - (s * (half_square + rest) + e * kLn2Low)) - f);
}

}  // namespace torchvox::portable
