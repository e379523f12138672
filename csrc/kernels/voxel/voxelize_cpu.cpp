// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/voxel/voxelize_cpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace torchvox {

VoxelCpuWork::VoxelCpuWork(const VoxelizeArgs& args, void* base) {
  const int64_t n = args.points.rows;
  const int64_t batches = args.points.batches;
  const uint64_t keys = args.grid.cells_per_sample() * static_cast<uint64_t>(batches);
  parallel = args.threads >= kCpuParallelThreads && n >= kCpuParallelRows;
  chunks = (n + kCpuChunk - 1) / kCpuChunk;
  voxel_limit = static_cast<int64_t>(std::min<uint64_t>(static_cast<uint64_t>(n), keys));
  Workspace space(base);
  table = VoxelTable::choose(keys, n);
  table.data = parallel ? static_cast<void*>(space.take<char>(table.bytes()))
                        : space.take<uint32_t>(static_cast<int64_t>(table.slots));
  cleared_bytes = space.bytes();
  slot = space.take<uint32_t>(n);
  arrival = space.take<uint32_t>(n);
  perm = space.take<uint32_t>(n);
  first_point = space.take<uint32_t>(voxel_limit);
  segments = space.take<CpuSegment>(voxel_limit);
  if (args.order != VoxelOrder::kFirst) {
    rank_of = space.take<uint32_t>(voxel_limit);
    id_of = space.take<uint32_t>(voxel_limit);
  }
  sample_begin = space.take<int64_t>(batches + 1);
  row_begin = space.take<int64_t>(batches + 1);
  tallies = space.take<int64_t>(5 * batches);
  chunk_voxels = space.take<uint64_t>(chunks);
  chunk_points = space.take<uint64_t>(chunks);
  bytes = space.bytes();
}

namespace {

// Calls body(begin, end) on the rows of each chunk.
void for_chunks(int64_t rows, const ParallelFor& parallel_for,
                const std::function<void(int64_t, int64_t, int64_t)>& body) {
  parallel_for((rows + kCpuChunk - 1) / kCpuChunk, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      body(c, c * kCpuChunk, std::min(rows, (c + 1) * kCpuChunk));
    }
  });
}

// Key of each valid point in [begin, end); found(row, key) or missed(row).
template <class T, class Found, class Missed>
void decode(const VoxelizeArgs& args, int64_t* tallies, int64_t begin, int64_t end, Found found,
            Missed missed) {
  using Real = compute_t<T>;
  const PackedPoints& points = args.points;
  SampleCursor cursor(points);
  Tally tally(tallies);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sample = cursor.at(row);
    if (sample < 0) {
      missed(row);
      continue;
    }
    const T* p = static_cast<const T*>(points.data) + row * points.row_stride;
    Cell cell;
    const PointPlace place = args.grid.locate<Real>(widen(p[0]), widen(p[1]), widen(p[2]), &cell);
    if (place == PointPlace::kInside) {
      found(row, args.grid.key(sample, cell));
    } else {
      tally.add(sample, place == PointPlace::kOutside ? kPointsOutOfRange : kPointsNotFinite);
      missed(row);
    }
  }
}

// One thread: points in order, so the first unknown key is the next id and arrival is rank.
template <class T>
void number_in_order(const VoxelizeArgs& args, VoxelCpuWork& work) {
  uint32_t* ids = work.ids();
  const bool dense = work.table.kind == VoxelTableKind::kDense;
  uint32_t voxels = 0;
  const auto found = [&](int64_t row, uint64_t key) {
    uint64_t s = dense ? key : work.table.home(key);
    while (!dense && ids[s] != kNone32 && work.segments[ids[s]].key != key) {
      s = s + 1 == work.table.slots ? 0 : s + 1;
    }
    if (ids[s] == kNone32) {
      work.first_point[voxels] = static_cast<uint32_t>(row);
      work.segments[voxels] = {key, 0, 0};
      ids[s] = voxels++;
    }
    work.slot[row] = ids[s];
    work.arrival[row] = work.segments[ids[s]].count++;
  };
  decode<T>(args, work.tallies, 0, args.points.rows, found,
            [&](int64_t row) { work.slot[row] = kNone32; });
  uint32_t place = 0;
  for (uint32_t id = 0; id < voxels; ++id) {
    work.segments[id].place = place;
    place += work.segments[id].count;
  }
  work.voxels = voxels;
}

// Many threads: the steps of the GPU, over chunks.
template <class T>
void number_in_parallel(const VoxelizeArgs& args, VoxelCpuWork& work,
                        const ParallelFor& parallel_for) {
  const int64_t rows = args.points.rows;
  for_chunks(rows, parallel_for, [&](int64_t, int64_t begin, int64_t end) {
    const auto found = [&](int64_t row, uint64_t key) {
      work.slot[row] = work.table.insert(key, static_cast<uint32_t>(row), 1, &work.arrival[row]);
    };
    decode<T>(args, work.tallies, begin, end, found,
              [&](int64_t row) { work.slot[row] = kNone32; });
  });
  const auto is_first = [&](int64_t row, VoxelTable::Entry* entry, uint64_t* key) {
    if (work.slot[row] == kNone32) return false;
    *entry = work.table.entry(work.slot[row], key);
    return entry->first == static_cast<uint32_t>(row);
  };
  for_chunks(rows, parallel_for, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint64_t voxels = 0, points = 0, key;
    VoxelTable::Entry entry;
    for (int64_t row = begin; row < end; ++row) {
      if (!is_first(row, &entry, &key)) continue;
      ++voxels;
      points += uint64_t{entry.count} + 1;
    }
    work.chunk_voxels[chunk] = voxels;
    work.chunk_points[chunk] = points;
  });
  uint64_t voxels = 0, points = 0;
  for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
    voxels += std::exchange(work.chunk_voxels[chunk], voxels);
    points += std::exchange(work.chunk_points[chunk], points);
  }
  work.voxels = static_cast<int64_t>(voxels);
  for_chunks(rows, parallel_for, [&](int64_t chunk, int64_t begin, int64_t end) {
    uint32_t id = static_cast<uint32_t>(work.chunk_voxels[chunk]);
    uint32_t place = static_cast<uint32_t>(work.chunk_points[chunk]);
    VoxelTable::Entry entry;
    uint64_t key;
    for (int64_t row = begin; row < end; ++row) {
      if (!is_first(row, &entry, &key)) continue;
      const uint32_t count = entry.count + 1;
      work.first_point[id] = static_cast<uint32_t>(row);
      work.segments[id] = {key, place, count};
      work.table.give_id(work.slot[row], key, id, place);
      ++id;
      place += count;
    }
  });
}

void rank_and_cap(const VoxelizeArgs& args, VoxelCpuWork& work) {
  const int64_t batches = args.points.batches;
  if (work.rank_of != nullptr) {
    uint32_t* ids = work.id_of;
    for (int64_t id = 0; id < work.voxels; ++id) ids[id] = static_cast<uint32_t>(id);
    std::sort(ids, ids + work.voxels,
              [&](uint32_t a, uint32_t b) { return work.segments[a].key < work.segments[b].key; });
    for (int64_t rank = 0; rank < work.voxels; ++rank) {
      work.rank_of[ids[rank]] = static_cast<uint32_t>(rank);
    }
  }
  for (int64_t b = 0; b <= batches; ++b) {
    work.sample_begin[b] =
        std::lower_bound(work.first_point, work.first_point + work.voxels, args.points.offset(b)) -
        work.first_point;
    if (b > 0) work.sample_begin[b] = std::max(work.sample_begin[b], work.sample_begin[b - 1]);
  }
  work.row_begin[0] = 0;
  for (int64_t b = 0; b < batches; ++b) {
    int64_t kept = std::max<int64_t>(0, work.sample_begin[b + 1] - work.sample_begin[b]);
    if (args.max_voxels >= 0) kept = std::min(kept, args.max_voxels);
    work.row_begin[b + 1] = work.row_begin[b] + kept;
  }
  const int64_t rows = args.max_voxels < 0 ? work.voxels : work.row_begin[batches];
  work.rows = std::min(rows, args.capacity());
}

void place_points(const VoxelizeArgs& args, const VoxelCpuWork& work,
                  const ParallelFor& parallel_for) {
  for_chunks(args.points.rows, parallel_for, [&](int64_t, int64_t begin, int64_t end) {
    Tally tally(work.tallies);
    for (int64_t i = begin; i < end; ++i) {
      int64_t row = -1;
      if (work.slot[i] != kNone32) {
        uint64_t key;
        const uint32_t id =
            work.parallel ? work.table.entry(work.slot[i], &key).first : work.slot[i];
        // From the key: the sample the point was entered under, whatever the offsets hold.
        int64_t sample = 0;
        if (args.points.batches > 1) sample = args.grid.sample_of(work.segments[id].key);
        row = work.row_of(args, id, sample);
        work.perm[int64_t{work.segments[id].place} + work.arrival[i]] = static_cast<uint32_t>(i);
        const bool stored = args.max_points < 0 || work.arrival[i] < args.max_points;
        tally.add(sample, row < 0 ? kPointsVoxelNotKept : stored ? kPointsStored : kPointsOverCap);
      }
      args.point_voxel[i] = static_cast<int32_t>(row);
      if (args.point_slot != nullptr && row < 0) args.point_slot[i] = -1;
    }
  });
}

void write_counts(const VoxelizeArgs& args, const VoxelCpuWork& work) {
  int64_t totals[kVoxelCounts] = {};
  for (int64_t b = 0; b < args.points.batches; ++b) {
    const int64_t* tally = work.tallies + 5 * b;
    const int64_t row[kVoxelCounts] = {work.row_begin[b + 1] - work.row_begin[b],
                                       work.sample_begin[b + 1] - work.sample_begin[b],
                                       tally[0],
                                       tally[1],
                                       tally[2],
                                       tally[3],
                                       tally[4],
                                       0};
    for (int c = 0; c < kVoxelCounts; ++c) {
      args.counts[(b + 1) * kVoxelCounts + c] = static_cast<int32_t>(row[c]);
      totals[c] += row[c];
    }
  }
  for (int c = 0; c < kVoxelCounts; ++c) args.counts[c] = static_cast<int32_t>(totals[c]);
}

}  // namespace

int64_t workspace_bytes(const VoxelizeArgs& args, const Target& target) {
#ifdef TORCHVOX_CUDA
  if (target.cuda) return cuda_workspace_bytes(args, target);
#endif
  (void)target;
  return VoxelCpuWork(args, nullptr).bytes;
}

void run_cpu(const VoxelizeArgs& args, void* workspace, const ParallelFor& parallel_for) {
  VoxelCpuWork work(args, workspace);
  if (work.cleared_bytes > 0) std::memset(workspace, 0xff, static_cast<size_t>(work.cleared_bytes));
  std::fill(work.tallies, work.tallies + 5 * args.points.batches, 0);
  with_point_type(args.points.dtype, [&](auto type) {
    using T = decltype(type);
    if (work.parallel) {
      number_in_parallel<T>(args, work, parallel_for);
    } else {
      number_in_order<T>(args, work);
    }
  });
  rank_and_cap(args, work);
  place_points(args, work, work.parallel ? parallel_for : serial_for);
  write_counts(args, work);
  reduce_rows_cpu(args, work, work.parallel ? parallel_for : serial_for);
}

}  // namespace torchvox
