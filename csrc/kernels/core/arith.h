// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic that gives the same bits on the host and on the device. The build forbids
// contraction (-ffp-contract=off, -fmad=false), so +, -, * and / are single IEEE operations on both
// sides and every fused multiply-add that is wanted is written out with fma_rn.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define TORCHVOX_HD __host__ __device__ __forceinline__
#else
#define TORCHVOX_HD inline
#endif
#define TORCHVOX_INLINE inline __attribute__((always_inline))

namespace torchvox {

template <class To, class From>
TORCHVOX_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// a * b + c, rounded once.
TORCHVOX_HD float fma_rn(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
TORCHVOX_HD double fma_rn(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

// Single IEEE operations on either side.
TORCHVOX_HD float root(float x) { return sqrtf(x); }
TORCHVOX_HD double root(double x) { return sqrt(x); }

TORCHVOX_HD uint32_t float_bits(float x) { return bit_cast<uint32_t>(x); }
TORCHVOX_HD uint64_t float_bits(double x) { return bit_cast<uint64_t>(x); }

// On the bits, so that no compiler option can fold it away.
TORCHVOX_HD bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }
TORCHVOX_HD bool is_finite(double x) {
  return (float_bits(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}
TORCHVOX_HD bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }
TORCHVOX_HD bool is_nan(double x) {
  return (float_bits(x) & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

// A NaN leaves as the one quiet NaN: processors differ in the payloads and signs they produce.
TORCHVOX_HD float quiet(float x) { return is_nan(x) ? bit_cast<float>(0x7fc00000u) : x; }
TORCHVOX_HD double quiet(double x) {
  return is_nan(x) ? bit_cast<double>(uint64_t{0x7ff8000000000000u}) : x;
}

// Unsigned integers that order as the floats do (NaN aside; -0 sorts below +0).
TORCHVOX_HD uint32_t ordered_bits(float x) {
  const uint32_t bits = float_bits(x);
  return bits ^ ((bits >> 31) ? 0xffffffffu : 0x80000000u);
}
TORCHVOX_HD float from_ordered_bits(uint32_t key) {
  return bit_cast<float>(key ^ ((key >> 31) ? 0x80000000u : 0xffffffffu));
}

// Storage of 16-bit floats, so that a build without a CUDA toolkit has them too.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

TORCHVOX_HD float widen(BFloat16 x) { return bit_cast<float>(uint32_t{x.bits} << 16); }
TORCHVOX_HD float widen(Half x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
  if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
#ifdef __CUDA_ARCH__
  float wide;  // in one instruction, which gives NaN other bits
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  if (exponent != 0) return bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // A subnormal half is mantissa * 2^-24, exact in float.
  const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return bit_cast<float>(sign | float_bits(magnitude));
#endif
}
TORCHVOX_HD float widen(float x) { return x; }
TORCHVOX_HD double widen(double x) { return x; }

// Rounds the significand of a binary64 number, nearest even, to a small format of `kMantissa`
// stored bits, minimum normal exponent `kMinExponent` and maximum exponent kMaxExponent. Floats
// widen to double exactly, so one routine rounds both of them once.
template <int kMantissa, int kMinExponent, int kMaxExponent>
TORCHVOX_HD uint16_t round_to_16_bits(double x) {
  const uint64_t bits = float_bits(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 48) & 0x8000u);
  const uint64_t magnitude = bits & 0x7fffffffffffffffu;
  const uint16_t infinity = static_cast<uint16_t>((kMaxExponent - kMinExponent + 2) << kMantissa);
  if (magnitude > 0x7ff0000000000000u) {
    return static_cast<uint16_t>(sign | infinity | (1u << (kMantissa - 1)));  // quiet NaN
  }
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent > kMaxExponent) return static_cast<uint16_t>(sign | infinity);
  if (exponent < kMinExponent - kMantissa - 1) return sign;  // below half of the smallest subnormal
  const uint64_t significand = (magnitude & 0xfffffffffffffu) | 0x10000000000000u;
  const int extra = exponent < kMinExponent ? kMinExponent - exponent : 0;
  const int shift = 52 - kMantissa + extra;
  const uint64_t rounded =
      (significand + ((uint64_t{1} << (shift - 1)) - 1) + ((significand >> shift) & 1)) >> shift;
  // The hidden bit adds one to the exponent field, and so does a carry out of the significand.
  const uint64_t field = extra ? 0 : static_cast<uint64_t>(exponent - kMinExponent);
  return static_cast<uint16_t>(sign | ((field << kMantissa) + rounded));
}

// narrow<T>(x): x rounded once, to nearest even, to the storage type T.
template <class T>
struct Narrow;
template <>
struct Narrow<Half> {
  static TORCHVOX_HD Half from(double x) { return {round_to_16_bits<10, -14, 15>(x)}; }
  static TORCHVOX_HD Half from(float x) {
#ifdef __CUDA_ARCH__
    // One instruction rounds in the same way, but gives NaN other bits.
    if (!is_nan(x)) {
      uint16_t bits;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
      return {bits};
    }
#endif
    return from(static_cast<double>(x));
  }
};
template <>
struct Narrow<BFloat16> {
  static TORCHVOX_HD BFloat16 from(double x) { return {round_to_16_bits<7, -126, 127>(x)}; }
  // The upper half of a float: adding just under half of the last place carries where it must.
  static TORCHVOX_HD BFloat16 from(float x) {
    const uint32_t bits = float_bits(x);
    if (is_nan(x)) return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7fc0u)};
    return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
  }
};
template <>
struct Narrow<float> {
  static TORCHVOX_HD float from(double x) { return static_cast<float>(x); }
  static TORCHVOX_HD float from(float x) { return x; }
};
template <>
struct Narrow<double> {
  static TORCHVOX_HD double from(double x) { return x; }
};
template <class T, class From>
TORCHVOX_HD T narrow(From x) {
  return Narrow<T>::from(x);
}

// The type in which coordinates and sums are computed: fp32, and fp64 for fp64 points.
template <class T>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <class T>
using compute_t = typename ComputeType<T>::type;

}  // namespace torchvox
