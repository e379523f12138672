// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/core/op.h"
#include "csrc/ops/detection/checks.h"

namespace torchvox {
namespace {

using at::TensorList;

constexpr const char* kCenterOp = "center_decode_nms";

// The maps of all tasks, in the order of CenterMapKind after the heat maps.
struct CenterMaps {
  const char* name;
  TensorList maps;
  const char* layout;
};

// Fills in the heads without their memory.
void check_tasks(TensorList heatmap, const std::array<CenterMaps, 5>& others, DecodeNmsArgs& args) {
  check_heads(kCenterOp, "heatmap", heatmap);
  for (const CenterMaps& other : others) {
    const bool left_out = &other == &others.back() && other.maps.empty();
    if (!left_out) check_length(kCenterOp, other.name, other.maps.size(), heatmap.size());
  }
  args.centers = true;
  args.center.velocity = !others.back().maps.empty();
  args.heads = static_cast<int>(heatmap.size());
  int classes = 0;
  for (int h = 0; h < args.heads; ++h) {
    Inputs in(kCenterOp);
    if (h > 0) in.add_size("B", heatmap[0].sym_size(0), "all maps");
    add_map(in, "heatmap", heatmap[h], heatmap[0], "[B, channels >= 1, H, W]");
    for (const CenterMaps& other : others) {
      if (!other.maps.empty()) add_map(in, other.name, other.maps[h], heatmap[0], other.layout);
    }
    add_classes(kCenterOp, args.head[h], concrete_size(heatmap[h], 1), classes);
  }
}

void set_center(c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range, int64_t stride,
                std::string_view rot_order, DecodeNmsArgs& args) {
  check_range(kCenterOp, range);
  check_value(voxel_size.size() == 2 || voxel_size.size() == 3, kCenterOp,
              "voxel_size must be (x, y, z), or (x, y), in meters", voxel_size);
  check_value(stride >= 1 && stride < (1 << 24), kCenterOp, "stride must be in [1, 2^24)", stride);
  for (int axis = 0; axis < 2; ++axis) {
    const auto size = static_cast<float>(voxel_size[axis]);
    check_value(std::isfinite(size) && size > 0, kCenterOp, "voxel_size must be finite and > 0",
                voxel_size);
    args.center.voxel[axis] = size;
    args.center.low[axis] = static_cast<float>(range[axis]);
  }
  args.center.stride = static_cast<float>(stride);
  args.center.cos_first = parse_word(kCenterOp, "rot_order", rot_order, "sin_cos", "cos_sin");
}

void set_post_range(c10::ArrayRef<double> range, DecodeNmsArgs& args) {
  if (range.empty()) return;
  check_value(range.size() == 6, kCenterOp, "post_range must be (x0, y0, z0, x1, y1, z1), or none",
              range);
  args.has_range = true;
  for (int k = 0; k < 6; ++k) {
    check_value(!std::isnan(range[k]), kCenterOp, "post_range must be numbers", range);
    args.range[k] = static_cast<float>(range[k]);
  }
}

Detections center_decode_nms(
    TensorList heatmap, TensorList offset, TensorList z, TensorList dim, TensorList rot,
    std::optional<TensorList> vel_in, c10::ArrayRef<double> voxel_size,
    c10::ArrayRef<double> point_cloud_range, int64_t stride, double score_threshold,
    c10::ArrayRef<double> nms_threshold, c10::SymInt pre, c10::SymInt post, std::string_view group,
    bool global_post, bool best_class, bool closed, std::optional<c10::ArrayRef<double>> post_range,
    std::string_view rot_order, std::optional<at::IntArrayRef> class_labels, std::string_view nms) {
  const TensorList vel = given(vel_in);
  const std::array<CenterMaps, 5> others{{{"offset", offset, "[B, 2, H, W]"},
                                          {"z", z, "[B, 1, H, W]"},
                                          {"dim", dim, "[B, 3, H, W]"},
                                          {"rot", rot, "[B, 2, H, W]"},
                                          {"vel", vel, "[B, 2, H, W]"}}};
  DecodeNmsArgs args;
  args.group = parse_group(kCenterOp, group);
  check_tasks(heatmap, others, args);
  check_value(!best_class || args.group != DecodeGroup::kClass, kCenterOp,
              "group must be 'task' or 'none' with best_class", "'", group, "'");
  args.best_class = best_class;
  set_center(voxel_size, point_cloud_range, stride, rot_order, args);
  set_post_range(given(post_range), args);
  const DecodeOptions options{score_threshold, nms_threshold,       pre, post, global_post,
                              closed,          given(class_labels), nms};
  set_options(kCenterOp, options, args);
  Detections out = make_outputs(heatmap[0], post, args);
  if (heatmap[0].is_meta()) return out;

  std::vector<Tensor> kept;  // while the kernels read them
  int64_t boxes = 0, pairs = 0;
  for (int h = 0; h < args.heads; ++h) {
    DecodeHead& head = args.head[h];
    check_below(heatmap[h].size(2) * heatmap[h].size(3), kIndexLimit, kCenterOp,
                "heatmap must have fewer than 2^31 cells", heatmap[h].sym_sizes());
    head.map[kScoreMap] = head_map(heatmap[h], kept);
    for (size_t k = 0; k < others.size(); ++k) {
      if (!others[k].maps.empty()) {
        head.map[kOffsetMap + k] = head_map(others[k].maps[h], kept);
      }
    }
    set_cells(head, heatmap[h].size(2), heatmap[h].size(3), boxes, pairs);
  }
  run_decode_nms(kCenterOp, heatmap[0], options, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("center_decode_nms", center_decode_nms, inference_only());
  ops.autocast("center_decode_nms", {{{"heatmap", "offset", "z", "dim", "rot", "vel"}}});
}

}  // namespace
}  // namespace torchvox
