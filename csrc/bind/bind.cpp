// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/bind.h"

#include "csrc/bind/checks.h"

namespace torchvox::bind {

// X(node, its outputs as in Operator, rank of an output W, what binds it)
#define TORCHVOX_NODES(X)                                     \
  X(VoxelMap, "IIIII", 0, bind_voxel_map)                     \
  X(Voxelize, "FIIII", 0, bind_voxelize)                      \
  X(VoxelCsr, "II", 0, bind_voxel_csr)                        \
  X(VoxelScatter, "WI", 2, bind_voxel_scatter)                \
  X(PillarEncode, "W", 4, bind_pillar_encode)                 \
  X(PillarScatter, "W", 4, bind_pillar_scatter)               \
  X(AnchorDecodeNms, "FFIII", 0, bind_anchor_decode_nms)      \
  X(CenterDecodeNms, "FFIII", 0, bind_center_decode_nms)      \
  X(FurthestPointSample, "IF", 0, bind_furthest_point_sample) \
  X(GatherPoints, "W", 3, bind_gather_points)                 \
  X(InterpolateFeatures, "W", 3, bind_interpolate_features)   \
  X(SegmentReduce, "WI", 2, bind_segment_reduce)              \
  X(UniqueCells, "IIIIII", 0, bind_unique_cells)              \
  X(BallQuery, "FII", 0, bind_ball_query)                     \
  X(QueryAndGroup, "WII", 4, bind_query_and_group)            \
  X(GroupMlpMax, "W", 3, bind_group_mlp_max)                  \
  X(SparseSubmMap, "II", 0, bind_sparse_subm_map)             \
  X(SparseConvMap, "IIII", 0, bind_sparse_conv_map)           \
  X(SparseSchedule, "I", 0, bind_sparse_schedule)             \
  X(SparseConv, "W", 2, bind_sparse_conv)                     \
  X(RayVisibility, "UBI", 0, bind_ray_visibility)             \
  X(MergeSweeps, "FII", 0, bind_merge_sweeps)                 \
  X(CropPoints, "FII", 0, bind_crop_points)                   \
  X(UnpackPoints, "F", 0, bind_unpack_points)

#define TORCHVOX_DECLARE(name, outputs, rank, bind) Planner bind(const Attributes&);
TORCHVOX_NODES(TORCHVOX_DECLARE)

std::span<const Operator> operators() {
#define TORCHVOX_OPERATOR(name, outputs, rank, bind) {#name, outputs, rank, bind},
  static constexpr Operator kOperators[] = {TORCHVOX_NODES(TORCHVOX_OPERATOR)};
  return kOperators;
}

std::vector<std::string> Attributes::words(const char* name) const {
  std::vector<std::string> words;
  std::istringstream list(word(name));
  for (std::string one; std::getline(list, one, ',');) words.push_back(one);
  return words;
}

Tensors::Tensors(const char* op, const Attributes& attributes,
                 std::initializer_list<const char*> names)
    : op_(op) {
  const std::vector<std::string> given = attributes.words("given");
  const std::vector<int64_t> counts = attributes.integers("counts");
  size_t lists = 0;
  for (std::string name : names) {
    size_t size = 1;
    const bool optional = name.back() == '?';
    if (optional) name.pop_back();
    const bool listed = name.ends_with("[]");
    if (listed) name.resize(name.size() - 2);
    if (optional && std::find(given.begin(), given.end(), name) == given.end()) size = 0;
    if (listed && size > 0) {
      check(lists < counts.size(), op, "counts must have a number for each list", counts);
      check(counts[lists] >= 0 && counts[lists] < kIndexLimit, op, "counts must be >= 0", counts);
      size = static_cast<size_t>(counts[lists++]);
    }
    ranges_.push_back({name, count_, size});
    count_ += size;
  }
  check(lists == counts.size(), op, "counts must have a number for each list", counts);
}

void Tensors::check_count(std::span<const View> inputs) const {
  check(inputs.size() == count_, op_, "inputs must be " + std::to_string(count_), inputs.size());
}

std::span<const View> Tensors::list(std::span<const View> inputs, std::string_view name) const {
  for (const Range& range : ranges_) {
    if (range.name == name) return inputs.subspan(range.begin, range.size);
  }
  throw std::logic_error(std::string(op_) + " has no tensor " + std::string(name));
}

void check_type_of_output(const char* op, std::span<const View> inputs, const Call& call) {
  for (const Operator& node : operators()) {
    if (node.outputs[0] != 'W' || std::string_view(node.name) != op) continue;
    Element last = Element::kUndefined;
    for (const View& view : inputs) {
      if (view.element == Element::kFloat || view.element == Element::kHalf) last = view.element;
    }
    check(last == call.outputs[0].element, op,
          "the last tensor of floats must have the type of the output", "another");
  }
}

VoxelGrid voxel_grid(const char* op, const Attributes& attributes) {
  const std::vector<double> size = attributes.numbers("voxel_size");
  const std::vector<double> range = attributes.numbers("point_cloud_range");
  check(size.size() == 3, op, "voxel_size must be (x, y, z)", size.size());
  check(range.size() == 6, op, "point_cloud_range must be six numbers", range.size());
  VoxelGrid grid;
  for (int axis = 0; axis < 3; ++axis) {
    grid.lo[axis] = static_cast<float>(range[axis]);
    grid.hi[axis] = static_cast<float>(range[axis + 3]);
    grid.size[axis] = static_cast<float>(size[axis]);
    const float cells = cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]);
    check(grid.size[axis] > 0 && cells >= 1 && cells <= static_cast<float>(kMaxCellsPerAxis), op,
          "point_cloud_range must hold 1 to 2^24 voxels on each axis", cells);
    grid.cells[axis] = static_cast<int32_t>(cells);
  }
  return grid;
}

}  // namespace torchvox::bind
