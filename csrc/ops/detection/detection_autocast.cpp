// SPDX-License-Identifier: Apache-2.0
//
// Under autocast some maps come out of a layer in half precision and others need not: all are
// widened to a type that holds each of them. Maps of one type stay as they are; anchors become
// float32, which the ops want.
#include <torch/library.h>

#include <vector>

#include "csrc/ops/core/autocast.h"
#include "csrc/ops/detection/decode_nms_checks.h"

namespace torchvox {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;
using OptionalList = std::optional<TensorList>;

// The one type for all maps; none where a map is no float, which the op refuses.
class MapType {
 public:
  explicit MapType(std::initializer_list<TensorList> lists) {
    for (const TensorList& maps : lists) {
      for (const Tensor& map : maps) add(map);
    }
  }
  std::vector<Tensor> widened(TensorList maps) const {
    std::vector<Tensor> out = maps.vec();
    for (Tensor& map : out) map = floats_ ? map.to(*type_) : map;
    return out;
  }

 private:
  void add(const Tensor& map) {
    floats_ = floats_ && map.is_floating_point();
    type_ = type_ ? c10::promoteTypes(*type_, map.scalar_type()) : map.scalar_type();
  }

  bool floats_ = true;
  std::optional<at::ScalarType> type_;
};

std::vector<Tensor> in_float(TensorList anchors) {
  std::vector<Tensor> out = anchors.vec();
  for (Tensor& anchor : out) anchor = widened_half(anchor, at::kFloat);
  return out;
}

Tensor box_decode(const Tensor& deltas, const Tensor& anchors, const OptionalTensor& direction,
                  double dir_offset, double dir_limit, bool dir_flip) {
  static const auto op = typed_op<decltype(box_decode)>("torchvox::box_decode");
  const BelowAutocast below_autocast;
  const Tensor wide = widened_half(anchors, at::kFloat);
  if (!direction) return op.call(deltas, wide, direction, dir_offset, dir_limit, dir_flip);
  const MapType type({deltas, *direction});
  return op.call(type.widened(deltas)[0], wide, type.widened(*direction)[0], dir_offset, dir_limit,
                 dir_flip);
}

Detections anchor_decode_nms(TensorList cls, TensorList box, OptionalList direction,
                             TensorList anchors, double score_threshold,
                             c10::ArrayRef<double> nms_threshold, c10::SymInt pre, c10::SymInt post,
                             std::string_view group, bool shared_pre, bool global_post, bool closed,
                             double dir_offset, double dir_limit, bool dir_flip,
                             std::optional<at::IntArrayRef> class_labels, std::string_view nms) {
  static const auto op = typed_op<decltype(anchor_decode_nms)>("torchvox::anchor_decode_nms");
  const BelowAutocast below_autocast;
  const MapType type({cls, box, given(direction)});
  return op.call(type.widened(cls), type.widened(box), TensorList(type.widened(given(direction))),
                 in_float(anchors), score_threshold, nms_threshold, std::move(pre), std::move(post),
                 group, shared_pre, global_post, closed, dir_offset, dir_limit, dir_flip,
                 class_labels, nms);
}

Detections center_decode_nms(TensorList heatmap, TensorList offset, TensorList z, TensorList dim,
                             TensorList rot, OptionalList vel, c10::ArrayRef<double> voxel_size,
                             c10::ArrayRef<double> point_cloud_range, int64_t stride,
                             double score_threshold, c10::ArrayRef<double> nms_threshold,
                             c10::SymInt pre, c10::SymInt post, std::string_view group,
                             bool global_post, bool best_class, bool closed,
                             std::optional<c10::ArrayRef<double>> post_range,
                             std::string_view rot_order,
                             std::optional<at::IntArrayRef> class_labels, std::string_view nms) {
  static const auto op = typed_op<decltype(center_decode_nms)>("torchvox::center_decode_nms");
  const BelowAutocast below_autocast;
  const MapType type({heatmap, offset, z, dim, rot, given(vel)});
  return op.call(type.widened(heatmap), type.widened(offset), type.widened(z), type.widened(dim),
                 type.widened(rot), TensorList(type.widened(given(vel))), voxel_size,
                 point_cloud_range, stride, score_threshold, nms_threshold, std::move(pre),
                 std::move(post), group, global_post, best_class, closed, post_range, rot_order,
                 class_labels, nms);
}

void register_kernels(torch::Library& m) {
  m.impl("box_decode", box_decode);
  m.impl("anchor_decode_nms", anchor_decode_nms);
  m.impl("center_decode_nms", center_decode_nms);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
