// SPDX-License-Identifier: Apache-2.0
//
// sparse_schedule on the CPU: keys in tasks over rows, a counting sort, tiles in tasks.
#include <algorithm>
#include <array>
#include <utility>

#include "csrc/kernels/sparse/schedule.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const SparseScheduleArgs& args) {
  return args.table.rows * static_cast<int64_t>(sizeof(uint16_t));
}

void run_cpu(const SparseScheduleArgs& args, void* memory, const ParallelFor& parallel_for) {
  constexpr int kTile = SparseSchedule::kTile;
  const SparseTable& table = args.table;
  const int64_t valid = table.valid(), limit = table.valid_sources();
  auto* keys = static_cast<uint16_t*>(memory);
  for_each_index(parallel_for, table.rows, 512, [&](int64_t row) {
    uint32_t bits = 0;
    for (int64_t k = 0; row < valid && k < table.volume; ++k) {
      if (table.at(k, row, limit) >= 0) bits |= schedule_bits(args.kernel_size, k);
    }
    keys[row] = static_cast<uint16_t>(schedule_key(bits));
  });
  const SparseSchedule schedule(table.volume, table.rows, args.out);
  std::array<int64_t, SparseSchedule::kKeys> begins{};
  for (int64_t row = 0; row < table.rows; ++row) ++begins[keys[row]];
  int64_t before = 0;
  for (int64_t& begin : begins) before += std::exchange(begin, before);
  std::fill_n(schedule.order, schedule.tiles * kTile, -1);
  for (int64_t row = 0; row < table.rows; ++row) {
    schedule.order[begins[keys[row]]++] = static_cast<int32_t>(row);
  }
  for_each_index(parallel_for, schedule.tiles, 4, [&](int64_t tile) {
    uint32_t* offsets = schedule.offsets + tile * SparseSchedule::kWords;
    std::fill_n(offsets, SparseSchedule::kWords, 0u);
    for (int64_t k = 0; k < table.volume; ++k) {
      for (int64_t i = 0; i < kTile; ++i) {
        const int32_t row = schedule.order[tile * kTile + i];
        const int32_t source = row >= 0 && row < valid ? table.at(k, row, limit) : -1;
        schedule.sources[(tile * table.volume + k) * kTile + i] = source;
        if (source >= 0) offsets[k / 32] |= 1u << k % 32;
      }
    }
  });
}

}  // namespace torchvox
