// SPDX-License-Identifier: Apache-2.0
//
// The ops over the maps of detection heads.
#include "csrc/kernels/detection/box_decode.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

// boxes, scores, labels, count, overflow
using Detections = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// A list that is not given is an empty one.
template <class T>
c10::ArrayRef<T> given(const std::optional<c10::ArrayRef<T>>& list) {
  return list.value_or(c10::ArrayRef<T>());
}

bool is_delta_count(int64_t values) { return values >= 7 && values <= kMostDeltas; }

void set_direction(const char* op, double offset, double limit, bool flip, BoxCoder& coder) {
  coder.dir_offset = static_cast<float>(offset);
  coder.dir_limit = static_cast<float>(limit);
  check_value(std::isfinite(coder.dir_offset), op, "dir_offset must be finite in float32", offset);
  check_value(std::isfinite(coder.dir_limit), op, "dir_limit must be finite in float32", limit);
  coder.dir_flip = flip;
  if (coder.bins > 0) coder.period = static_cast<float>(6.283185307179586 / coder.bins);
}

// The map of a head. The first map of all says which batch, device and dtype all have, the first
// one of the head says which cells.
void add_map(Inputs& in, const char* name, const Tensor& map, const Tensor& first,
             const char* layout) {
  check_dense(in.op(), name, map);
  in.add(name, map, Dtypes::kNarrowFloats, layout);
  check_dtype(in.op(), name, map.scalar_type(), "all maps", first.scalar_type());
  check_device(in.op(), name, map, "all maps", first);
}

// A size that a trace is specialized to.
int64_t concrete_size(const Tensor& tensor, int64_t axis) {
  return tensor.sym_size(axis).guard_int(__FILE__, __LINE__);
}

void check_length(const char* op, const char* name, size_t length, size_t heads) {
  check_value(length == heads, op, {name, " must be one map a head"}, length);
}
void check_heads(const char* op, const char* name, at::TensorList maps) {
  check_value(!maps.empty() && maps.size() <= size_t{kMostHeads}, op,
              {name, " must be 1 to 8 maps"}, maps.size());
}

// The map where it lies; a copy where a stride does not fit in 31 bits.
HeadMap head_map(const Tensor& map, std::vector<Tensor>& kept) {
  const auto fits = [](const Tensor& t) {
    int64_t most = 0;
    for (int axis = 1; axis < 4; ++axis) most = std::max(most, t.stride(axis));
    return most < kIndexLimit;
  };
  const Tensor& read = kept.emplace_back(fits(map) ? map : map.contiguous());
  HeadMap out;
  out.data = read.const_data_ptr();
  out.sample_stride = read.stride(0);
  out.channel_stride = static_cast<int32_t>(read.stride(1));
  out.row_stride = static_cast<int32_t>(read.stride(2));
  out.column_stride = static_cast<int32_t>(read.stride(3));
  return out;
}

struct DecodeOptions {
  double score_threshold;
  c10::ArrayRef<double> nms_threshold;
  const c10::SymInt& pre;
  const c10::SymInt& post;
  bool global_post;
  bool closed;
  at::IntArrayRef class_labels;
  std::string_view nms;
};

DecodeGroup parse_group(const char* op, std::string_view group) {
  return parse_choice<DecodeGroup>(
      op, "group", group,
      {{"none", DecodeGroup::kAll}, {"task", DecodeGroup::kHead}, {"class", DecodeGroup::kClass}});
}

// The heads have the classes one after the other.
void add_classes(const char* op, DecodeHead& head, int64_t classes, int& classes_before) {
  check_value(classes_before + classes <= kMostClasses, op,
              "the heads must have at most 64 classes", classes_before + classes);
  head.classes = static_cast<int32_t>(classes);
  head.first_class = classes_before;
  classes_before += head.classes;
}

// A head of height x width cells, and what precedes it in all heads.
void set_cells(DecodeHead& head, int64_t height, int64_t width, int64_t& boxes, int64_t& pairs) {
  head.height = static_cast<int32_t>(height);
  head.width = static_cast<int32_t>(width);
  head.first_box = boxes;
  head.first_pair = pairs;
  boxes += head.boxes();
  pairs += head.boxes() * head.classes;
}

// Sets what all heads share; `args` has its heads and its group already.
void set_options(const char* op, const DecodeOptions& options, DecodeNmsArgs& args) {
  check_value(!std::isnan(options.score_threshold), op, "score_threshold must be a number",
              options.score_threshold);
  check_value(args.classes() <= kMostClasses, op, "the heads must have at most 64 classes",
              args.classes());
  args.circle = parse_word(op, "nms", options.nms, "rotated", "circle");
  const auto groups = static_cast<size_t>(args.groups()), given = options.nms_threshold.size();
  check_value(given == 1 || given == groups, op, "nms_threshold must be one number, or one a group",
              options.nms_threshold);
  check_value(options.class_labels.empty() ||
                  options.class_labels.size() == static_cast<size_t>(args.classes()),
              op, "class_labels must be one label a class, or none", options.class_labels);
  check_count(op, "pre", options.pre);
  check_count(op, "post", options.post);
  args.score_threshold = static_cast<float>(options.score_threshold);
  args.closed = options.closed;
  args.global_post = options.global_post;
  for (size_t g = 0; g < groups; ++g) {
    const double threshold = options.nms_threshold[given == 1 ? 0 : g];
    check_value(threshold >= 0, op, "nms_threshold must be >= 0", threshold);
    args.nms_threshold[g] = static_cast<float>(threshold);
  }
  for (int c = 0; c < args.classes(); ++c) {
    const int64_t label = options.class_labels.empty() ? c : options.class_labels[c];
    check_value(label >= 0 && label < kIndexLimit, op, "class_labels must be in [0, 2^31)", label);
    args.label[c] = static_cast<int32_t>(label);
  }
}

Detections make_outputs(const Tensor& like, const c10::SymInt& post, DecodeNmsArgs& args) {
  const c10::SymInt batches = like.sym_size(0);
  const c10::SymInt rows = args.global_post ? post : post * args.groups();
  return {output(args.boxes, {batches, rows, args.box_values()}, like),
          output(args.scores, {batches, rows}, like), output(args.labels, {batches, rows}, like),
          output(args.count, {batches}, like), output(args.overflow, {batches}, like)};
}

// Runs with concrete sizes; the candidates of a sample must be fewer than 2^31.
void run_decode_nms(const char* op, const Tensor& on, const DecodeOptions& options,
                    DecodeNmsArgs& args) {
  const DecodeHead& last = args.head[args.heads - 1];
  check_value(last.first_pair + last.boxes() * last.classes < kIndexLimit, op,
              "the maps must have fewer than 2^31 cells times anchors times classes",
              last.first_pair + last.boxes() * last.classes);
  args.dtype = dtype_of(on.scalar_type());
  args.batches = on.size(0);
  args.pre = options.pre.expect_int();
  args.post = options.post.expect_int();
  run(op, on, args);
}

constexpr const char* kBoxOp = "box_decode";

// Leading dimensions of `tensor` equal the last ones of deltas.
void check_leading(const char* name, const Tensor& tensor, const Tensor& deltas) {
  const Rule rule{name, " must have the leading dimensions of deltas, or the last of them"};
  check_device(kBoxOp, name, tensor, "deltas", deltas);
  check_value(tensor.dim() >= 1 && tensor.dim() <= deltas.dim(), kBoxOp, rule, tensor.sym_sizes());
  for (int64_t axis = 2; axis <= tensor.dim(); ++axis) {
    check_size(tensor.sym_size(-axis).sym_eq(deltas.sym_size(-axis)), kBoxOp, rule,
               tensor.sym_sizes());
  }
}

Tensor box_decode(const Tensor& deltas, const Tensor& anchors, const OptionalTensor& direction,
                  double dir_offset, double dir_limit, bool dir_flip) {
  check_value(deltas.dim() >= 1, kBoxOp, "deltas must be [.., 7 to 10]", deltas.sym_sizes());
  check_type(deltas.is_floating_point() && deltas.scalar_type() != at::kDouble, kBoxOp,
             "deltas must be float16, bfloat16 or float32", deltas.scalar_type());
  const int64_t values = concrete_size(deltas, -1);
  check_value(is_delta_count(values), kBoxOp, "deltas must be [.., 7 to 10]", deltas.sym_sizes());
  check_leading("anchors", anchors, deltas);
  check_size(anchors.sym_size(-1).sym_eq(7), kBoxOp, "anchors must be [.., 7]",
             anchors.sym_sizes());
  check_type(anchors.scalar_type() == at::kFloat, kBoxOp, "anchors must be float32",
             anchors.scalar_type());
  BoxDecodeArgs args;
  args.coder.values = static_cast<int>(values);
  if (direction) {
    check_value(direction->dim() == deltas.dim(), kBoxOp,
                "direction must be [.., bins] beside deltas", direction->sym_sizes());
    check_leading("direction", *direction, deltas);
    check_dtype(kBoxOp, "direction", direction->scalar_type(), "deltas", deltas.scalar_type());
    const int64_t bins = concrete_size(*direction, -1);
    check_value(bins >= 1 && bins <= 64, kBoxOp, "direction must have 1 to 64 bins", bins);
    args.coder.bins = static_cast<int>(bins);
  }
  set_direction(kBoxOp, dir_offset, dir_limit, dir_flip, args.coder);

  c10::SymDimVector shape(deltas.sym_sizes());
  shape.back() = args.coder.box_values();
  const Tensor boxes = output(args.boxes, shape, deltas);
  if (deltas.is_meta() || boxes.numel() == 0) return boxes;

  Memory memory;
  args.deltas = memory.of(deltas);
  args.direction = memory.of(direction);
  args.dtype = dtype_of(deltas.scalar_type());
  args.anchors = memory.of<float>(anchors);
  args.rows = deltas.numel() / values;
  args.anchor_rows = anchors.numel() / 7;
  run(kBoxOp, deltas, args);
  return boxes;
}

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
  args.center.stride = parse_map(kCenterOp, range, "voxel_size", voxel_size, "stride", stride,
                                 args.center.low, args.center.voxel);
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
  ops.add("box_decode", box_decode, inference_only());
  ops.autocast("box_decode", {{{"deltas", "direction"}}, {"anchors"}});
  ops.add("anchor_decode_nms", anchor_decode_nms, inference_only());
  ops.autocast("anchor_decode_nms", {{{"cls", "box", "direction"}}, {"anchors"}});
  ops.add("center_decode_nms", center_decode_nms, inference_only());
  ops.autocast("center_decode_nms", {{{"heatmap", "offset", "z", "dim", "rot", "vel"}}});
}

}  // namespace
}  // namespace torchvox
