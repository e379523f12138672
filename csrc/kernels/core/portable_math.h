// SPDX-License-Identifier: Apache-2.0
//
// exp, log, sigmoid, sin, cos and atan2 that give the same bits on every processor: libm and CUDA
// differ in theirs. Only +, -, *, /, written-out fma and integers, each rounded once. At most 2 ulp
// from the exact value (tests/cpp/test_portable_kernels.cpp measures every float); subnormal
// arguments and results included. A NaN leaves as the one quiet NaN.
// torchvox/reference/portable_math.py holds the same steps in NumPy.
#pragma once

#include "csrc/kernels/core/arith.h"

namespace torchvox::portable {

TORCHVOX_HD float not_a_number() { return bit_cast<float>(0x7fc00000u); }
TORCHVOX_HD float infinity() { return bit_cast<float>(0x7f800000u); }

// x to the nearest whole number, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bit
// below one.
TORCHVOX_HD float round_small(float x) { return (x + 12582912.0f) - 12582912.0f; }

// first x^n + ... + the last coefficient, by Horner's rule with one fma per step.
template <class T, class... Coefficients>
TORCHVOX_HD T polynomial(T x, T first, Coefficients... others) {
  T sum = first;
  ((sum = fma_rn(sum, x, others)), ...);
  return sum;
}

// 2^n * exp(f) with n = round(x / ln 2) and |f| <= ln 2 / 2.
TORCHVOX_HD float exp(float x) {
  if (is_nan(x)) return not_a_number();
  if (x > 89.0f) return infinity();
  if (x < -104.0f) return 0.0f;
  const float n = round_small(1.44269502f * x);
  float f = fma_rn(n, -0.693145752f, x);  // ln 2 in two parts, the first with few bits
  f = fma_rn(n, -1.42860677e-6f, f);
  const float p = polynomial(f, 1.37805939e-3f, 8.37312452e-3f, 4.16695364e-2f, 1.66664720e-1f,
                             4.99999851e-1f, 1.0f, 1.0f);
  // In two steps, each of an exponent that a float has.
  const int whole = static_cast<int>(n), half = whole / 2;
  const float first = bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float second = bit_cast<float>(static_cast<uint32_t>(whole - half + 127) << 23);
  return p * first * second;
}

// e * ln 2 + log(1 + m) with x = 2^e (1 + m) and m in [-1/3, 1/3].
TORCHVOX_HD float log(float x) {
  if (is_nan(x) || x < 0.0f) return not_a_number();
  if (x == 0.0f) return -infinity();
  if (!is_finite(x)) return x;
  float e = 0.0f;
  if (x < 1.17549435e-38f) {  // subnormal
    x *= 8388608.0f;
    e = -23.0f;
  }
  const uint32_t bits = float_bits(x);
  const uint32_t shift = (bits - 0x3f2aaaabu) & 0xff800000u;  // the exponent of x * 3 / 2
  const int32_t exponent = static_cast<int32_t>(shift) / 8388608;
  e += static_cast<float>(exponent);
  const float m = bit_cast<float>(bits - shift) - 1.0f, s = m * m;
  const float even = polynomial(s, -0.130310059f, -0.121484190f, -0.166846052f, -0.249996200f);
  const float odd = polynomial(s, 0.140869141f, 0.139814854f, 0.200120345f);
  const float r = fma_rn(polynomial(m, odd, even, 0.333331972f, -0.5f), s, m);
  return fma_rn(e, 0.693147182f, r);
}

// 1 / (1 + exp(-x)), through the exponential that cannot overflow.
TORCHVOX_HD float sigmoid(float x) {
  if (is_nan(x)) return not_a_number();
  const float e = exp(x < 0.0f ? x : -x), whole = 1.0f + e;
  const float q = (x < 0.0f ? e : 1.0f) / whole;
  const float cut = e - (whole - 1.0f);  // what rounding took from 1 + e
  return fma_rn(q * cut, x < 0.0f ? q - 1.0f : -q, q);  // the second factor is -1 / (1 + e)
}

template <class T>
struct SinCos {
  T sin, cos;
};

// An angle as quarter * pi/2 + rest with |rest| <= pi/4; of quarter two bits count.
template <class T>
struct Quarters {
  int quarter;
  T rest;
};

// For large angles: the product with 192 bits of 2 / pi, of which whole turns are dropped
// (Payne and Hanek 1983).
TORCHVOX_HD Quarters<float> large_quarters(float x) {
  constexpr uint32_t kTwoOverPi[] = {0x28be60dbu, 0x9391054au, 0x7f09d5f4u,
                                     0x7d4d3770u, 0x36d8a566u, 0x4f10e410u};
  const uint32_t bits = float_bits(x), significand = (bits << 8) | 0x80000000u;
  const uint32_t exponent = ((bits >> 23) & 0xffu) - 126u;
  const uint32_t word = exponent >> 5, shift = exponent & 31u;
  const auto at = [&](uint32_t k) {
    // 32 bits of 2 / pi from bit 32 * k + shift on, counted from two bits before the point.
    const uint32_t high = k == 0 ? 0u : kTwoOverPi[k - 1], low = k > 5 ? 0u : kTwoOverPi[k];
    return shift == 0 ? high : (high << shift) | (low >> (32u - shift));
  };
  uint64_t p = uint64_t{significand} * at(word + 2);
  p = uint64_t{significand} * at(word + 1) + (p >> 32);
  p += uint64_t{significand * at(word)} << 32;
  int quarter = static_cast<int>(p >> 62);
  p &= 0x3fffffffffffffffu;
  if (p & 0x2000000000000000u) {
    p -= 0x4000000000000000u;
    ++quarter;
  }
  const double turned = static_cast<double>(static_cast<int64_t>(p));
  const float rest = static_cast<float>(turned * 3.4061215800304776e-19);  // pi / 2 / 2^62
  return (bits >> 31) ? Quarters<float>{-quarter, -rest} : Quarters<float>{quarter, rest};
}

TORCHVOX_HD Quarters<float> quarters_of(float x) {
  if (x > 71476.0f || x < -71476.0f) return large_quarters(x);
  const float n = round_small(0.636619747f * x);
  float rest = fma_rn(n, -1.57079601f, x);  // pi / 2 in three parts
  rest = fma_rn(n, -3.13916473e-7f, rest);
  rest = fma_rn(n, -5.39030253e-15f, rest);
  return {static_cast<int>(n), rest};
}

// The absolute error is a few 2^-53 whatever the angle: from 2^50 on, where the angles that a
// double holds lie a quarter of a radian apart, it is taken as zero.
TORCHVOX_HD Quarters<double> quarters_of(double x) {
  if (x > 1125899906842624.0 || x < -1125899906842624.0) return {0, 0.0};
  const double n = (x * 0.63661977236758138 + 6755399441055744.0) - 6755399441055744.0;
  double rest = fma_rn(n, -1.5707963267948966, x);
  rest = fma_rn(n, -6.123233995736766e-17, rest);
  return {static_cast<int>(static_cast<int64_t>(n) & 3), rest};
}

// Over |x| <= pi / 4.
TORCHVOX_HD SinCos<float> sin_cos_core(float x) {
  const float s = x * x;
  const float sine =
      polynomial(s, 2.86567956e-6f, -1.98559923e-4f, 8.33338592e-3f, -1.66666672e-1f);
  const float cosine = polynomial(s, 2.44677067e-5f, -1.38877297e-3f, 4.16666567e-2f, -0.5f, 1.0f);
  return {fma_rn(sine, fma_rn(s, x, 0.0f), x), cosine};  // + 0: keeps -0
}
// The polynomials of fdlibm (Sun Microsystems, 1993).
TORCHVOX_HD SinCos<double> sin_cos_core(double x) {
  const double s = x * x;
  const double sine = polynomial(s, 1.58969099521155010221e-10, -2.50507602534068634195e-8,
                                 2.75573137070700676789e-6, -1.98412698298579493134e-4,
                                 8.33333333332248946124e-3, -1.66666666666666324348e-1);
  const double cosine = polynomial(
      s, -1.13596475577881948265e-11, 2.08757232129817482790e-9, -2.75573143513906633035e-7,
      2.48015872894767294178e-5, -1.38888888888741095749e-3, 4.16666666666666019037e-2, -0.5, 1.0);
  return {fma_rn(sine, fma_rn(s, x, 0.0), x), cosine};
}

// Sine and cosine of an angle in radians. float: 2 ulp for every angle; double: see quarters_of.
template <class T>
TORCHVOX_HD SinCos<T> sin_cos(T x) {
  if (!is_finite(x)) {
    const T nan = static_cast<T>(not_a_number());
    return {nan, nan};
  }
  const Quarters<T> angle = quarters_of(x);
  const SinCos<T> core = sin_cos_core(angle.rest);
  const bool odd = angle.quarter & 1;
  const T sine = odd ? core.cos : core.sin, cosine = odd ? core.sin : core.cos;
  return {(angle.quarter & 2) ? -sine : sine, ((angle.quarter + 1) & 2) ? -cosine : cosine};
}
TORCHVOX_HD float sin(float x) { return sin_cos(x).sin; }
TORCHVOX_HD float cos(float x) { return sin_cos(x).cos; }

// atan(t) of 0 <= t <= 1.
TORCHVOX_HD float atan_core(float t) {
  const float s = t * t;
  const float p = polynomial(s, 0.0029206383f, -0.0163677149f, 0.0432115197f, -0.0755218565f,
                             0.106659919f, -0.142110527f, 0.199937731f, -0.333331525f);
  return fma_rn(p * s, t, t);
}

// The angle of (x, y), in [-pi, pi], with the signs and the special cases of C's atan2.
TORCHVOX_HD float atan2(float y, float x) {
  if (is_nan(x) || is_nan(y)) return not_a_number();
  const float ax = x < 0.0f ? -x : x, ay = y < 0.0f ? -y : y;
  const float least = ax < ay ? ax : ay, most = ax < ay ? ay : ax;
  float angle = 0.0f;
  if (most > 0.0f) angle = atan_core(is_finite(least) ? least / most : 1.0f);
  if (ax < ay) angle = (1.57079637f - angle) + -4.37113883e-8f;
  if (float_bits(x) >> 31) angle = (3.14159274f - angle) + -8.74227766e-8f;
  return (float_bits(y) >> 31) ? -angle : angle;
}

}  // namespace torchvox::portable
