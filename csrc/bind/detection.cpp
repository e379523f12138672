// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/checks.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"

namespace torchvox::bind {
namespace {

// What the ops over heads have in common.
struct Decode {
  const char* op;
  Tensors tensors;
  DecodeNmsArgs args;
  std::vector<double> thresholds;
  std::vector<int64_t> labels;

  Decode(const char* name, const Attributes& attributes, std::initializer_list<const char*> names)
      : op(name), tensors(name, attributes, names) {
    args.group = choice<DecodeGroup>(op, attributes, "group",
                                     {{"none", DecodeGroup::kAll},
                                      {"task", DecodeGroup::kHead},
                                      {"class", DecodeGroup::kClass}});
    args.circle = choice<bool>(op, attributes, "nms", {{"rotated", false}, {"circle", true}});
    args.score_threshold = static_cast<float>(attributes.number("score_threshold"));
    args.closed = attributes.integer("closed") != 0;
    args.global_post = attributes.integer("global_post") != 0;
    args.pre = limit(op, attributes, "pre", 0);
    args.post = limit(op, attributes, "post", 0);
    thresholds = attributes.numbers("nms_threshold");
    if (attributes.has("class_labels")) labels = attributes.integers("class_labels");
  }

  // Adds the maps of a head with `maps` of it, [B, *, H, W] each, the first ones its scores.
  void add_head(int h, std::initializer_list<std::pair<int, const View*>> maps, int64_t classes,
                int64_t per_cell) {
    DecodeHead& head = args.head[h];
    const View& first = *maps.begin()->second;
    const DecodeHead before = h > 0 ? args.head[h - 1] : DecodeHead();
    for (const auto& [kind, map] : maps) {
      if (map == nullptr) continue;
      const Shape shape{args.batches, -1, first.size(2), first.size(3)};
      check_shape(op, "a map", *map, shape, "[B, channels, H, W] with the B, H and W of the first");
      check(float_type(op, "a map", *map) == args.dtype, op, "maps must have one type", "two");
      const int64_t cells = map->size(2) * map->size(3);
      check(cells < kIndexLimit, op, "maps must have fewer than 2^31 cells", map->shape);
      head.map[kind] = {map->data, map->size(1) * cells, static_cast<int32_t>(cells),
                        static_cast<int32_t>(map->size(3)), 1};
    }
    head.height = static_cast<int32_t>(first.size(2));
    head.width = static_cast<int32_t>(first.size(3));
    head.per_cell = static_cast<int32_t>(per_cell);
    head.first_class = before.first_class + before.classes;
    check(classes >= 1 && head.first_class + classes <= kMostClasses, op,
          "the heads must have 1 to 64 classes", head.first_class + classes);
    head.classes = static_cast<int32_t>(classes);
    head.first_box = before.first_box + before.boxes();
    head.first_pair = before.first_pair + before.boxes() * before.classes;
    check(head.boxes() < kIndexLimit && head.first_pair + head.boxes() * classes < kIndexLimit, op,
          "the maps must have fewer than 2^31 candidates", first.shape);
  }

  // Begins with the maps of scores of all heads.
  void begin(std::span<const View> scores) {
    check(!scores.empty() && scores.size() <= kMostHeads, op, "the heads must be 1 to 8",
          scores.size());
    for (const View& map : scores) {
      check_shape(op, "a map", map, {-1, -1, -1, -1}, "[B, channels, H, W]");
    }
    args.heads = static_cast<int>(scores.size());
    args.batches = scores[0].size(0);
    args.dtype = float_type(op, "a map", scores[0]);
  }
  // The list of a kind, which has a map for each head, or none where `optional`.
  const View* map(std::span<const View> inputs, const char* name, int h, bool optional = false) {
    const auto maps = tensors.list(inputs, name);
    if (optional && maps.empty()) return nullptr;
    check(maps.size() == static_cast<size_t>(args.heads), op,
          std::string(name) + " must be one map a head", maps.size());
    return &maps[static_cast<size_t>(h)];
  }

  Call finish() {
    const auto groups = static_cast<size_t>(args.groups());
    check(thresholds.size() == 1 || thresholds.size() == groups, op,
          "nms_threshold must be one number, or one a group", thresholds.size());
    check(labels.empty() || labels.size() == static_cast<size_t>(args.classes()), op,
          "class_labels must be one label a class, or none", labels.size());
    for (size_t g = 0; g < groups; ++g) {
      args.nms_threshold[g] = static_cast<float>(thresholds[thresholds.size() == 1 ? 0 : g]);
    }
    for (int c = 0; c < args.classes(); ++c) {
      args.label[c] = labels.empty() ? c : static_cast<int32_t>(labels[static_cast<size_t>(c)]);
    }
    const int64_t b = args.batches, rows = args.rows();
    return call(args,
                {{Element::kFloat, {b, rows, args.box_values()}},
                 {Element::kFloat, {b, rows}},
                 {Element::kInt32, {b, rows}},
                 {Element::kInt32, {b}},
                 {Element::kInt32, {b}}},
                &DecodeNmsArgs::boxes, &DecodeNmsArgs::scores, &DecodeNmsArgs::labels,
                &DecodeNmsArgs::count, &DecodeNmsArgs::overflow);
  }
};

Call plan_centers(Decode decode, std::span<const View> inputs) {
  decode.tensors.check_count(inputs);
  const auto heat = decode.tensors.list(inputs, "heatmap");
  decode.begin(heat);
  decode.args.center.velocity = decode.map(inputs, "vel", 0, true) != nullptr;
  constexpr std::pair<const char*, int64_t> kMaps[] = {
      {"offset", 2}, {"z", 1}, {"dim", 3}, {"rot", 2}, {"vel", 2}};
  for (int h = 0; h < decode.args.heads; ++h) {
    const View* maps[5];
    for (size_t k = 0; k < 5; ++k) {
      const auto& [name, channels] = kMaps[k];
      maps[k] = decode.map(inputs, name, h, k == 4);
      if (maps[k] == nullptr) continue;
      check_shape(decode.op, name, *maps[k], {-1, channels, -1, -1}, "[B, channels, H, W]");
    }
    const View& scores = heat[static_cast<size_t>(h)];
    decode.add_head(h,
                    {{kScoreMap, &scores},
                     {kOffsetMap, maps[0]},
                     {kZMap, maps[1]},
                     {kSizeMap, maps[2]},
                     {kRotationMap, maps[3]},
                     {kVelocityMap, maps[4]}},
                    scores.size(1), 1);
  }
  return decode.finish();
}

// Values a box, or bins, of a map; 0 where the channels are no multiple of the anchors.
int64_t per_anchor(const View& map, int64_t anchors) {
  return map.shape.size() == 4 && map.size(1) % anchors == 0 ? map.size(1) / anchors : 0;
}

Call plan_anchors(Decode decode, std::span<const View> inputs) {
  decode.tensors.check_count(inputs);
  const char* const op = decode.op;
  const auto cls = decode.tensors.list(inputs, "cls");
  decode.begin(cls);
  BoxCoder& coder = decode.args.coder;
  for (int h = 0; h < decode.args.heads; ++h) {
    const View& scores = cls[static_cast<size_t>(h)];
    const View &box = *decode.map(inputs, "box", h), &anchors = *decode.map(inputs, "anchors", h);
    const View* const direction = decode.map(inputs, "direction", h, true);
    check_shape(op, "anchors", anchors, {scores.size(2), scores.size(3), -1, 7}, "[H, W, A, 7]");
    check_element(op, "anchors", anchors, {Element::kFloat}, "float32");
    const int64_t each = anchors.size(2);
    check(each >= 1, op, "anchors must be [H, W, A >= 1, 7]", anchors.shape);
    const auto values = static_cast<int>(per_anchor(box, each));
    const auto bins = direction != nullptr ? static_cast<int>(per_anchor(*direction, each)) : 0;
    check(values >= 7 && values <= kMostDeltas && (h == 0 || values == coder.values), op,
          "box must have A * 7, 8, 9 or 10 channels, all heads alike", box.shape);
    check(bins <= 64 && (direction == nullptr || bins >= 1) && (h == 0 || bins == coder.bins), op,
          "direction must have A * bins channels, all heads alike", bins);
    coder.values = values;
    coder.bins = bins;
    decode.add_head(h, {{kScoreMap, &scores}, {kBoxMap, &box}, {kDirectionMap, direction}},
                    per_anchor(scores, each), each);
    decode.args.head[h].anchors = static_cast<const float*>(anchors.data);
  }
  if (coder.bins > 0) coder.period = static_cast<float>(6.283185307179586 / coder.bins);
  return decode.finish();
}

}  // namespace

Planner bind_center_decode_nms(const Attributes& attributes) {
  Decode decode("CenterDecodeNms", attributes,
                {"heatmap[]", "offset[]", "z[]", "dim[]", "rot[]", "vel[]?"});
  DecodeNmsArgs& args = decode.args;
  args.centers = true;
  args.best_class = attributes.integer("best_class") != 0;
  check(!args.best_class || args.group != DecodeGroup::kClass, decode.op,
        "group must be 'task' or 'none' with best_class", "'class'");
  const auto size = attributes.numbers("voxel_size");
  const auto range = attributes.numbers("point_cloud_range");
  check(size.size() >= 2, decode.op, "voxel_size must be (x, y, z), or (x, y)", size.size());
  check(range.size() == 6, decode.op, "point_cloud_range must be six numbers", range.size());
  for (size_t axis = 0; axis < 2; ++axis) {
    args.center.voxel[axis] = static_cast<float>(size[axis]);
    args.center.low[axis] = static_cast<float>(range[axis]);
  }
  args.center.stride = static_cast<float>(attributes.integer("stride"));
  args.center.cos_first =
      choice<bool>(decode.op, attributes, "rot_order", {{"sin_cos", false}, {"cos_sin", true}});
  if (attributes.has("post_range")) {
    const auto limits = attributes.numbers("post_range");
    check(limits.size() == 6 || limits.empty(), decode.op, "post_range must be six numbers",
          limits.size());
    args.has_range = !limits.empty();
    for (size_t k = 0; k < limits.size(); ++k) args.range[k] = static_cast<float>(limits[k]);
  }
  return [decode](std::span<const View> inputs) { return plan_centers(decode, inputs); };
}

Planner bind_anchor_decode_nms(const Attributes& attributes) {
  Decode decode("AnchorDecodeNms", attributes, {"cls[]", "box[]", "direction[]?", "anchors[]"});
  DecodeNmsArgs& args = decode.args;
  args.best_class = args.group != DecodeGroup::kClass;
  args.shared_pre = attributes.integer("shared_pre") != 0;
  check(!args.shared_pre || !args.best_class, decode.op, "group must be 'class' with shared_pre",
        "another");
  args.coder.dir_offset = static_cast<float>(attributes.number("dir_offset"));
  args.coder.dir_limit = static_cast<float>(attributes.number("dir_limit"));
  args.coder.dir_flip = attributes.integer("dir_flip") != 0;
  return [decode](std::span<const View> inputs) { return plan_anchors(decode, inputs); };
}

}  // namespace torchvox::bind
