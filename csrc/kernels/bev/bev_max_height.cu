// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/bev/bev_max_height_common.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ uint32_t atomic_max(uint32_t* address, uint32_t value) {
  return atomicMax(address, value);
}
__device__ __forceinline__ uint64_t atomic_max(uint64_t* address, uint64_t value) {
  return atomicMax(reinterpret_cast<unsigned long long*>(address),
                   static_cast<unsigned long long>(value));
}

// One thread a point. Reads a point once, then at most one load and one atomic on its cell: the load
// spares the atomic of every point below its cell's present maximum. Counts of the block's first
// sample are added up in shared memory; a thread of another sample adds to the counters itself.
template <class T, class Key>
__global__ void __launch_bounds__(kThreads) scatter_kernel(BevMaxHeightArgs args,
                                                           BevTable<Key> table) {
  __shared__ int32_t block_counts[kBevCounts];
  if (threadIdx.x < kBevCounts) block_counts[threadIdx.x] = 0;
  __syncthreads();

  const int64_t row = global_thread();
  const int64_t block_sample = args.points.sample_of(int64_t{blockIdx.x} * blockDim.x);
  const int64_t sample = row < args.points.rows ? args.points.valid_sample(row) : -1;
  BevPoint point{BevFate::kNonFinite, 0, 0.f};
  bool filled = false;
  if (sample >= 0) {
    point = locate_point<T>(args.points, args.grid, row, sample);
    if (point.fate == BevFate::kUsed) {
      const Key key = height_key(point.z, row, Key{});
      Key* cell = &table.keys[point.cell];
      if (*const_cast<volatile const Key*>(cell) < key) filled = atomic_max(cell, key) == 0;
    }
  }
  const bool in_block = sample >= 0 && sample == block_sample;
  for (int c = 0; c < kBevCounts; ++c) {
    const bool hit = sample >= 0 && (c == kBevCellsFilled ? filled : c == count_of(point.fate));
    const unsigned votes = __ballot_sync(0xffffffffu, hit && in_block);
    if ((threadIdx.x & 31) == 0 && votes) atomicAdd(&block_counts[c], __popc(votes));
    if (hit && !in_block) atomicAdd(&table.counters[sample * kBevCounts + c], 1);
  }
  __syncthreads();
  if (threadIdx.x < kBevCounts && block_counts[threadIdx.x]) {
    atomicAdd(&table.counters[block_sample * kBevCounts + threadIdx.x], block_counts[threadIdx.x]);
  }
}

// Four cells a thread: 16-byte reads of the table, and writes as wide as the format allows (the
// compiler merges the stores of one thread when the outputs are aligned). Block 0 writes the counts.
template <class Key, HeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) finalise_kernel(BevMaxHeightArgs args,
                                                            BevTable<Key> table, int64_t cells) {
  args.code.format = kFormat;  // known at compile time from here on
  for (int64_t i = 4 * global_thread(); i < cells; i += 4 * global_stride()) {
    if (i + 4 <= cells) {
      alignas(16) Key keys[4];
      const uint4* source = reinterpret_cast<const uint4*>(table.keys + i);
      for (int w = 0; w < int(sizeof(keys) / 16); ++w) {
        reinterpret_cast<uint4*>(keys)[w] = source[w];
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
      for (int64_t k = i; k < cells; ++k) write_cell(args, k, table.keys[k]);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < kBevCounts) {
    int32_t total = 0;
    for (int64_t b = 0; b < args.points.batches; ++b) {
      const int32_t count = table.counters[b * kBevCounts + threadIdx.x];
      args.counts[(b + 1) * kBevCounts + threadIdx.x] = count;
      total += count;
    }
    args.counts[threadIdx.x] = total;
  }
}

template <class Key>
cudaError_t launch_keyed(const BevMaxHeightArgs& args, void* workspace, const CudaContext& context) {
  const BevTable<Key> table(args, workspace);
  if (table.bytes > 0) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(workspace, 0, table.bytes, context.stream));
  }
  if (args.points.rows > 0) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kThreads));
    with_point_type(args.points.dtype, [&](auto type) {
      scatter_kernel<decltype(type), Key><<<blocks, kThreads, 0, context.stream>>>(args, table);
    });
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  const int64_t cells = args.points.batches * args.grid.cells();
  const unsigned blocks = blocks_for(ceil_div<int64_t>(cells, 4), kThreads, context.target);
  switch (args.code.format) {
    case HeightFormat::kFloat:
      finalise_kernel<Key, HeightFormat::kFloat>
          <<<blocks, kThreads, 0, context.stream>>>(args, table, cells);
      break;
    case HeightFormat::kUInt8:
      finalise_kernel<Key, HeightFormat::kUInt8>
          <<<blocks, kThreads, 0, context.stream>>>(args, table, cells);
      break;
    case HeightFormat::kUInt16:
      finalise_kernel<Key, HeightFormat::kUInt16>
          <<<blocks, kThreads, 0, context.stream>>>(args, table, cells);
      break;
  }
  return cudaGetLastError();
}

template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(BevMaxHeightBackwardArgs args) {
  for (int64_t row = global_thread(); row < args.points.rows; row += global_stride()) {
    write_point_gradient<T>(args, row);
  }
}

}  // namespace

cudaError_t launch(const BevMaxHeightArgs& args, void* workspace, const CudaContext& context) {
  return args.top_index ? launch_keyed<uint64_t>(args, workspace, context)
                        : launch_keyed<uint32_t>(args, workspace, context);
}

cudaError_t launch(const BevMaxHeightBackwardArgs& args, void*, const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.points.rows, kThreads, context.target);
  with_point_type(args.points.dtype, [&](auto type) {
    backward_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
