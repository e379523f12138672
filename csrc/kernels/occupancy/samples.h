// SPDX-License-Identifier: Apache-2.0
//
// Log-odds of voxels as integers, in units of 1/1024, and samples of voxels: where in them rays
// end, as means and covariances, and how other rays pass such a normal distribution (NDT-OM,
// Saarinen et al., IJRR 2013; NDT-TM, Ahtiainen et al., JFR 2017). Lengths are in voxels, from the
// center of the voxel. A symmetric or lower triangular matrix is stored as its elements 00, 10, 11,
// 20, 21, 22.
#pragma once

#include <initializer_list>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/portable_math.h"
#include "csrc/kernels/rays/walk.h"

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

inline constexpr double kFirstVariance = 0.01;  // on each axis, of a first sample
inline constexpr double kFirstIntensityVariance = 1;

// The samples of a state: one row of kRegionVoxels voxels for each region that has any.
struct Samples {
  int32_t* count = nullptr;  // [rows, voxels]
  float* mean = nullptr;  // [.., 3]
  float* cov = nullptr;  // [.., 6] lower triangular factor of the covariance, or null
  float* intensity = nullptr;  // [.., 2] mean and variance, or null
  int32_t* passes = nullptr;  // [.., 2] rays that hit the surface and that went through, or null
  int64_t rows = 0;  // 0: the map has no samples

  TORCHVOX_HD void forget(int64_t voxel) const {
    count[voxel] = 0;
    for (int i = 0; i < 3; ++i) mean[3 * voxel + i] = 0;
    for (int i = 0; cov && i < 6; ++i) cov[6 * voxel + i] = 0;
    for (int i = 0; intensity && i < 2; ++i) intensity[2 * voxel + i] = 0;
    for (int i = 0; passes && i < 2; ++i) passes[2 * voxel + i] = 0;
  }
  // Copies all values except passes.
  TORCHVOX_HD void copy(int64_t voxel, const Samples& from, int64_t other) const {
    count[voxel] = from.count[other];
    for (int i = 0; i < 3; ++i) mean[3 * voxel + i] = from.mean[3 * other + i];
    for (int i = 0; cov && i < 6; ++i) cov[6 * voxel + i] = from.cov[6 * other + i];
    for (int i = 0; intensity && i < 2; ++i) {
      intensity[2 * voxel + i] = from.intensity[2 * other + i];
    }
  }
  TORCHVOX_HD void add_passes(int64_t voxel, int64_t hits, int64_t misses) const {
    int32_t* const both = &passes[2 * voxel];
    both[0] = static_cast<int32_t>(clamp_index(both[0] + hits, INT32_MIN, INT32_MAX));
    both[1] = static_cast<int32_t>(clamp_index(both[1] + misses, INT32_MIN, INT32_MAX));
  }
};

// ---- moments ------------------------------------------------------------------------------------

// `count` samples: mean, and sums of squares about it.
struct SampleMoments {
  double count, mean[3], scatter[6];
  double intensity, intensity_scatter;
};

TORCHVOX_HD double factor_product(const float* factor, int i, int j) {  // i >= j
  double sum = 0;
  for (int k = 0; k <= j; ++k) {
    sum = sum + double{factor[i * (i + 1) / 2 + k]} * double{factor[j * (j + 1) / 2 + k]};
  }
  return sum;
}

// The moments of a voxel, without the variance that its first sample got.
TORCHVOX_HD SampleMoments moments_of(const Samples& samples, int64_t voxel) {
  SampleMoments moments{static_cast<double>(samples.count[voxel]), {}, {}, 0, 0};
  for (int i = 0; i < 3; ++i) moments.mean[i] = samples.mean[3 * voxel + i];
  for (int i = 0; samples.cov && i < 3; ++i) {
    for (int j = 0; j <= i; ++j) {
      const double sum = moments.count * factor_product(&samples.cov[6 * voxel], i, j);
      moments.scatter[i * (i + 1) / 2 + j] = i == j ? sum - kFirstVariance : sum;
    }
  }
  if (samples.intensity) {
    moments.intensity = samples.intensity[2 * voxel];
    moments.intensity_scatter =
        moments.count * double{samples.intensity[2 * voxel + 1]} - kFirstIntensityVariance;
  }
  return moments;
}

// Adds samples to those of a voxel, or replaces these if `afresh`.
TORCHVOX_HD void add_samples(const Samples& samples, int64_t voxel, const SampleMoments& more,
                             bool afresh) {
  const double before = samples.count[voxel], n = afresh || before < 0 ? 0 : before;
  const double k = more.count, all = n + k;
  float* const mean = &samples.mean[3 * voxel];
  double away[3];
  for (int i = 0; i < 3; ++i) {
    away[i] = n > 0 ? more.mean[i] - double{mean[i]} : 0;
    mean[i] =
        quiet(static_cast<float>(n > 0 ? double{mean[i]} + away[i] * (k / all) : more.mean[i]));
  }
  if (samples.cov) {
    float* const factor = &samples.cov[6 * voxel];
    double cov[6];
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j <= i; ++j) {
        const int at = i * (i + 1) / 2 + j;
        const double first = i == j ? kFirstVariance : 0;
        const double sum = n > 0 ? n * factor_product(factor, i, j) : first;
        cov[at] = (sum + more.scatter[at] + away[i] * away[j] * n * k / all) / all;
      }
    }
    const double c00 = root(cov[0]), c10 = cov[1] / c00, c11 = root(cov[2] - c10 * c10);
    const double c20 = cov[3] / c00, c21 = (cov[4] - c20 * c10) / c11;
    const double c22 = root(cov[5] - c20 * c20 - c21 * c21);
    const double lower[6] = {c00, c10, c11, c20, c21, c22};
    for (int i = 0; i < 6; ++i) factor[i] = quiet(static_cast<float>(lower[i]));
  }
  if (samples.intensity) {
    float* const both = &samples.intensity[2 * voxel];
    const double off = n > 0 ? more.intensity - double{both[0]} : 0;
    const double sum = n > 0 ? n * double{both[1]} : kFirstIntensityVariance;
    const double average = n > 0 ? double{both[0]} + off * (k / all) : more.intensity;
    const double variance = (sum + more.intensity_scatter + off * off * n * k / all) / all;
    both[0] = quiet(static_cast<float>(average));
    both[1] = quiet(static_cast<float>(variance));
  }
  samples.count[voxel] = static_cast<int32_t>(all < INT32_MAX ? all : INT32_MAX);
}

// Sums over the ends of rays in one voxel, in integers: units from its center, and 65535ths of the
// range of intensities.
struct SampleSums {
  uint64_t offsets[3], products[6], intensity[2];
  uint32_t passes[2];

  TORCHVOX_HD void add(const int32_t offset[3], uint64_t bright) {
    for (int i = 0; i < 3; ++i) {
      atomic_add(&offsets[i], static_cast<uint64_t>(int64_t{offset[i]}));
      for (int j = 0; j <= i; ++j) {
        const int64_t product = int64_t{offset[i]} * offset[j];
        atomic_add(&products[i * (i + 1) / 2 + j], static_cast<uint64_t>(product));
      }
    }
    if (bright == 0) return;
    atomic_add(&intensity[0], bright);
    atomic_add(&intensity[1], bright * bright);
  }
  TORCHVOX_HD SampleMoments moments(int64_t count, double dark, double span) const {
    constexpr double kSquare = static_cast<double>(kUnits * kUnits);
    const auto k = static_cast<double>(count);
    SampleMoments moments{k, {}, {}, 0, 0};
    for (int i = 0; i < 3; ++i) {
      moments.mean[i] = static_cast<double>(static_cast<int64_t>(offsets[i])) / k / double{kUnits};
      for (int j = 0; j <= i; ++j) {
        const int at = i * (i + 1) / 2 + j;
        const auto sum = static_cast<double>(static_cast<int64_t>(products[at]));
        moments.scatter[at] = sum / kSquare - k * moments.mean[i] * moments.mean[j];
      }
    }
    const double step = span / 65535, mean = static_cast<double>(intensity[0]) / k;
    moments.intensity = dark + mean * step;
    moments.intensity_scatter = (static_cast<double>(intensity[1]) - k * mean * mean) * step * step;
    return moments;
  }
};

// ---- rays that pass a distribution --------------------------------------------------------------

// How misses of voxels with a distribution count.
struct Ndt {
  double noise = 0;  // standard deviation of ranges, in voxels
  double eta = 0;  // half the adaptation
  double least_samples = 0;  // that make a distribution
  double reset = 0;  // log-odds below which a hit voxel forgets its samples,
  double reset_samples = 0;  // if it has at least this many
  double lowest = 0;  // lower bound of the log-odds of one miss

  TORCHVOX_HD bool resets(int16_t logodds, int32_t samples) const {
    return logodds != kUnobserved && static_cast<double>(logodds) / kLogOddsUnit < reset &&
        samples >= reset_samples;
  }
};

// A ray relative to the center of a voxel.
struct RayBeside {
  double from[3], along[3], to[3];  // along: unit vector, or 0 for a ray without length
  bool samples;  // the ray ends at a surface

  TORCHVOX_HD RayBeside(const RayLine& line, const int32_t voxel[3], bool samples_in)
      : samples(samples_in) {
    const double length = line.units();
    for (int i = 0; i < 3; ++i) {
      const int64_t center = voxel[i] * kUnits + kUnits / 2;
      const auto d = static_cast<double>(line.to[i] - line.from[i]);
      from[i] = static_cast<double>(line.from[i] - center) / double{kUnits};
      to[i] = static_cast<double>(line.to[i] - center) / double{kUnits};
      along[i] = length > 0 ? d / length : 0;
    }
  }
};

// For the point of a ray at which the distribution of a voxel is densest: how likely it belongs to
// that distribution, and to the ray's own end; 1 at their centers.
struct Likelihood {
  double voxel, sample;
};
TORCHVOX_HD Likelihood likelihood(const Samples& samples, int64_t at, const RayBeside& ray,
                                  double noise) {
  const float *const c = &samples.cov[6 * at], *const mean = &samples.mean[3 * at];
  double along[3], away[3];  // in the frame in which the covariance is the identity
  for (int i = 0; i < 3; ++i) {
    along[i] = ray.along[i];
    away[i] = ray.from[i] - double{mean[i]};
  }
  for (double* const v : {along, away}) {
    v[0] = v[0] / double{c[0]};
    v[1] = (v[1] - double{c[1]} * v[0]) / double{c[2]};
    v[2] = (v[2] - double{c[3]} * v[0] - double{c[4]} * v[1]) / double{c[5]};
  }
  const double squares = along[0] * along[0] + along[1] * along[1] + along[2] * along[2];
  const double product = along[0] * away[0] + along[1] * away[1] + along[2] * away[2];
  const double t = squares > 0 ? -product / squares : 0;
  double distance = 0, to_end = 0;
  for (int i = 0; i < 3; ++i) {
    const double nearest = away[i] + t * along[i];
    const double off = ray.from[i] + t * ray.along[i] - ray.to[i];
    distance = distance + nearest * nearest;
    to_end = to_end + off * off;
  }
  const float voxel = portable::exp(static_cast<float>(-distance / 2));
  const float end = portable::exp(static_cast<float>(-to_end / (2 * noise * noise)));
  return {voxel, ray.samples ? end : 0};
}

// Log-odds of a miss, in units of 1/65536, from Ndt::lowest to 0.
TORCHVOX_HD int64_t miss_of(const Ndt& ndt, const Likelihood& likely) {
  const double p = 0.5 - ndt.eta * likely.voxel * (1 - likely.sample);
  double logodds = portable::log(static_cast<float>(p / (1 - p)));
  if (!(logodds > ndt.lowest)) logodds = ndt.lowest;
  return -static_cast<int64_t>(floor(-logodds * 65536 + 0.5));
}

}  // namespace torchvox
