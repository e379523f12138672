// SPDX-License-Identifier: Apache-2.0
//
// What the ops over the maps of detection heads have in common.
#pragma once

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

inline bool is_map_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat;
}

// The first map says which batch, device and dtype all have.
inline void check_map(const char* op, const char* name, const Tensor& map, const Tensor& first) {
  check_dense(op, name, map);
  check_value(map.dim() == 4, op, {name, " must be [B, channels, H, W] each"}, map.sym_sizes());
  check_type(is_map_type(map.scalar_type()), op, {name, " must be float16, bfloat16 or float32"},
             map.scalar_type());
  check_dtype(op, name, map.scalar_type(), "all maps", first.scalar_type());
  check_size(map.sym_size(0).sym_eq(first.sym_size(0)), op,
             {name, " must have the batch of all maps"}, map.sym_sizes());
  check_device(op, name, map, "all maps", first);
}

// A map of the cells of `score`.
inline void check_beside(const char* op, const char* name, const Tensor& map, const Tensor& score) {
  check_map(op, name, map, score);
  for (int axis = 2; axis < 4; ++axis) {
    check_size(map.sym_size(axis).sym_eq(score.sym_size(axis)), op,
               {name, " must have the H and W of the scores of its head"}, map.sym_sizes());
  }
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

inline Detections empty_detections(const Tensor& like, const DecodeNmsArgs& args,
                                   const c10::SymInt& post) {
  const c10::SymInt batches = like.sym_size(0);
  const c10::SymInt rows = args.global_post ? post : post * args.groups();
  return {empty_beside({batches, rows, args.box_values()}, at::kFloat, like),
          empty_beside({batches, rows}, at::kFloat, like),
          empty_beside({batches, rows}, at::kInt, like), empty_beside({batches}, at::kInt, like),
          empty_beside({batches}, at::kInt, like)};
}

// Runs with concrete sizes; the candidates of a sample must be fewer than 2^31.
inline void run_decode_nms(const char* op, const Tensor& on, const DecodeOptions& options,
                           const Detections& out, DecodeNmsArgs& args) {
  const DecodeHead& last = args.head[args.heads - 1];
  check_value(last.first_pair + last.boxes() * last.classes < kIndexLimit, op,
              "the maps must have fewer than 2^31 cells times anchors times classes",
              last.first_pair + last.boxes() * last.classes);
  args.dtype = dtype_of(on.scalar_type());
  args.batches = on.size(0);
  args.pre = options.pre.expect_int();
  args.post = options.post.expect_int();
  args.boxes = std::get<0>(out).mutable_data_ptr<float>();
  args.scores = std::get<1>(out).mutable_data_ptr<float>();
  args.labels = std::get<2>(out).mutable_data_ptr<int32_t>();
  args.count = std::get<3>(out).mutable_data_ptr<int32_t>();
  args.overflow = std::get<4>(out).mutable_data_ptr<int32_t>();
  run(op, on, args);
}

}  // namespace torchvox
