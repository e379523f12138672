// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/bev/grid.h"
#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

enum class HeightFormat { kFloat, kUInt8, kUInt16 };

inline int64_t height_bytes(HeightFormat format) {
  return format == HeightFormat::kFloat ? 4 : (format == HeightFormat::kUInt16 ? 2 : 1);
}

// How a height is stored.
struct HeightCode {
  HeightFormat format = HeightFormat::kFloat;
  float fill = 0.f;  // float output: value of empty cells; integer outputs hold 0 there
  int lowest_code = 1;  // uint8: code of z0
  float z0 = 0.f;  // metres
  float z1 = 0.f;  // metres

  // Codes 0 (empty), lowest_code .. 255.
  TORCHVOX_HD uint8_t to_uint8(float z) const {
    const float t = (z - z0) / (z1 - z0);
    const float code = floorf(t * static_cast<float>(255 - lowest_code));
    const int value = lowest_code + static_cast<int>(code);
    return static_cast<uint8_t>(value < 255 ? value : 255);
  }
  // Millimetres above z0, plus one; saturates.
  TORCHVOX_HD uint16_t to_uint16(float z) const {
    const float millimetres = floorf((z - z0) * 1000.f);
    return millimetres < 65534.f ? static_cast<uint16_t>(1 + static_cast<int>(millimetres))
                                 : uint16_t{65535};
  }
};

struct BevMaxHeightArgs {
  PackedPoints points;
  BevGrid grid;
  HeightCode code;
  void* height = nullptr;  // [batches, cells], float, uint8_t or uint16_t
  int32_t* top_index = nullptr;  // [batches, cells], or null: not wanted
  int32_t* counts = nullptr;  // [batches + 1, kBevCounts]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const BevMaxHeightArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const BevMaxHeightArgs& args, void* workspace,
                             const ParallelFor& parallel_for);

// Gradient of a float height image: the top point of a cell takes the cell's gradient in column z,
// everything else is 0. A gather: one thread a point, each element written once.
struct BevMaxHeightBackwardArgs {
  PackedPoints points;
  BevGrid grid;
  const float* grad_height = nullptr;  // [batches, cells]
  const int32_t* top_index = nullptr;  // [batches, cells]
  void* grad_points = nullptr;  // [rows, columns] contiguous, dtype of the points
};

TORCHVOX_EXPORT int64_t workspace_bytes(const BevMaxHeightBackwardArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const BevMaxHeightBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);

#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const BevMaxHeightArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const BevMaxHeightBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
