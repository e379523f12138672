// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/bev/bev_max_height_common.h"
#include "csrc/kernels/bev/bev_scatter.cuh"

namespace torchvox {
namespace {

// Four cells a thread: 16-byte reads of the table, and writes as wide as the format allows (the
// compiler merges the stores of one thread when the outputs are aligned). Block 0 writes the
// counts.
template <class Key, HeightFormat kFormat>
__global__ void __launch_bounds__(kBevThreads)
    finalise_kernel(BevMaxHeightArgs args, BevTable<Key> table, int64_t cells) {
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
    write_count_column(threadIdx.x, table.counters, args.points.batches, args.counts);
  }
}

template <class Key>
cudaError_t launch_keyed(const BevMaxHeightArgs& args, void* workspace,
                         const CudaContext& context) {
  const BevTable<Key> table(args, workspace);
  if (table.bytes > 0) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(workspace, 0, table.bytes, context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_scatter(args.points, args.grid, table.counters,
                                     HeightVisit<Key>{table.keys}, context.stream));
  const int64_t cells = args.points.batches * args.grid.cells();
  const unsigned blocks = blocks_for(ceil_div<int64_t>(cells, 4), kBevThreads, context.target);
  switch (args.code.format) {
    case HeightFormat::kFloat:
      finalise_kernel<Key, HeightFormat::kFloat>
          <<<blocks, kBevThreads, 0, context.stream>>>(args, table, cells);
      break;
    case HeightFormat::kUInt8:
      finalise_kernel<Key, HeightFormat::kUInt8>
          <<<blocks, kBevThreads, 0, context.stream>>>(args, table, cells);
      break;
    case HeightFormat::kUInt16:
      finalise_kernel<Key, HeightFormat::kUInt16>
          <<<blocks, kBevThreads, 0, context.stream>>>(args, table, cells);
      break;
  }
  return cudaGetLastError();
}

template <class T>
__global__ void __launch_bounds__(kBevThreads) backward_kernel(BevMaxHeightBackwardArgs args) {
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
  const unsigned blocks = blocks_for(args.points.rows, kBevThreads, context.target);
  with_point_type(args.points.dtype, [&](auto type) {
    backward_kernel<decltype(type)><<<blocks, kBevThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
