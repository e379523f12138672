// SPDX-License-Identifier: Apache-2.0
//
// Log-odds of voxels as integers, in units of 1/1024.
#pragma once

#include "csrc/kernels/core/cloud_batch.h"

namespace torchvox {

inline constexpr int kLogOddsUnit = 1024;
inline constexpr int16_t kUnobserved = -32768;

// What a hit and a miss add to log-odds, and the bounds to which these are clamped.
struct Sensor {
  int32_t hit = 0, miss = 0, clamp_min = 0, clamp_max = 0;

  TORCHVOX_HD int16_t clamped(int64_t log_odds) const {
    return static_cast<int16_t>(clamp_index(log_odds, clamp_min, clamp_max));
  }
};

TORCHVOX_HD int64_t raised(int64_t x, int64_t least) { return x < least ? least : x; }
TORCHVOX_HD int64_t lowered(int64_t x, int64_t most) { return x > most ? most : x; }

// The log-odds after all misses, then all hits, each clamped by itself; the numbers may be cut to
// enough_misses() and enough_hits(). `scan`: one hit if there is any, else one miss.
TORCHVOX_HD int16_t update_logodds(int16_t before, int32_t hits, int32_t misses,
                                   const Sensor& sensor, bool scan) {
  const int32_t up = scan ? hits > 0 : hits, down = scan ? misses > 0 && hits == 0 : misses;
  const int32_t from = before == kUnobserved ? 0 : before, lower = from + down * sensor.miss;
  const int32_t between = down == 0 ? from : lower < sensor.clamp_min ? sensor.clamp_min : lower;
  const int32_t upper = between + up * sensor.hit;
  const int32_t after = up == 0 ? between : upper > sensor.clamp_max ? sensor.clamp_max : upper;
  return up == 0 && down == 0 ? before : static_cast<int16_t>(after);
}

// The number of misses of a voxel in one call beyond which more change nothing, for any log-odds
// between -32767 and `highest`, which is read from a state and may be any value.
TORCHVOX_HD int64_t enough_misses(const Sensor& sensor, int64_t highest, bool scan) {
  if (scan || sensor.miss == 0) return 1;
  const int64_t most = clamp_index(highest, 0, INT16_MAX);
  return raised((most - sensor.clamp_min - sensor.miss - 1) / -sensor.miss, 1);
}
// The same for an unobserved voxel.
TORCHVOX_HD int64_t enough_misses_of_unobserved(const Sensor& sensor, bool scan) {
  if (scan || sensor.miss == 0) return 1;
  return raised((-int64_t{sensor.clamp_min} - sensor.miss - 1) / -sensor.miss, 1);
}
// The same for hits, of any voxel.
TORCHVOX_HD int64_t enough_hits(const Sensor& sensor, bool scan) {
  if (scan || sensor.hit == 0) return 1;
  return (sensor.clamp_max + 32767 + sensor.hit - 1) / sensor.hit + 1;
}

}  // namespace torchvox
