// SPDX-License-Identifier: Apache-2.0
//
// What the portable functions give over a range of floats, on either side.
#pragma once

#include "csrc/kernels/core/portable_math.h"

namespace torchvox::testing {

enum class SweepFunction { kExp, kLog, kSigmoid, kSin, kCos, kAtan2 };
inline constexpr SweepFunction kSweepFunctions[] = {SweepFunction::kExp,     SweepFunction::kLog,
                                                    SweepFunction::kSigmoid, SweepFunction::kSin,
                                                    SweepFunction::kCos,     SweepFunction::kAtan2};

inline const char* sweep_name(SweepFunction function) {
  constexpr const char* kNames[] = {"exp", "log", "sigmoid", "sin", "cos", "atan2"};
  return kNames[static_cast<int>(function)];
}

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

#ifdef TORCHVOX_CUDA
void check_sweep_on_device();  // skips itself without a GPU
#endif

}  // namespace torchvox::testing
