// SPDX-License-Identifier: Apache-2.0
//
// What the portable functions give over a range of floats, on either side.
#pragma once

#include <vector>

#include "csrc/kernels/core/portable_math.h"

namespace torchvox::testing {

enum class SweepFunction { kExp, kLog, kSigmoid, kSin, kCos, kAtan2 };
inline constexpr SweepFunction kSweepFunctions[] = {SweepFunction::kExp,     SweepFunction::kLog,
                                                    SweepFunction::kSigmoid, SweepFunction::kSin,
                                                    SweepFunction::kCos,     SweepFunction::kAtan2};

// The x of atan2(y, x): within a few binary orders of y, in all four quadrants.
TORCHVOX_HD float sweep_partner(float y) {
  const uint32_t bits = float_bits(y), mixed = bits * 2654435761u;
  const float factor = bit_cast<float>(0x3c000000u + (mixed >> 5));
  return (mixed & 1u) ? y * factor : -y * factor;
}

TORCHVOX_HD float sweep_value(SweepFunction function, float x) {
  switch (function) {
    case SweepFunction::kExp: return portable::exp(x);
    case SweepFunction::kLog: return portable::log(x);
    case SweepFunction::kSigmoid: return portable::sigmoid(x);
    case SweepFunction::kSin: return portable::sin(x);
    case SweepFunction::kCos: return portable::cos(x);
    default: return portable::atan2(x, sweep_partner(x));
  }
}

TORCHVOX_HD auto sweep_double(int64_t i) {
  return portable::sin_cos(static_cast<double>(i) * 0.37);
}

// Sides compare over every 997th float, and over as many doubles about 0.
inline constexpr uint32_t kSweepStep = 997;
inline constexpr int kSweepCount = static_cast<int>((uint64_t{1} << 32) / kSweepStep);

#ifdef TORCHVOX_CUDA
std::vector<float> sweep_on_device(SweepFunction function);
std::vector<double> sweep_double_on_device();  // sines and cosines
#endif

}  // namespace torchvox::testing
