// SPDX-License-Identifier: Apache-2.0
//
// bev_max_height on the GPU. Points are entered into a table of keys (height, then lowest row) by
// atomic maximum, none where a neighbor in the warp has the same cell and a larger key. Then cells,
// or the points on top of them, write the outputs (BevPlan).
#include <algorithm>

#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/bev/scatter.cuh"

namespace torchvox {
namespace {

constexpr int kSmallThreads = 1024;

// A small image of few points in one block and one launch, since launches are most of the time of
// such a call. Thread t takes the points and then the cells t, t + 1024, ...; points are read once,
// outputs are written once.
template <class T, class Key>
__global__ void __launch_bounds__(kSmallThreads)
    small_kernel(BevMaxHeightArgs args, bool quads, int cells) {
  __shared__ Key keys[kSmallCells];
  __shared__ int32_t sums[2 * kBevCounts];
  for (int i = threadIdx.x; i < cells; i += kSmallThreads) keys[i] = 0;
  const int64_t counts = (args.points.clouds + 1) * kBevCounts;
  for (int64_t i = threadIdx.x; i < counts; i += kSmallThreads) args.counts[i] = 0;
  for (int64_t first = 0; first < args.points.rows; first += kSmallThreads) {
    const BevThread thread = load_point<T>(args.points, args.grid, quads, first + threadIdx.x);
    BlockCounts block(args.points, thread, sums);  // waits for the block, and so for the zeros
    bool filled = false;
    if (thread.used()) {
      using Native = typename CudaAtomicType<Key>::type;
      const Key key = height_key(thread.point.z, thread.row, Key{});
      Native* const slot = reinterpret_cast<Native*>(&keys[thread.point.cell]);
      filled = atomicMax(slot, static_cast<Native>(key)) == 0;
    }
    block.add_to(args.counts, filled);
    __syncthreads();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < cells; i += kSmallThreads) write_cell(args, i, keys[i]);
}

// Enters the points into the table.
template <class Key>
struct DeviceHeightVisit {
  Key* keys;
  unsigned first_wave;  // blocks that begin together, over an empty table

  struct Prepared {
    Key key;
    bool leads;
  };

  __device__ Prepared prepare(const BevThread& thread) const {
    const Key key = height_key(thread.point.z, thread.row, Key{});
    return {key, blockIdx.x < first_wave ? leads_run(thread, key) : leads_neighbors(thread, key)};
  }
  __device__ bool operator()(const BevThread& thread, const Prepared& prepared) const {
    if (!prepared.leads) return false;
    Key* const slot = &keys[thread.point.cell];
    // The load costs a round trip and pays once the table is filling up.
    if (blockIdx.x >= first_wave && load_relaxed(slot) >= prepared.key) return false;
    using Native = typename CudaAtomicType<Key>::type;
    const Key old = atomicMax(reinterpret_cast<Native*>(slot), static_cast<Native>(prepared.key));
    // In a table started by points (kStarted) only the start value has its last bit clear.
    return old < prepared.key && (sizeof(Key) == 8 ? (old & 1) == 0 : old == 0);
  }
};

template <class Key>
cudaError_t enter_points(const BevMaxHeightArgs& args, Key* keys, const CudaContext& context) {
  const auto first_wave = static_cast<unsigned>(8 * context.target.multiprocessors);
  return launch_scatter(args.points, args.grid, args.counts,
                        DeviceHeightVisit<Key>{keys, first_wave}, context);
}

// Plan kStarted. One thread per point: fills its part of every output, and writes the key of its
// point, minus one, into the table. Of the points of one cell any may win that race.
template <class T>
__global__ void __launch_bounds__(kBevThreads)
    start_kernel(BevMaxHeightArgs args, bool quads, uint64_t* keys, BevFill height, BevFill top,
                 BevFill counts) {
  let_next_begin();
  const BevThread thread = load_point<T>(args.points, args.grid, quads);
  height.fill();
  top.fill();
  counts.fill();
  const uint64_t key = height_key(thread.point.z, thread.row, uint64_t{});
  if (leads_neighbors(thread, key)) keys[thread.point.cell] = key - 1;
}

// Plans kCleared and kStarted. One thread per point: reads the key of its cell and, if it is the
// point's own, writes the cell's outputs.
template <class T, class Key>
__global__ void __launch_bounds__(kBevThreads)
    settle_kernel(BevMaxHeightArgs args, bool quads, const Key* keys) {
  const BevThread thread = load_point<T>(args.points, args.grid, quads);
  const Key key = height_key(thread.point.z, thread.row, Key{});
  const bool leads = leads_neighbors(thread, key);
  wait_for_previous();
  const int64_t cell = thread.point.cell;
  if (!leads || load_relaxed(&keys[cell]) != key) return;
  write_height(args, cell, thread.point.z + 0.f);
  if (!args.top_index) return;
  if constexpr (sizeof(Key) == 8) {
    args.top_index[cell] = static_cast<int32_t>(thread.row);
  } else {
    // All the highest of a cell are here; -1, an empty cell, is the largest unsigned number.
    unsigned* const top = reinterpret_cast<unsigned*>(&args.top_index[cell]);
    const auto row = static_cast<unsigned>(thread.row);
    if (load_relaxed(top) > row) atomicMin(top, row);
  }
}

// Plan kDense. One thread per four cells: 16-byte reads of the table, and writes as wide as the
// format allows.
template <class Key, HeightFormat kFormat>
__global__ void __launch_bounds__(kBevThreads)
    finalize_kernel(BevMaxHeightArgs args, const Key* table, int64_t cells) {
  args.code.format = kFormat;  // known at compile time from here on
  wait_for_previous();
  for (int64_t i = 4 * global_thread(); i < cells; i += 4 * global_stride()) {
    if (i + 4 <= cells) {
      alignas(16) Key keys[4];
      const uint4* source = reinterpret_cast<const uint4*>(table + i);
      for (int w = 0; w < int(sizeof(keys) / 16); ++w) {
        reinterpret_cast<uint4*>(keys)[w] = __ldcg(&source[w]);
      }
      float z[4];
      int32_t top[4];
      for (int k = 0; k < 4; ++k) {
        z[k] = key_height(keys[k]);
        top[k] = keys[k] ? key_row(keys[k]) : -1;
      }
      if constexpr (kFormat == HeightFormat::kFloat) {
        for (int k = 0; k < 4; ++k) z[k] = keys[k] ? z[k] : args.code.fill;
        *reinterpret_cast<float4*>(static_cast<float*>(args.height) + i) =
            make_float4(z[0], z[1], z[2], z[3]);
      } else if constexpr (kFormat == HeightFormat::kUInt8) {
        uint32_t word = 0;
        for (int k = 0; k < 4; ++k) {
          word |= (keys[k] ? uint32_t{args.code.to_uint8(z[k])} : 0u) << (8 * k);
        }
        *reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(args.height) + i) = word;
      } else {
        uint16_t codes[4];
        for (int k = 0; k < 4; ++k) codes[k] = keys[k] ? args.code.to_uint16(z[k]) : uint16_t{0};
        *reinterpret_cast<ushort4*>(static_cast<uint16_t*>(args.height) + i) =
            make_ushort4(codes[0], codes[1], codes[2], codes[3]);
      }
      if constexpr (sizeof(Key) == 8) {
        *reinterpret_cast<int4*>(args.top_index + i) = make_int4(top[0], top[1], top[2], top[3]);
      }
    } else {
      for (int64_t k = i; k < cells; ++k) write_cell(args, k, table[k]);
    }
  }
}

template <class Key, HeightFormat kFormat>
cudaError_t finalize(const BevMaxHeightArgs& args, const Key* keys, const CudaContext& context) {
  const int64_t cells = cells_of(args);
  const unsigned blocks = blocks_for(ceil_div<int64_t>(cells, 4), kBevThreads, context.target);
  return launch_after(finalize_kernel<Key, kFormat>, blocks, kBevThreads, context, args, keys,
                      cells);
}

template <class Key>
cudaError_t launch_dense(const BevMaxHeightArgs& args, void* workspace,
                         const CudaContext& context) {
  const BevTable<Key> table(args, workspace);
  TORCHVOX_CUDA_CHECK(launch_clear(context, BevFill{table.keys, table.key_bytes, 0},
                                   BevFill{args.counts, count_bytes(args.points), 0}));
  TORCHVOX_CUDA_CHECK(enter_points(args, table.keys, context));
  switch (args.code.format) {
    case HeightFormat::kFloat:
      return finalize<Key, HeightFormat::kFloat>(args, table.keys, context);
    case HeightFormat::kUInt8:
      return finalize<Key, HeightFormat::kUInt8>(args, table.keys, context);
    case HeightFormat::kUInt16: break;
  }
  return finalize<Key, HeightFormat::kUInt16>(args, table.keys, context);
}

// Plans kCleared (Key is uint32_t) and kStarted (uint64_t).
template <class Key>
cudaError_t launch_sparse(const BevMaxHeightArgs& args, void* workspace,
                          const CudaContext& context) {
  const BevTable<Key> table(args, workspace);
  const int64_t cells = cells_of(args);
  const BevFill height{args.height, cells * height_bytes(args.code.format),
                       args.code.format == HeightFormat::kFloat ? float_bits(args.code.fill) : 0};
  const BevFill top{args.top_index, args.top_index ? 4 * cells : 0, 0xffffffffu};
  const BevFill counts{args.counts, count_bytes(args.points), 0};
  const bool quads = has_quads(args.points);
  return with_point_type(args.points.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(Key) == 8) {
      const int64_t quads_to_fill = ceil_div<int64_t>(std::max(height.bytes, top.bytes), 16);
      const unsigned blocks = std::max(point_blocks(args.points),
                                       blocks_for(quads_to_fill, kBevThreads, context.target, 4));
      TORCHVOX_CUDA_CHECK(launch_blocks(start_kernel<T>, blocks, kBevThreads, context.stream, args,
                                        quads, table.keys, height, top, counts));
    } else {
      TORCHVOX_CUDA_CHECK(
          launch_clear(context, BevFill{table.keys, table.key_bytes, 0}, height, top, counts));
    }
    if (args.points.rows == 0) return cudaSuccess;
    TORCHVOX_CUDA_CHECK(enter_points(args, table.keys, context));
    return launch_after(settle_kernel<T, Key>, point_blocks(args.points), kBevThreads, context,
                        args, quads, table.keys);
  });
}

// Calls body(Key{}) with the type of the keys.
template <class Body>
auto with_key(const BevMaxHeightArgs& args, BevPlan plan, const Body& body) {
  return has_wide_keys(args, plan) ? body(uint64_t{}) : body(uint32_t{});
}

}  // namespace

int64_t workspace_bytes_cuda(const BevMaxHeightArgs& args, const Target&) {
  const BevPlan plan = plan_of(args);
  if (plan == BevPlan::kSmall) return 0;
  return with_key(args, plan, [&](auto key) -> int64_t {
    return BevTable<decltype(key)>(args, nullptr).bytes;
  });
}

cudaError_t launch(const BevMaxHeightArgs& args, void* workspace, const CudaContext& context) {
  const BevPlan plan = plan_of(args);
  return with_key(args, plan, [&](auto key) {
    using Key = decltype(key);
    if (plan == BevPlan::kDense) return launch_dense<Key>(args, workspace, context);
    if (plan != BevPlan::kSmall) return launch_sparse<Key>(args, workspace, context);
    return with_point_type(args.points.dtype, [&](auto type) {
      return launch_blocks(small_kernel<decltype(type), Key>, 1, kSmallThreads, context.stream,
                           args, has_quads(args.points), static_cast<int>(cells_of(args)));
    });
  });
}

}  // namespace torchvox
