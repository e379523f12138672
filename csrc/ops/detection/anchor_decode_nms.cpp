// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/core/op.h"
#include "csrc/ops/detection/checks.h"

namespace torchvox {
namespace {

using at::TensorList;

constexpr const char* kAnchorOp = "anchor_decode_nms";

// Values a box, or bins, of a map; 0 where the channels are no multiple of the anchors.
int64_t per_anchor(const Tensor& map, int64_t anchors) {
  const int64_t channels = concrete_size(map, 1);
  return channels % anchors == 0 ? channels / anchors : 0;
}

// Fills in the heads without their memory.
void check_heads_of_anchors(TensorList cls, TensorList box, TensorList direction,
                            TensorList anchors, DecodeNmsArgs& args) {
  check_heads(kAnchorOp, "cls", cls);
  check_length(kAnchorOp, "box", box.size(), cls.size());
  check_length(kAnchorOp, "anchors", anchors.size(), cls.size());
  if (!direction.empty()) check_length(kAnchorOp, "direction", direction.size(), cls.size());
  args.heads = static_cast<int>(cls.size());
  int classes = 0;
  for (int h = 0; h < args.heads; ++h) {
    Inputs in(kAnchorOp);
    if (h > 0) in.add_size("B", cls[0].sym_size(0), "all maps");
    add_map(in, "cls", cls[h], cls[0], "[B, channels, H, W]");
    add_map(in, "box", box[h], cls[0], "[B, *, H, W]");
    if (!direction.empty()) add_map(in, "direction", direction[h], cls[0], "[B, *, H, W]");
    in.add("anchors", anchors[h], Dtypes::kFloat32, "[H, W, A >= 1, 7]");
    const int64_t each = concrete_size(anchors[h], 2);
    const int64_t own = per_anchor(cls[h], each), values = per_anchor(box[h], each);
    check_value(own >= 1, kAnchorOp, "cls must have A * classes channels each", cls[h].sym_sizes());
    check_value(is_delta_count(values) && (h == 0 || values == args.coder.values), kAnchorOp,
                "box must have A * 7, 8, 9 or 10 channels, all heads alike", box[h].sym_sizes());
    args.coder.values = static_cast<int>(values);
    if (!direction.empty()) {
      const int64_t bins = per_anchor(direction[h], each);
      check_value(bins >= 1 && bins <= 64 && (h == 0 || bins == args.coder.bins), kAnchorOp,
                  "direction must have A * bins channels, all heads alike",
                  direction[h].sym_sizes());
      args.coder.bins = static_cast<int>(bins);
    }
    DecodeHead& head = args.head[h];
    head.per_cell = static_cast<int32_t>(each);
    add_classes(kAnchorOp, head, own, classes);
  }
}

Detections anchor_decode_nms(TensorList cls, TensorList box, std::optional<TensorList> direction_in,
                             TensorList anchors, double score_threshold,
                             c10::ArrayRef<double> nms_threshold, c10::SymInt pre, c10::SymInt post,
                             std::string_view group, bool shared_pre, bool global_post, bool closed,
                             double dir_offset, double dir_limit, bool dir_flip,
                             std::optional<at::IntArrayRef> class_labels, std::string_view nms) {
  const TensorList direction = given(direction_in);
  DecodeNmsArgs args;
  args.group = parse_group(kAnchorOp, group);
  check_heads_of_anchors(cls, box, direction, anchors, args);
  check_value(!shared_pre || args.group == DecodeGroup::kClass, kAnchorOp,
              "group must be 'class' with shared_pre", "'", group, "'");
  args.best_class = args.group != DecodeGroup::kClass;
  args.shared_pre = shared_pre;
  set_direction(kAnchorOp, dir_offset, dir_limit, dir_flip, args.coder);
  const DecodeOptions options{score_threshold, nms_threshold,       pre, post, global_post,
                              closed,          given(class_labels), nms};
  set_options(kAnchorOp, options, args);
  Detections out = make_outputs(cls[0], post, args);
  if (cls[0].is_meta()) return out;

  std::vector<Tensor> kept;  // while the kernels read them
  int64_t boxes = 0, pairs = 0;
  for (int h = 0; h < args.heads; ++h) {
    DecodeHead& head = args.head[h];
    check_below(anchors[h].numel(), kIndexLimit, kAnchorOp,
                "anchors must have fewer than 2^31 numbers", anchors[h].sym_sizes());
    head.map[kScoreMap] = head_map(cls[h], kept);
    head.map[kBoxMap] = head_map(box[h], kept);
    if (args.coder.bins > 0) head.map[kDirectionMap] = head_map(direction[h], kept);
    head.anchors = kept.emplace_back(anchors[h].contiguous()).const_data_ptr<float>();
    set_cells(head, anchors[h].size(0), anchors[h].size(1), boxes, pairs);
  }
  run_decode_nms(kAnchorOp, cls[0], options, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("anchor_decode_nms", anchor_decode_nms, inference_only());
  ops.autocast("anchor_decode_nms", {{{"cls", "box", "direction"}}, {"anchors"}});
}

}  // namespace
}  // namespace torchvox
