// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"

namespace torchvox::bind {
namespace {

// What the ops over heads have in common.
struct Decode {
  DecodeNmsArgs args;
  std::vector<double> thresholds;
  std::vector<int64_t> labels;

  Decode(const char* op, const Attributes& attributes) {
    args.group = choice<DecodeGroup>(op, attributes, "group",
                                     {{"none", DecodeGroup::kAll},
                                      {"task", DecodeGroup::kHead},
                                      {"class", DecodeGroup::kClass}});
    args.circle = choice<bool>(op, attributes, "nms", {{"rotated", false}, {"circle", true}});
    args.score_threshold = static_cast<float>(attributes.number("score_threshold"));
    args.closed = attributes.flag("closed");
    args.global_post = attributes.flag("global_post");
    args.pre = limit(op, attributes, "pre", 0);
    args.post = limit(op, attributes, "post", 0);
    thresholds = attributes.numbers("nms_threshold");
    if (attributes.has("class_labels")) labels = attributes.integers("class_labels");
  }

  // Begins with the list of the maps of scores, one per head.
  void begin(Inputs& in, const char* name) {
    const auto maps = in.list(name);
    check(!maps.empty() && maps.size() <= kMostHeads, in.op(), "the heads must be 1 to 8",
          maps.size());
    args.heads = static_cast<int>(maps.size());
    args.dtype = float_type(in.op(), name, maps[0]);
  }

  // The tensor of head h in a list.
  const View& of_head(Inputs& in, const char* name, int h) const {
    const auto list = in.list(name);
    check(list.size() == static_cast<size_t>(args.heads), in.op(),
          std::string(name) + " must be one map a head", list.size());
    return list[static_cast<size_t>(h)];
  }

  // Adds a map of head h, which for the first of a head decides H and W; returns its channels.
  int64_t add_map(Inputs& in, int h, int kind, const char* name, const char* layout) {
    const View& map = of_head(in, name, h);
    if (kind == kScoreMap) in.set('H', -1), in.set('W', -1);
    in.check_layout(name, map, layout);
    check(float_type(in.op(), name, map) == args.dtype, in.op(), "maps must have one type", "two");
    const int64_t cells = in['H'] * in['W'];
    check(cells < kIndexLimit, in.op(), "maps must have fewer than 2^31 cells", map.shape);
    args.head[h].map[kind] = {map.data, map.size(1) * cells, static_cast<int32_t>(cells),
                              static_cast<int32_t>(in['W']), 1};
    return map.size(1);
  }

  // Sets the sizes of head h, whose maps are there.
  void add_head(const Inputs& in, int h, int64_t classes, int64_t per_cell) {
    DecodeHead& head = args.head[h];
    const DecodeHead before = h > 0 ? args.head[h - 1] : DecodeHead();
    head.height = static_cast<int32_t>(in['H']);
    head.width = static_cast<int32_t>(in['W']);
    head.per_cell = static_cast<int32_t>(per_cell);
    head.first_class = before.first_class + before.classes;
    check(classes >= 1 && head.first_class + classes <= kMostClasses, in.op(),
          "the heads must have 1 to 64 classes", head.first_class + classes);
    head.classes = static_cast<int32_t>(classes);
    head.first_box = before.first_box + before.boxes();
    head.first_pair = before.first_pair + before.boxes() * before.classes;
    check(head.boxes() < kIndexLimit && head.first_pair + head.boxes() * classes < kIndexLimit,
          in.op(), "the maps must have fewer than 2^31 candidates", head.boxes());
  }

  Call finish(const Inputs& in) {
    const auto groups = static_cast<size_t>(args.groups());
    check(thresholds.size() == 1 || thresholds.size() == groups, in.op(),
          "nms_threshold must be one number, or one a group", thresholds.size());
    check(labels.empty() || labels.size() == static_cast<size_t>(args.classes()), in.op(),
          "class_labels must be one label a class, or none", labels.size());
    for (size_t g = 0; g < groups; ++g) {
      args.nms_threshold[g] = static_cast<float>(thresholds[thresholds.size() == 1 ? 0 : g]);
    }
    for (int c = 0; c < args.classes(); ++c) {
      args.label[c] = labels.empty() ? c : static_cast<int32_t>(labels[static_cast<size_t>(c)]);
    }
    const int64_t b = args.batches = in['B'], rows = args.rows();
    return call(args,
                {{Element::kFloat, {b, rows, args.box_values()}},
                 {Element::kFloat, {b, rows}},
                 int32({b, rows}),
                 int32({b}),
                 int32({b})},
                &DecodeNmsArgs::boxes, &DecodeNmsArgs::scores, &DecodeNmsArgs::labels,
                &DecodeNmsArgs::count, &DecodeNmsArgs::overflow);
  }
};

Call plan_centers(Decode decode, Inputs& in) {
  decode.begin(in, "heatmap");
  decode.args.center.velocity = in.find("vel") != nullptr;
  for (int h = 0; h < decode.args.heads; ++h) {
    const int64_t classes = decode.add_map(in, h, kScoreMap, "heatmap", "[B, *, H, W]");
    decode.add_map(in, h, kOffsetMap, "offset", "[B, 2, H, W]");
    decode.add_map(in, h, kZMap, "z", "[B, 1, H, W]");
    decode.add_map(in, h, kSizeMap, "dim", "[B, 3, H, W]");
    decode.add_map(in, h, kRotationMap, "rot", "[B, 2, H, W]");
    if (decode.args.center.velocity) decode.add_map(in, h, kVelocityMap, "vel", "[B, 2, H, W]");
    decode.add_head(in, h, classes, 1);
  }
  return decode.finish(in);
}

Call plan_anchors(Decode decode, Inputs& in) {
  const char* const op = in.op();
  decode.begin(in, "cls");
  BoxCoder& coder = decode.args.coder;
  const bool directed = in.find("direction") != nullptr;
  for (int h = 0; h < decode.args.heads; ++h) {
    const int64_t scores = decode.add_map(in, h, kScoreMap, "cls", "[B, *, H, W]");
    const View& anchors = decode.of_head(in, "anchors", h);
    check_element(op, "anchors", anchors, {Element::kFloat}, "float32");
    in.set('A', -1);
    in.check_layout("anchors", anchors, "[H, W, A >= 1, 7]");
    decode.args.head[h].anchors = static_cast<const float*>(anchors.data);
    const int64_t each = in['A'];
    // Values a box, or bins; 0 where the channels are no multiple of the anchors.
    const auto per_anchor = [each](int64_t channels) {
      return channels % each == 0 ? channels / each : 0;
    };
    const int64_t values = per_anchor(decode.add_map(in, h, kBoxMap, "box", "[B, *, H, W]"));
    const int64_t bins = directed
        ? per_anchor(decode.add_map(in, h, kDirectionMap, "direction", "[B, *, H, W]"))
        : 0;
    check(values >= 7 && values <= kMostDeltas && (h == 0 || values == coder.values), op,
          "box must have A * 7, 8, 9 or 10 channels, all heads alike", values);
    check(bins <= 64 && bins >= directed && (h == 0 || bins == coder.bins), op,
          "direction must have A * bins channels, all heads alike", bins);
    coder.values = static_cast<int>(values);
    coder.bins = static_cast<int>(bins);
    decode.add_head(in, h, per_anchor(scores), each);
  }
  if (coder.bins > 0) coder.period = static_cast<float>(6.283185307179586 / coder.bins);
  return decode.finish(in);
}

}  // namespace

Planner bind_center_decode_nms(const Attributes& attributes) {
  const char* const op = "CenterDecodeNms";
  Decode decode(op, attributes);
  DecodeNmsArgs& args = decode.args;
  args.centers = true;
  args.best_class = attributes.flag("best_class");
  check(!args.best_class || args.group != DecodeGroup::kClass, op,
        "group must be 'task' or 'none' with best_class", "'class'");
  const auto size = attributes.numbers("voxel_size");
  const auto range = attributes.numbers("point_cloud_range");
  check(size.size() >= 2, op, "voxel_size must be (x, y, z), or (x, y)", size.size());
  check(range.size() == 6, op, "point_cloud_range must be six numbers", range.size());
  for (size_t axis = 0; axis < 2; ++axis) {
    args.center.voxel[axis] = static_cast<float>(size[axis]);
    args.center.low[axis] = static_cast<float>(range[axis]);
  }
  args.center.stride = static_cast<float>(attributes.integer("stride"));
  args.center.cos_first =
      choice<bool>(op, attributes, "rot_order", {{"sin_cos", false}, {"cos_sin", true}});
  if (attributes.has("post_range")) {
    const auto limits = attributes.numbers("post_range");
    check(limits.size() == 6 || limits.empty(), op, "post_range must be six numbers",
          limits.size());
    args.has_range = !limits.empty();
    for (size_t k = 0; k < limits.size(); ++k) args.range[k] = static_cast<float>(limits[k]);
  }
  return planner(op, attributes, {"heatmap[]", "offset[]", "z[]", "dim[]", "rot[]", "vel[]?"},
                 decode, plan_centers);
}

Planner bind_anchor_decode_nms(const Attributes& attributes) {
  const char* const op = "AnchorDecodeNms";
  Decode decode(op, attributes);
  DecodeNmsArgs& args = decode.args;
  args.best_class = args.group != DecodeGroup::kClass;
  args.shared_pre = attributes.flag("shared_pre");
  check(!args.shared_pre || !args.best_class, op, "group must be 'class' with shared_pre",
        "another");
  args.coder.dir_offset = static_cast<float>(attributes.number("dir_offset"));
  args.coder.dir_limit = static_cast<float>(attributes.number("dir_limit"));
  args.coder.dir_flip = attributes.flag("dir_flip");
  return planner(op, attributes, {"cls[]", "box[]", "direction[]?", "anchors[]"}, decode,
                 plan_anchors);
}

}  // namespace torchvox::bind
