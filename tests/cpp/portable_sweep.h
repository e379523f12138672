// SPDX-License-Identifier: Apache-2.0
//
// The portable functions over evenly spaced floats and doubles, as bits.
#pragma once

#include "csrc/kernels/core/portable_double.h"
#include "csrc/kernels/core/portable_math.h"

namespace torchvox::testing {

enum Swept { kExp, kLog, kSigmoid, kSin, kCos, kAtan2, kSweptFloats, kSine, kCosine, kSwept };

// The x of atan2(y, x): within a few binary orders of y, in all four quadrants.
TORCHVOX_HD float sweep_partner(float y) {
  const uint32_t mixed = float_bits(y) * 2654435761u;
  const float factor = bit_cast<float>(0x3c000000u + (mixed >> 5));
  return (mixed & 1u) ? y * factor : -y * factor;
}

TORCHVOX_HD float swept_float(int function, float x) {
  switch (function) {
    case kExp: return portable::exp(x);
    case kLog: return portable::log(x);
    case kSigmoid: return portable::sigmoid(x);
    case kSin: return portable::sin(x);
    case kCos: return portable::cos(x);
    default: return portable::atan2(x, sweep_partner(x));
  }
}

inline constexpr uint32_t kSweepStep = 9973;
inline constexpr int kSweepCount = static_cast<int>((uint64_t{1} << 32) / kSweepStep);

TORCHVOX_HD uint64_t swept_bits(int function, int i) {
  if (function < kSweptFloats) {
    return float_bits(
        swept_float(function, bit_cast<float>(static_cast<uint32_t>(i) * kSweepStep)));
  }
  const auto both = portable::sin_cos((i - kSweepCount / 2) * 0.37);
  return bit_cast<uint64_t>(function == kSine ? both.sin : both.cos);
}

void sweep_on_device(int function, uint64_t* out);  // [kSweepCount]

}  // namespace torchvox::testing
