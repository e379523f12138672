// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/core/op.h"
#include "csrc/ops/detection/box_coder_checks.h"
#include "csrc/ops/detection/decode_nms_checks.h"

namespace torchvox {
namespace {

using at::TensorList;

constexpr const char* kAnchorOp = "anchor_decode_nms";

void check_anchors(const Tensor& anchors, const Tensor& score) {
  const char* rule = "anchors must be [H, W, A, 7] each, with the H and W of its head and A >= 1";
  check_value(anchors.dim() == 4, kAnchorOp, rule, anchors.sym_sizes());
  check_type(anchors.scalar_type() == at::kFloat, kAnchorOp, "anchors must be float32",
             anchors.scalar_type());
  check_size(anchors.sym_size(0).sym_eq(score.sym_size(2)), kAnchorOp, rule, anchors.sym_sizes());
  check_size(anchors.sym_size(1).sym_eq(score.sym_size(3)), kAnchorOp, rule, anchors.sym_sizes());
  check_size(anchors.sym_size(2).sym_ge(1), kAnchorOp, rule, anchors.sym_sizes());
  check_size(anchors.sym_size(3).sym_eq(7), kAnchorOp, rule, anchors.sym_sizes());
  check_device(kAnchorOp, "anchors", anchors, "all maps", score);
}

// Values a box, or bins, of a map; 0 where the channels are no multiple of the anchors.
int64_t per_anchor(const Tensor& map, int64_t anchors) {
  const int64_t channels = map.sym_size(1).guard_int(__FILE__, __LINE__);
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
    check_map(kAnchorOp, "cls", cls[h], cls[0]);
    check_anchors(anchors[h], cls[h]);
    check_beside(kAnchorOp, "box", box[h], cls[h]);
    if (!direction.empty()) check_beside(kAnchorOp, "direction", direction[h], cls[h]);
    const int64_t each = anchors[h].sym_size(2).guard_int(__FILE__, __LINE__);
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
    head.classes = static_cast<int32_t>(own);
    head.first_class = classes;
    classes += head.classes;
    check_value(classes <= kMostClasses, kAnchorOp, "the heads must have at most 64 classes",
                classes);
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
  Detections out = empty_detections(cls[0], args, post);
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
    const Tensor& own = kept.emplace_back(anchors[h].contiguous());
    head.anchors = own.const_data_ptr<float>();
    head.height = static_cast<int32_t>(own.size(0));
    head.width = static_cast<int32_t>(own.size(1));
    head.first_box = boxes;
    head.first_pair = pairs;
    boxes += head.boxes();
    pairs += head.boxes() * head.classes;
  }
  run_decode_nms(kAnchorOp, cls[0], options, out, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("anchor_decode_nms", anchor_decode_nms);
  ops.autocast("anchor_decode_nms", {{{"cls", "box", "direction"}}, {"anchors"}});
  ops.autograd(kAnchorOp, inference_only());
}

}  // namespace
}  // namespace torchvox
