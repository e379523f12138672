// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling on the CPU: a cloud a task, over the tiles of tiles_cpu.h; more axes and
// doubles by one pass over the cloud a sample.
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sampling/fps/plan.h"
#include "csrc/kernels/sampling/fps/tiles_cpu.h"

namespace torchvox {

namespace {

// No candidate is left at a distance above 0: the slots from s on, by the exhausted rule.
void finish_exhausted(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t first) {
  if (args.repeat) {
    for (; s < cloud.samples; ++s) write_sample(args, cloud, s, first < 0 ? 0 : first, 0.0f);
    return;
  }
  std::vector<bool> selected(cloud.points, false);
  for (int64_t j = 0; j < s; ++j) {
    const int64_t i = args.idx[cloud.slot + j] - cloud.index_base;
    if (i >= 0 && i < cloud.points) selected[i] = true;
  }
  const uint32_t codes = cloud.tie.space();
  for (uint32_t code = 0; code < codes && s < cloud.samples; ++code) {
    const uint32_t i = cloud.tie.index(code);
    if (i < cloud.points && !selected[i] && classify(args, cloud, i) == PointClass::kCandidate) {
      write_sample(args, cloud, s++, i, 0.0f);
    }
  }
  for (uint32_t i = 0; args.nonfinite_last && i < cloud.points && s < cloud.samples; ++i) {
    if (!selected[i] && classify(args, cloud, i) == PointClass::kNonFinite) {
      write_sample(args, cloud, s++, i, 0.0f);
    }
  }
  for (; s < cloud.samples; ++s) write_sample(args, cloud, s, -1, 0.0f);
}

// Start slot s: writes it and gives the point, -1 when there is none to measure from.
int64_t take_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s, int64_t first,
                   uint32_t& cursor) {
  int64_t i = given_start(args, cloud, s);
  if (i < 0) i = first;
  const bool resolved = i >= 0;
  const int64_t written = resolved ? i : start_without_candidates(args, cloud, cursor);
  write_sample(args, cloud, s, written, start_dist2(args, written, resolved));
  return i;
}

TORCHVOX_INLINE void sample_tiles(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles,
                                  int64_t first) {
  uint32_t cursor = 0;
  for (int64_t s = 0; s < cloud.samples; ++s) {
    int64_t chosen;
    if (s < args.starts) {
      chosen = take_start(args, cloud, s, first, cursor);
    } else {
      float dist2;
      uint32_t code;
      if (!tiles.find_best(dist2, code)) {
        finish_exhausted(args, cloud, s, first);
        return;
      }
      chosen = cloud.tie.index(code);
      write_sample(args, cloud, s, chosen, dist2);
    }
    if (chosen >= 0) tiles.update(load_point(args, cloud, static_cast<uint32_t>(chosen)));
  }
}

// One definition, compiled for three instruction sets. Without FMA every fma is a call of libm,
// with the same bits.
using SampleTiles = void (*)(const FpsArgs&, const FpsCloud&, CpuTiles&, int64_t);

void sample_tiles_baseline(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles,
                           int64_t first) {
  sample_tiles(args, cloud, tiles, first);
}
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"), flatten)) void sample_tiles_avx2(const FpsArgs& args,
                                                                    const FpsCloud& cloud,
                                                                    CpuTiles& tiles,
                                                                    int64_t first) {
  sample_tiles(args, cloud, tiles, first);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"),
               flatten)) void
sample_tiles_avx512(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles, int64_t first) {
  sample_tiles(args, cloud, tiles, first);
}
#endif

SampleTiles choose_sample_tiles() {
#if defined(__x86_64__) && defined(__GNUC__)
  switch (instruction_set(fps_cpu_plan)) {
    case 2: return sample_tiles_avx512;
    case 1: return sample_tiles_avx2;
    default: break;
  }
#endif
  return sample_tiles_baseline;
}

void sample_cloud(const FpsArgs& args, const FpsCloud& cloud, CpuTiles& tiles, SampleTiles sample) {
  const std::vector<uint32_t> order = spatial_order_cpu(args, cloud);
  tiles.load(args, cloud, order);
  uint32_t first = kUnknownCode;
  for (const uint32_t code : tiles.code) first = std::min(first, code);
  sample(args, cloud, tiles, first == kUnknownCode ? -1 : int64_t{cloud.tie.index(first)});
}

// Any number of axes and doubles: one pass over the cloud a sample.
template <class T>
void sample_cloud_generic(const FpsArgs& args, const FpsCloud& cloud) {
  using C = compute_t<T>;
  const T* const points = static_cast<const T*>(args.points.data) + cloud.base;
  std::vector<C> d(cloud.points, C{-1});
  int64_t first = -1;
  for (uint32_t i = 0; i < cloud.points; ++i) {
    if (!is_candidate_row(args, points + i * args.points.row_stride)) continue;
    d[i] = static_cast<C>(args.init_dist2) + C{0};
    if (first < 0 || cloud.tie.code(i) < cloud.tie.code(static_cast<uint32_t>(first))) first = i;
  }
  uint32_t cursor = 0;
  int64_t chosen = -1;
  for (int64_t s = 0; s < cloud.samples; ++s) {
    if (s < args.starts) {
      chosen = take_start(args, cloud, s, first, cursor);
    } else {
      chosen = -1;
      C best = 0;
      for (uint32_t i = 0; i < cloud.points; ++i) {
        if (d[i] > best ||
            (chosen >= 0 && d[i] == best &&
             cloud.tie.code(i) < cloud.tie.code(static_cast<uint32_t>(chosen)))) {
          best = d[i];
          chosen = i;
        }
      }
      if (chosen < 0) {
        finish_exhausted(args, cloud, s, first);
        return;
      }
      write_sample(args, cloud, s, chosen, best);
    }
    if (chosen < 0) continue;
    for (uint32_t i = 0; i < cloud.points; ++i) {
      if (!(d[i] > C{0})) continue;
      const C now = dist2_rows(args, points + i * args.points.row_stride,
                               points + chosen * args.points.row_stride);
      if (now < d[i]) d[i] = now;
    }
  }
}

}  // namespace

int64_t workspace_bytes_cpu(const FpsArgs&) {
  return 0;  // the host's scratch is as large as a cloud, and lives as long
}

void run_cpu(const FpsArgs& args, void*, const ParallelFor& parallel_for) {
  if (args.points.packed) {
    const int64_t begin = clamp_index(args.out_offsets[0], 0, args.samples);
    const int64_t end = clamp_index(args.out_offsets[args.points.clouds], begin, args.samples);
    const FpsCloud nowhere{};
    for (int64_t j = 0; j < begin; ++j) write_sample(args, nowhere, j, -1, 0.0f);
    for (int64_t j = end; j < args.samples; ++j) write_sample(args, nowhere, j, -1, 0.0f);
  }
  const bool generic = args.points.dtype == DType::kDouble || args.points.columns > 3;
  const SampleTiles sample = choose_sample_tiles();
  parallel_for(args.points.clouds, [&](int64_t begin, int64_t end) {
    CpuTiles tiles;
    for (int64_t b = begin; b < end; ++b) {
      const FpsCloud cloud = FpsCloud::of(args, b);
      for (int64_t s = cloud.samples; s < cloud.slots; ++s) {
        write_sample(args, cloud, s, -1, 0.0f);
      }
      if (cloud.samples == 0) continue;
      if (generic) {
        with_point_type(args.points.dtype,
                        [&](auto type) { sample_cloud_generic<decltype(type)>(args, cloud); });
      } else {
        sample_cloud(args, cloud, tiles, sample);
      }
    }
  });
}

}  // namespace torchvox
