// SPDX-License-Identifier: Apache-2.0
//
// The kernels that are one function of one element (csrc/kernels/core/map.h).
#pragma once

#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/cells/unique_cells.h"
#include "csrc/kernels/detection/box_decode.h"
#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_key.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/kernels/occupancy/read.h"
#include "csrc/kernels/pillars/norm.h"
#include "csrc/kernels/rays/sweeps.h"
#include "csrc/kernels/rays/transform_points.h"
#include "csrc/kernels/sparse/pool.h"

// define(Args) for each of them.
#define TORCHVOX_MAPS(define)        \
  define(BevCellsArgs);              \
  define(BevMaxHeightBackwardArgs);  \
  define(BoxDecodeArgs);             \
  define(CellKeysArgs);              \
  define(CellRowsArgs);              \
  define(InterpolationWeightsArgs);  \
  define(NeighborRowsArgs);          \
  define(OccupancyCropArgs);         \
  define(OccupancyQueryArgs);        \
  define(OccupancyRaycastArgs);      \
  define(PillarNormArgs);            \
  define(PillarNormBackwardArgs);    \
  define(QueryAndGroupBackwardArgs); \
  define(SparsePoolArgs);            \
  define(SparsePoolBackwardArgs);    \
  define(TransformPointsArgs);       \
  define(UnpackPointsArgs);          \
  define(VoxelCellsArgs);            \
  define(VoxelMeanOfSumsArgs);
