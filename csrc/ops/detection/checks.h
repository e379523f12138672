// SPDX-License-Identifier: Apache-2.0
//
// What the ops over the maps of detection heads have in common: lists of maps, and the box coder of
// anchors.
#pragma once

#include "csrc/kernels/detection/box_decode.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// boxes, scores, labels, count, overflow
using Detections = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// A list that is not given is an empty one.
template <class T>
c10::ArrayRef<T> given(const std::optional<c10::ArrayRef<T>>& list) {
  return list.value_or(c10::ArrayRef<T>());
}

inline bool is_delta_count(int64_t values) { return values >= 7 && values <= kMostDeltas; }

inline void set_direction(const char* op, double offset, double limit, bool flip, BoxCoder& coder) {
  coder.dir_offset = static_cast<float>(offset);
  coder.dir_limit = static_cast<float>(limit);
  check_value(std::isfinite(coder.dir_offset), op, "dir_offset must be finite in float32", offset);
  check_value(std::isfinite(coder.dir_limit), op, "dir_limit must be finite in float32", limit);
  coder.dir_flip = flip;
  if (coder.bins > 0) coder.period = static_cast<float>(6.283185307179586 / coder.bins);
}

// The map of a head. The first map of all says which batch, device and dtype all have, the first
// one of the head says which cells.
inline void add_map(Inputs& in, const char* name, const Tensor& map, const Tensor& first,
                    const char* layout) {
  check_dense(in.op(), name, map);
  in.add(name, map, Dtypes::kNarrowFloats, layout);
  check_dtype(in.op(), name, map.scalar_type(), "all maps", first.scalar_type());
  check_device(in.op(), name, map, "all maps", first);
}

// A size that a trace is specialized to.
inline int64_t concrete_size(const Tensor& tensor, int64_t axis) {
  return tensor.sym_size(axis).guard_int(__FILE__, __LINE__);
}

inline void check_length(const char* op, const char* name, size_t length, size_t heads) {
  check_value(length == heads, op, {name, " must be one map a head"}, length);
}
inline void check_heads(const char* op, const char* name, at::TensorList maps) {
  check_value(!maps.empty() && maps.size() <= size_t{kMostHeads}, op,
              {name, " must be 1 to 8 maps"}, maps.size());
}

// The map where it lies; a copy where a stride does not fit in 31 bits.
inline HeadMap head_map(const Tensor& map, std::vector<Tensor>& kept) {
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

inline DecodeGroup parse_group(const char* op, std::string_view group) {
  return parse_choice<DecodeGroup>(
      op, "group", group,
      {{"none", DecodeGroup::kAll}, {"task", DecodeGroup::kHead}, {"class", DecodeGroup::kClass}});
}

// The heads have the classes one after the other.
inline void add_classes(const char* op, DecodeHead& head, int64_t classes, int& classes_before) {
  check_value(classes_before + classes <= kMostClasses, op,
              "the heads must have at most 64 classes", classes_before + classes);
  head.classes = static_cast<int32_t>(classes);
  head.first_class = classes_before;
  classes_before += head.classes;
}

// A head of height x width cells, and what precedes it in all heads.
inline void set_cells(DecodeHead& head, int64_t height, int64_t width, int64_t& boxes,
                      int64_t& pairs) {
  head.height = static_cast<int32_t>(height);
  head.width = static_cast<int32_t>(width);
  head.first_box = boxes;
  head.first_pair = pairs;
  boxes += head.boxes();
  pairs += head.boxes() * head.classes;
}

// Sets what all heads share; `args` has its heads and its group already.
inline void set_options(const char* op, const DecodeOptions& options, DecodeNmsArgs& args) {
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

inline Detections make_outputs(const Tensor& like, const c10::SymInt& post, DecodeNmsArgs& args) {
  const c10::SymInt batches = like.sym_size(0);
  const c10::SymInt rows = args.global_post ? post : post * args.groups();
  return {output(args.boxes, {batches, rows, args.box_values()}, like),
          output(args.scores, {batches, rows}, like), output(args.labels, {batches, rows}, like),
          output(args.count, {batches}, like), output(args.overflow, {batches}, like)};
}

// Runs with concrete sizes; the candidates of a sample must be fewer than 2^31.
inline void run_decode_nms(const char* op, const Tensor& on, const DecodeOptions& options,
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

}  // namespace torchvox
