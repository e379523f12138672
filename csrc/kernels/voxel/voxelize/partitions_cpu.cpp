// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "csrc/kernels/voxel/voxelize/values_cpu.h"

namespace torchvox {
namespace {

// Keys of one part -> voxels, numbered from 1 on. Open addressing over at least twice as many slots
// as voxels; a slot holds 0 or a voxel.
class Numbering {
 public:
  // For fewer than `room` voxels.
  Numbering(uint32_t* slots, int64_t room, CpuVoxel* voxels)
      : slots_(slots), count_(2 * static_cast<uint64_t>(room)), voxels_(voxels) {
    std::fill_n(slots_, count_, 0);
    voxels_[0] = {kCpuNoKey, 0, 0};
  }
  // What the first slot holds: the voxel of the key if it is known there, 0, or another voxel.
  uint32_t guess(uint64_t key) const { return slots_[home(key)]; }
  // The voxel of the key; a new one gets `point` as its first.
  uint32_t number(uint64_t key, uint32_t point) {
    uint64_t s = home(key);
    while (slots_[s] != 0 && voxels_[slots_[s]].key != key) s = s + 1 == count_ ? 0 : s + 1;
    if (slots_[s] != 0) return slots_[s];
    slots_[s] = ++size_;
    voxels_[size_] = {key, 0, point};
    return size_;
  }
  uint32_t size() const { return size_; }

 private:
  uint64_t home(uint64_t key) const { return scale_bits(mix_key(key) >> 32, count_); }

  uint32_t* const slots_;
  const uint64_t count_;
  CpuVoxel* const voxels_;
  uint32_t size_ = 0;
};

// Looks up the runs of a part, chunk by chunk, and adds their points to their voxels. Step by step,
// because half of the runs may start a voxel: no branch on that is predicted well.
template <class Values>
class PartNumbering {
 public:
  PartNumbering(const VoxelizeArgs& args, const VoxelCpuWork& work, const Values& values, int part)
      : work_(work),
        values_(values),
        part_(part),
        base_(work.part_begin[part]),
        voxels_(work.voxels + base_),
        limit_(args.stored(std::numeric_limits<int64_t>::max())),
        numbering_(work.table + 2 * base_, work.part_begin[part + 1] - base_, voxels_) {}

  // Gives the number of voxels that are new.
  int64_t add_chunk(int64_t chunk) {
    const int64_t known = numbering_.size();
    uint32_t run[kCpuChunk], id[kCpuChunk], missed[kCpuChunk];
    const int runs =
        work_.select_runs(chunk, [this](int64_t r) { return work_.run_part[r] == part_; }, run);
    int misses = 0;
    for (int k = 0; k < runs; ++k) {
      const uint64_t key = work_.run_key[run[k]];
      id[k] = numbering_.guess(key);
      missed[misses] = static_cast<uint32_t>(k);
      misses += voxels_[id[k]].key != key;
    }
    for (int m = 0; m < misses; ++m) {
      const int64_t r = run[missed[m]];
      const uint32_t before = numbering_.size();
      id[missed[m]] =
          numbering_.number(work_.run_key[r], static_cast<uint32_t>(work_.run_begin(chunk, r)));
      if (numbering_.size() > before) values_.open(base_ + id[missed[m]]);
    }
    for (int k = 0; k < runs; ++k) add_run(chunk, run[k], id[k]);
    return numbering_.size() - known;
  }

 private:
  void add_run(int64_t chunk, int64_t run, uint32_t id) {
    const int64_t begin = work_.run_begin(chunk, run), points = work_.run_end(chunk, run) - begin;
    const uint32_t slot = voxels_[id].count;
    voxels_[id].count += static_cast<uint32_t>(points);
    work_.run_key[run] = static_cast<uint64_t>(base_ + id) << 32 | slot;
    const int64_t stored = std::min(points, limit_ - slot);
    if (stored > 0) values_.add(base_ + id, slot, begin, begin + stored);
  }

  const VoxelCpuWork& work_;
  const Values& values_;
  const int part_;
  const int64_t base_;
  CpuVoxel* const voxels_;
  const int64_t limit_;
  Numbering numbering_;
};

}  // namespace

void number_parts(const VoxelizeArgs& args, const VoxelCpuWork& work,
                  const ParallelFor& parallel_for) {
  with_values(args, work, [&](const auto& values) {
    for_each_index(parallel_for, work.parts, 1, [&](int64_t p) {
      PartNumbering part(args, work, values, static_cast<int>(p));
      for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
        work.chunk_part_voxels[chunk * work.parts + p] = part.add_chunk(chunk);
      }
    });
  });
}

}  // namespace torchvox
