// SPDX-License-Identifier: Apache-2.0
//
// The registered ops for C++ programs: typed calls through torch's dispatcher. The semantics are
// those of the Python functions of the same names; shapes stand beside the outputs.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

extern "C" int torchvox_force_link();

namespace torchvox {
namespace detail {

// Keeps the library linked under --as-needed: nothing else refers to it.
inline const int force_link = torchvox_force_link();

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace detail

using OptionalTensor = std::optional<at::Tensor>;

// Writes the tensors of `state`; counts [1, 16] int64
inline at::Tensor occupancy_integrate_(
    at::TensorList state, const at::Tensor& points, const at::Tensor& origins, double voxel_size,
    at::ArrayRef<double> map_origin, at::ArrayRef<double> sensor, c10::SymInt max_touched = -1,
    const OptionalTensor& origin_index = {}, const OptionalTensor& num_valid = {},
    const OptionalTensor& ray_flags = {},
    std::optional<at::ArrayRef<double>> point_cloud_range = {}, double min_range = 0.,
    double max_range = -1., std::string_view long_rays = "truncate",
    std::string_view rule = "every_ray", const std::optional<c10::List<std::string>>& flags = {},
    double threshold = 0., std::string_view missing = "allocate", const OptionalTensor& stamp = {},
    const OptionalTensor& timestamps = {}, double time_base = 0.,
    std::optional<at::ArrayRef<double>> ndt = {}, const OptionalTensor& intensity = {},
    std::optional<at::ArrayRef<double>> intensity_range = {}) {
  static const auto op =
      detail::op<decltype(occupancy_integrate_)>("torchvox::occupancy_integrate_");
  return op.call(state, points, origins, voxel_size, map_origin, sensor, std::move(max_touched),
                 origin_index, num_valid, ray_flags, point_cloud_range, min_range, max_range,
                 long_rays, rule, flags, threshold, missing, stamp, timestamps, time_base, ndt,
                 intensity, intensity_range);
}

// logodds [N] float32, label [N] int8
inline std::tuple<at::Tensor, at::Tensor> occupancy_query(
    at::TensorList state, const at::Tensor& points, double voxel_size,
    at::ArrayRef<double> map_origin, const OptionalTensor& num_valid = {}, double threshold = 0.,
    std::optional<double> fill = {}) {
  static const auto op = detail::op<decltype(occupancy_query)>("torchvox::occupancy_query");
  return op.call(state, points, voxel_size, map_origin, num_valid, threshold, fill);
}

// logodds [B, nz, ny, nx] float32, label int8
inline std::tuple<at::Tensor, at::Tensor> occupancy_crop(
    at::TensorList state, double voxel_size, at::ArrayRef<double> map_origin,
    at::ArrayRef<double> cell_size, at::ArrayRef<double> point_cloud_range,
    const OptionalTensor& poses = {}, double threshold = 0., std::optional<double> fill = {}) {
  static const auto op = detail::op<decltype(occupancy_crop)>("torchvox::occupancy_crop");
  return op.call(state, voxel_size, map_origin, cell_size, point_cloud_range, poses, threshold,
                 fill);
}

// distance and unseen [N] float32, status [N] int8, indices [N, 4] and unknown [N] int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> occupancy_raycast(
    at::TensorList state, const at::Tensor& points, const at::Tensor& origins, double voxel_size,
    at::ArrayRef<double> map_origin, const OptionalTensor& origin_index = {},
    const OptionalTensor& num_valid = {}, double threshold = 0., bool stop_unknown = false,
    double solid_angle = 1.) {
  static const auto op = detail::op<decltype(occupancy_raycast)>("torchvox::occupancy_raycast");
  return op.call(state, points, origins, voxel_size, map_origin, origin_index, num_valid, threshold,
                 stop_unknown, solid_angle);
}

// logodds [max_out] float32, mean [max_out, 3] float32, indices [max_out, 4] int32, num_samples
// [max_out] int32, counts [1, 8] int64
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> occupancy_extract(
    at::TensorList state, c10::SymInt max_out, std::string_view select = "occupied",
    double threshold = 0.) {
  static const auto op = detail::op<decltype(occupancy_extract)>("torchvox::occupancy_extract");
  return op.call(state, std::move(max_out), select, threshold);
}

// [N, 3] float64
inline at::Tensor transform_points(const at::Tensor& points, const at::Tensor& poses,
                                   const OptionalTensor& pose_index = {}) {
  static const auto op = detail::op<decltype(transform_points)>("torchvox::transform_points");
  return op.call(points, poses, pose_index);
}

// visibility [B, nz, ny, nx] uint8, reached [N] int8, counts [B + 1, 8] int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> ray_visibility(
    const at::Tensor& points, const at::Tensor& origins, at::ArrayRef<double> voxel_size,
    at::ArrayRef<double> point_cloud_range, const OptionalTensor& origin_index = {},
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    const OptionalTensor& ray_flags = {}, const OptionalTensor& blockers = {}) {
  static const auto op = detail::op<decltype(ray_visibility)>("torchvox::ray_visibility");
  return op.call(points, origins, voxel_size, point_cloud_range, origin_index, batch_offsets,
                 num_valid, ray_flags, blockers);
}

// indices [max_out, 4] and ray [max_out] int32, span [max_out, 2] float64, offsets [N + 1] int64,
// counts [1, 8] int64
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> ray_voxels(
    const at::Tensor& points, const at::Tensor& origins, double voxel_size,
    at::ArrayRef<double> map_origin, c10::SymInt max_out, const OptionalTensor& origin_index = {},
    const OptionalTensor& num_valid = {}, const OptionalTensor& ray_flags = {},
    std::optional<at::ArrayRef<double>> point_cloud_range = {}, double min_range = 0.,
    double max_range = -1., std::string_view long_rays = "truncate", bool reverse = false) {
  static const auto op = detail::op<decltype(ray_voxels)>("torchvox::ray_voxels");
  return op.call(points, origins, voxel_size, map_origin, std::move(max_out), origin_index,
                 num_valid, ray_flags, point_cloud_range, min_range, max_range, long_rays, reverse);
}

// keys [max_out] int64 ascending, counts [1, 8] int64
inline std::tuple<at::Tensor, at::Tensor> ray_regions(
    const at::Tensor& points, const at::Tensor& origins, double voxel_size,
    at::ArrayRef<double> map_origin, c10::SymInt max_out, const OptionalTensor& origin_index = {},
    const OptionalTensor& num_valid = {}, const OptionalTensor& ray_flags = {},
    std::optional<at::ArrayRef<double>> point_cloud_range = {}, double min_range = 0.,
    double max_range = -1., std::string_view long_rays = "truncate") {
  static const auto op = detail::op<decltype(ray_regions)>("torchvox::ray_regions");
  return op.call(points, origins, voxel_size, map_origin, std::move(max_out), origin_index,
                 num_valid, ray_flags, point_cloud_range, min_range, max_range, long_rays);
}

// height [B, H, W], counts [B + 1, 4] int32
inline std::tuple<at::Tensor, at::Tensor> bev_max_height(
    const at::Tensor& points, at::ArrayRef<double> point_cloud_range, at::IntArrayRef size,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    std::string_view orientation = "grid", std::optional<at::ScalarType> out_dtype = {},
    double fill = 0., int64_t lowest_code = 1) {
  static const auto op = detail::op<decltype(bev_max_height)>("torchvox::bev_max_height");
  return op.call(points, point_cloud_range, size, batch_offsets, num_valid, orientation, out_dtype,
                 fill, lowest_code);
}

// height [B, H, W], top_index [B, H, W] int32, counts [B + 1, 4] int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> bev_max_height_with_index(
    const at::Tensor& points, at::ArrayRef<double> point_cloud_range, at::IntArrayRef size,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    std::string_view orientation = "grid", std::optional<at::ScalarType> out_dtype = {},
    double fill = 0., int64_t lowest_code = 1) {
  static const auto op =
      detail::op<decltype(bev_max_height_with_index)>("torchvox::bev_max_height_with_index");
  return op.call(points, point_cloud_range, size, batch_offsets, num_valid, orientation, out_dtype,
                 fill, lowest_code);
}

// image [B, planes, H, W] float32, counts [B + 1, 4] int32
inline std::tuple<at::Tensor, at::Tensor> bev_rasterize(
    const at::Tensor& points, at::ArrayRef<double> point_cloud_range, at::IntArrayRef size,
    c10::List<std::string> channels, const OptionalTensor& features = {},
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    std::string_view orientation = "grid", double fill = 0., int64_t density_base = 64) {
  static const auto op = detail::op<decltype(bev_rasterize)>("torchvox::bev_rasterize");
  return op.call(points, point_cloud_range, size, channels, features, batch_offsets, num_valid,
                 orientation, fill, density_base);
}

// idx [B, num_samples] int32, dist2 [B, num_samples]
inline std::tuple<at::Tensor, at::Tensor> furthest_point_sample(
    const at::Tensor& points, c10::SymInt num_samples, const OptionalTensor& lengths = {},
    const OptionalTensor& counts = {}, int64_t start = 0, const OptionalTensor& start_idx = {},
    std::string_view tie = "lowest", int64_t tie_block = 1024, std::string_view dist_order = "pn2",
    std::string_view exhausted = "distinct", std::string_view nonfinite = "skip",
    bool skip_origin = false, std::optional<double> init_dist2 = {}) {
  static const auto op =
      detail::op<decltype(furthest_point_sample)>("torchvox::furthest_point_sample");
  return op.call(points, std::move(num_samples), lengths, counts, start, start_idx, tie, tie_block,
                 dist_order, exhausted, nonfinite, skip_origin, init_dist2);
}

// idx [max_total] int32, dist2 [max_total]
inline std::tuple<at::Tensor, at::Tensor> furthest_point_sample_ragged(
    const at::Tensor& points, const at::Tensor& batch_offsets, const at::Tensor& out_offsets,
    c10::SymInt max_total, int64_t start = 0, const OptionalTensor& start_idx = {},
    std::string_view tie = "lowest", int64_t tie_block = 1024, std::string_view dist_order = "pn2",
    std::string_view exhausted = "distinct", std::string_view nonfinite = "skip",
    bool skip_origin = false, std::optional<double> init_dist2 = {}, bool local_index = false) {
  static const auto op =
      detail::op<decltype(furthest_point_sample_ragged)>("torchvox::furthest_point_sample_ragged");
  return op.call(points, batch_offsets, out_offsets, std::move(max_total), start, start_idx, tie,
                 tie_block, dist_order, exhausted, nonfinite, skip_origin, init_dist2, local_index);
}

// [B, num_samples] int32
inline at::Tensor furthest_point_sample_with_dist(
    const at::Tensor& distances, c10::SymInt num_samples, const OptionalTensor& lengths = {},
    int64_t start = 0, std::string_view tie = "lowest", int64_t tie_block = 1024,
    std::optional<double> init_dist = {}) {
  static const auto op = detail::op<decltype(furthest_point_sample_with_dist)>(
      "torchvox::furthest_point_sample_with_dist");
  return op.call(distances, std::move(num_samples), lengths, start, tie, tie_block, init_dist);
}

// dist2 [B, M, k], idx [B, M, k] int32, count [B, M] int32; packed: [U, k], [U, k], [U]
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> ball_query(
    const at::Tensor& points, const at::Tensor& query, double radius, c10::SymInt k,
    std::optional<double> radius2 = {}, double min_radius = 0., double core_dist2 = 0.,
    bool closed = false, std::string_view fill = "first", std::string_view dist_order = "pn2",
    const OptionalTensor& lengths = {}, const OptionalTensor& query_lengths = {},
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& query_batch_offsets = {},
    bool local_index = false) {
  static const auto op = detail::op<decltype(ball_query)>("torchvox::ball_query");
  return op.call(points, query, radius, std::move(k), radius2, min_radius, core_dist2, closed, fill,
                 dist_order, lengths, query_lengths, batch_offsets, query_batch_offsets,
                 local_index);
}

// offsets [U + 1] int64, index [capacity] int32, dist2 [capacity] or [0], count [1] int64
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> radius_neighbors(
    const at::Tensor& points, const at::Tensor& query, double radius, c10::SymInt capacity,
    std::optional<double> radius2 = {}, double min_radius = 0., double core_dist2 = 0.,
    bool closed = false, std::string_view dist_order = "pn2", bool return_dist2 = true,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& query_batch_offsets = {}) {
  static const auto op = detail::op<decltype(radius_neighbors)>("torchvox::radius_neighbors");
  return op.call(points, query, radius, std::move(capacity), radius2, min_radius, core_dist2,
                 closed, dist_order, return_dist2, batch_offsets, query_batch_offsets);
}

// K the sum of ks: grouped [B, M, K, D + C], idx [B, M, K] int32, count [B, M, radii] int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> query_and_group(
    const at::Tensor& points, const at::Tensor& query, const OptionalTensor& features,
    at::ArrayRef<double> radii, c10::SymIntArrayRef ks, bool use_xyz = true,
    bool normalize_xyz = false, bool features_first = false, bool closed = false,
    std::string_view dist_order = "pn2", const OptionalTensor& lengths = {},
    const OptionalTensor& query_lengths = {}) {
  static const auto op = detail::op<decltype(query_and_group)>("torchvox::query_and_group");
  return op.call(points, query, features, radii, ks, use_xyz, normalize_xyz, features_first, closed,
                 dist_order, lengths, query_lengths);
}

// [B, M, C_out of the last weight]
inline at::Tensor group_mlp_max(const at::Tensor& points, const at::Tensor& query,
                                const OptionalTensor& features, const at::Tensor& idx,
                                const at::Tensor& count, at::TensorList weights,
                                at::TensorList biases, bool use_xyz = true,
                                std::optional<double> normalize_radius = {},
                                bool features_first = false) {
  static const auto op = detail::op<decltype(group_mlp_max)>("torchvox::group_mlp_max");
  return op.call(points, query, features, idx, count, weights, biases, use_xyz, normalize_radius,
                 features_first);
}

// [B, M, C], or [B, C, M] with channels_first
inline at::Tensor gather_points(const at::Tensor& features, const at::Tensor& idx,
                                bool channels_first = false) {
  static const auto op = detail::op<decltype(gather_points)>("torchvox::gather_points");
  return op.call(features, idx, channels_first);
}

// out [R, C], arg [R, C] int32
inline std::tuple<at::Tensor, at::Tensor> segment_reduce(const at::Tensor& src,
                                                         const at::Tensor& offsets,
                                                         std::string_view reduce = "sum",
                                                         const OptionalTensor& index = {}) {
  static const auto op = detail::op<decltype(segment_reduce)>("torchvox::segment_reduce");
  return op.call(src, offsets, reduce, index);
}

// dist2 [B, M, k], idx [B, M, k] int32; packed: [U, k]
inline std::tuple<at::Tensor, at::Tensor> knn(
    const at::Tensor& points, const at::Tensor& query, c10::SymInt k, int64_t norm = 2,
    std::string_view dist_order = "pn2", const OptionalTensor& lengths = {},
    const OptionalTensor& query_lengths = {}, const OptionalTensor& batch_offsets = {},
    const OptionalTensor& query_batch_offsets = {}, bool local_index = false) {
  static const auto op = detail::op<decltype(knn)>("torchvox::knn");
  return op.call(points, query, std::move(k), norm, dist_order, lengths, query_lengths,
                 batch_offsets, query_batch_offsets, local_index);
}

// dist2 [B, M, 3], idx [B, M, 3] int32; packed: [U, 3]
inline std::tuple<at::Tensor, at::Tensor> three_nn(
    const at::Tensor& query, const at::Tensor& points, std::string_view dist_order = "pn2",
    const OptionalTensor& lengths = {}, const OptionalTensor& query_lengths = {},
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& query_batch_offsets = {},
    bool local_index = false) {
  static const auto op = detail::op<decltype(three_nn)>("torchvox::three_nn");
  return op.call(query, points, dist_order, lengths, query_lengths, batch_offsets,
                 query_batch_offsets, local_index);
}

// [B, M, k, C], or [B, C, M, k] with channels_first; packed: [U, k, C]
inline at::Tensor group_points(const at::Tensor& features, const at::Tensor& idx,
                               bool channels_first = false,
                               const OptionalTensor& batch_offsets = {},
                               const OptionalTensor& query_batch_offsets = {},
                               bool local_index = false) {
  static const auto op = detail::op<decltype(group_points)>("torchvox::group_points");
  return op.call(features, idx, channels_first, batch_offsets, query_batch_offsets, local_index);
}

// int32 in the shape of idx
inline at::Tensor neighbor_rows(const at::Tensor& idx, c10::SymInt num_points,
                                const OptionalTensor& count = {},
                                const OptionalTensor& batch_offsets = {},
                                const OptionalTensor& query_batch_offsets = {},
                                bool local_index = false) {
  static const auto op = detail::op<decltype(neighbor_rows)>("torchvox::neighbor_rows");
  return op.call(idx, std::move(num_points), count, batch_offsets, query_batch_offsets,
                 local_index);
}

// [B, M, C], or [B, C, M] with channels_first; packed: [U, C]
inline at::Tensor three_interpolate(const at::Tensor& features, const at::Tensor& idx,
                                    const at::Tensor& weight, bool channels_first = false,
                                    const OptionalTensor& batch_offsets = {},
                                    const OptionalTensor& query_batch_offsets = {},
                                    bool local_index = false) {
  static const auto op = detail::op<decltype(three_interpolate)>("torchvox::three_interpolate");
  return op.call(features, idx, weight, channels_first, batch_offsets, query_batch_offsets,
                 local_index);
}

// [.., 3], as dist2
inline at::Tensor interpolation_weights(const at::Tensor& dist2, double eps = 1e-8,
                                        std::string_view weight = "dist") {
  static const auto op =
      detail::op<decltype(interpolation_weights)>("torchvox::interpolation_weights");
  return op.call(dist2, eps, weight);
}

// [B, M, C]
inline at::Tensor interpolate_features(const at::Tensor& query, const at::Tensor& points,
                                       const at::Tensor& features, double eps = 1e-8,
                                       std::string_view weight = "dist",
                                       const OptionalTensor& lengths = {},
                                       const OptionalTensor& query_lengths = {}) {
  static const auto op =
      detail::op<decltype(interpolate_features)>("torchvox::interpolate_features");
  return op.call(query, points, features, eps, weight, lengths, query_lengths);
}

// [B, O, ny, nx], channels_last
inline at::Tensor pillar_encode(const at::Tensor& points, const at::Tensor& indices,
                                const at::Tensor& num_points, const at::Tensor& point_voxel,
                                const at::Tensor& point_slot, const at::Tensor& weight,
                                const at::Tensor& bias, at::ArrayRef<double> voxel_size,
                                at::ArrayRef<double> point_cloud_range, int64_t max_points,
                                c10::SymInt batch_size, int64_t center_axes = 3,
                                bool legacy = false, std::string_view pad_semantics = "reference",
                                std::optional<at::ScalarType> out_dtype = {}) {
  static const auto op = detail::op<decltype(pillar_encode)>("torchvox::pillar_encode");
  return op.call(points, indices, num_points, point_voxel, point_slot, weight, bias, voxel_size,
                 point_cloud_range, max_points, std::move(batch_size), center_axes, legacy,
                 pad_semantics, out_dtype);
}

// [(D + 1)(D + 2) / 2] float64
inline at::Tensor pillar_moments(const at::Tensor& points, const at::Tensor& indices,
                                 const at::Tensor& num_points, const at::Tensor& point_voxel,
                                 const at::Tensor& point_slot, at::ArrayRef<double> voxel_size,
                                 at::ArrayRef<double> point_cloud_range, int64_t max_points,
                                 int64_t center_axes = 3, bool legacy = false,
                                 std::string_view pad_semantics = "reference") {
  static const auto op = detail::op<decltype(pillar_moments)>("torchvox::pillar_moments");
  return op.call(points, indices, num_points, point_voxel, point_slot, voxel_size,
                 point_cloud_range, max_points, center_axes, legacy, pad_semantics);
}

// folded weight [O, D] and bias [O], mean [O], unbiased variance [O]
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> pillar_norm(
    const at::Tensor& moments, const at::Tensor& weight, const at::Tensor& gamma,
    const at::Tensor& beta, double eps) {
  static const auto op = detail::op<decltype(pillar_norm)>("torchvox::pillar_norm");
  return op.call(moments, weight, gamma, beta, eps);
}

// [B, C, ny, nx], channels_last; size is (nx, ny)
inline at::Tensor pillar_scatter(const at::Tensor& feats, const at::Tensor& indices,
                                 c10::SymInt batch_size, at::IntArrayRef size) {
  static const auto op = detail::op<decltype(pillar_scatter)>("torchvox::pillar_scatter");
  return op.call(feats, indices, std::move(batch_size), size);
}

// C = B * max_voxels, or N: features [C, P, F] or [C, F], indices [C, 4] int32 (b, z, y, x),
// num_points [C] int32, point_voxel [N] int32, counts [B + 1, 8] int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> voxelize(
    const at::Tensor& points, at::ArrayRef<double> voxel_size,
    at::ArrayRef<double> point_cloud_range, int64_t max_points, c10::SymInt max_voxels,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    std::string_view reduce = "none", std::string_view order = "first",
    std::string_view bounds = "grid", std::optional<at::ScalarType> out_dtype = {},
    bool center_relative = false) {
  static const auto op = detail::op<decltype(voxelize)>("torchvox::voxelize");
  return op.call(points, voxel_size, point_cloud_range, max_points, std::move(max_voxels),
                 batch_offsets, num_valid, reduce, order, bounds, out_dtype, center_relative);
}

// indices [C, 4], num_points [C], point_voxel [N], point_slot [N], counts [B + 1, 8], all int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> voxel_map(
    const at::Tensor& points, at::ArrayRef<double> voxel_size,
    at::ArrayRef<double> point_cloud_range, int64_t max_points, c10::SymInt max_voxels,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    std::string_view order = "first", std::string_view bounds = "grid") {
  static const auto op = detail::op<decltype(voxel_map)>("torchvox::voxel_map");
  return op.call(points, voxel_size, point_cloud_range, max_points, std::move(max_voxels),
                 batch_offsets, num_valid, order, bounds);
}

// (nx, ny, nz)
inline std::vector<int64_t> grid_size(at::ArrayRef<double> voxel_size,
                                      at::ArrayRef<double> point_cloud_range) {
  static const auto op = detail::op<decltype(grid_size)>("torchvox::grid_size");
  return op.call(voxel_size, point_cloud_range);
}

// offsets [num_rows + 1] int32, perm [N] int32
inline std::tuple<at::Tensor, at::Tensor> voxel_csr(const at::Tensor& point_voxel,
                                                    c10::SymInt num_rows) {
  static const auto op = detail::op<decltype(voxel_csr)>("torchvox::voxel_csr");
  return op.call(point_voxel, std::move(num_rows));
}

// out [num_rows, C], arg [num_rows, C] int32 for max and min, else [0]
inline std::tuple<at::Tensor, at::Tensor> voxel_scatter(const at::Tensor& feats,
                                                        const at::Tensor& point_voxel,
                                                        c10::SymInt num_rows,
                                                        std::string_view reduce = "mean",
                                                        const OptionalTensor& offsets = {},
                                                        const OptionalTensor& perm = {}) {
  static const auto op = detail::op<decltype(voxel_scatter)>("torchvox::voxel_scatter");
  return op.call(feats, point_voxel, std::move(num_rows), reduce, offsets, perm);
}

// keys [N] int64, counts [B + 1, 3] int32: keyed, outside, not finite
inline std::tuple<at::Tensor, at::Tensor> voxel_keys(
    const at::Tensor& points, at::ArrayRef<double> voxel_size,
    std::optional<at::ArrayRef<double>> origin = {}, std::optional<at::IntArrayRef> lower = {},
    int64_t bits = -1, std::string_view layout = "morton", const OptionalTensor& batch_offsets = {},
    const OptionalTensor& num_valid = {}) {
  static const auto op = detail::op<decltype(voxel_keys)>("torchvox::voxel_keys");
  return op.call(points, voxel_size, origin, lower, bits, layout, batch_offsets, num_valid);
}

// [R, 4] int32: b, z, y, x
inline at::Tensor voxel_cells(const at::Tensor& keys, int64_t bits, at::IntArrayRef lower,
                              std::string_view layout = "morton") {
  static const auto op = detail::op<decltype(voxel_cells)>("torchvox::voxel_cells");
  return op.call(keys, bits, lower, layout);
}

// row_keys [N] int64; offsets [N + 1], perm [N], point_voxel [N], counts [2] (rows, points) int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> voxel_group(
    const at::Tensor& keys, int64_t key_bits = 63, std::string_view order = "first",
    std::string_view backend = "auto") {
  static const auto op = detail::op<decltype(voxel_group)>("torchvox::voxel_group");
  return op.call(keys, key_bits, order, backend);
}

// [R, C] of integers, [R, 3 * C] of floats, int64
inline at::Tensor voxel_sum(const at::Tensor& values, const at::Tensor& offsets,
                            const at::Tensor& perm) {
  static const auto op = detail::op<decltype(voxel_sum)>("torchvox::voxel_sum");
  return op.call(values, offsets, perm);
}

// [R, C] as values
inline at::Tensor voxel_mean(const at::Tensor& values, const at::Tensor& offsets,
                             const at::Tensor& perm) {
  static const auto op = detail::op<decltype(voxel_mean)>("torchvox::voxel_mean");
  return op.call(values, offsets, perm);
}

// [R, C] of dtype
inline at::Tensor voxel_mean_of_sums(const at::Tensor& sums, const at::Tensor& num_points,
                                     at::ScalarType dtype) {
  static const auto op = detail::op<decltype(voxel_mean_of_sums)>("torchvox::voxel_mean_of_sums");
  return op.call(sums, num_points, dtype);
}

// out [N, C] as points; indices [N, 4], num_points [N], representative [N], point_voxel [N],
// counts [B + 1, 4] (rows, points in rows, outside, not finite) int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
voxel_downsample(const at::Tensor& points, at::ArrayRef<double> voxel_size,
                 std::optional<at::ArrayRef<double>> origin = {},
                 std::optional<at::IntArrayRef> lower = {}, int64_t bits = -1,
                 std::string_view order = "first", std::string_view backend = "auto",
                 const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {}) {
  static const auto op = detail::op<decltype(voxel_downsample)>("torchvox::voxel_downsample");
  return op.call(points, voxel_size, origin, lower, bits, order, backend, batch_offsets, num_valid);
}

// indices [N, K] as cells; num_points [N], point_voxel [N], offsets [N + 1], perm [N], counts [2]
// (rows, points) int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
unique_cells(const at::Tensor& cells, int64_t bits = -1, std::string_view order = "first") {
  static const auto op = detail::op<decltype(unique_cells)>("torchvox::unique_cells");
  return op.call(cells, bits, order);
}

// codes, order and inverse [O, N] int64
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> serialize(
    const at::Tensor& cells, c10::List<std::string> order, int64_t depth = 16,
    const OptionalTensor& batch_offsets = {}, const OptionalTensor& num_valid = {},
    const OptionalTensor& batch_index = {}) {
  static const auto op = detail::op<decltype(serialize)>("torchvox::serialize");
  return op.call(cells, std::move(order), depth, batch_offsets, num_valid, batch_index);
}

// [.., 7 or 9]
inline at::Tensor box_decode(const at::Tensor& deltas, const at::Tensor& anchors,
                             const OptionalTensor& direction = {}, double dir_offset = 0.,
                             double dir_limit = 0., bool dir_flip = false) {
  static const auto op = detail::op<decltype(box_decode)>("torchvox::box_decode");
  return op.call(deltas, anchors, direction, dir_offset, dir_limit, dir_flip);
}

// boxes [B, K, 7 or 9], scores [B, K], labels [B, K] int32, count [B] int32, overflow [B] int32
using Detections = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

inline Detections anchor_decode_nms(
    at::TensorList cls, at::TensorList box, std::optional<at::TensorList> direction,
    at::TensorList anchors, double score_threshold, at::ArrayRef<double> nms_threshold,
    c10::SymInt pre, c10::SymInt post, std::string_view group = "none", bool shared_pre = false,
    bool global_post = false, bool closed = true, double dir_offset = 0., double dir_limit = 0.,
    bool dir_flip = false, std::optional<at::IntArrayRef> class_labels = {},
    std::string_view nms = "rotated") {
  static const auto op = detail::op<decltype(anchor_decode_nms)>("torchvox::anchor_decode_nms");
  return op.call(cls, box, direction, anchors, score_threshold, nms_threshold, std::move(pre),
                 std::move(post), group, shared_pre, global_post, closed, dir_offset, dir_limit,
                 dir_flip, class_labels, nms);
}

inline Detections center_decode_nms(
    at::TensorList heatmap, at::TensorList offset, at::TensorList z, at::TensorList dim,
    at::TensorList rot, std::optional<at::TensorList> vel, at::ArrayRef<double> voxel_size,
    at::ArrayRef<double> point_cloud_range, int64_t stride, double score_threshold,
    at::ArrayRef<double> nms_threshold, c10::SymInt pre, c10::SymInt post,
    std::string_view group = "task", bool global_post = false, bool best_class = false,
    bool closed = false, std::optional<at::ArrayRef<double>> post_range = {},
    std::string_view rot_order = "sin_cos", std::optional<at::IntArrayRef> class_labels = {},
    std::string_view nms = "rotated") {
  static const auto op = detail::op<decltype(center_decode_nms)>("torchvox::center_decode_nms");
  return op.call(heatmap, offset, z, dim, rot, vel, voxel_size, point_cloud_range, stride,
                 score_threshold, nms_threshold, std::move(pre), std::move(post), group,
                 global_post, best_class, closed, post_range, rot_order, class_labels, nms);
}

// [N, M] or [B, N, M]; paired: [N] or [B, N]
inline at::Tensor rotated_iou(const at::Tensor& a, const at::Tensor& b,
                              std::string_view mode = "bev", bool paired = false,
                              std::string_view metric = "iou") {
  static const auto op = detail::op<decltype(rotated_iou)>("torchvox::rotated_iou");
  return op.call(a, b, mode, paired, metric);
}

// index [B, G, k] int32, count [B, G] int32; with a grid [B, G, cells, k] and [B, G, cells]
inline std::tuple<at::Tensor, at::Tensor> box_query(const at::Tensor& points,
                                                    const at::Tensor& boxes, c10::SymInt k,
                                                    std::optional<at::IntArrayRef> grid = {},
                                                    double margin = 0.,
                                                    const OptionalTensor& lengths = {},
                                                    const OptionalTensor& box_lengths = {}) {
  static const auto op = detail::op<decltype(box_query)>("torchvox::box_query");
  return op.call(points, boxes, std::move(k), grid, margin, lengths, box_lengths);
}

// index [B, N] int32, mask [B, G, N] bool or count [B, G] int32
inline at::Tensor points_in_boxes(const at::Tensor& points, const at::Tensor& boxes,
                                  std::string_view mode = "index", double margin = 0.,
                                  const OptionalTensor& lengths = {},
                                  const OptionalTensor& box_lengths = {}) {
  static const auto op = detail::op<decltype(points_in_boxes)>("torchvox::points_in_boxes");
  return op.call(points, boxes, mode, margin, lengths, box_lengths);
}

// index [B, max_out] int32, count [B] int32
inline std::tuple<at::Tensor, at::Tensor> rotated_nms(const at::Tensor& boxes,
                                                      const at::Tensor& scores, double threshold,
                                                      c10::SymInt max_out,
                                                      const OptionalTensor& group = {},
                                                      const OptionalTensor& lengths = {},
                                                      std::string_view mode = "rotated") {
  static const auto op = detail::op<decltype(rotated_nms)>("torchvox::rotated_nms");
  return op.call(boxes, scores, threshold, std::move(max_out), group, lengths, mode);
}

// choice [B, K] int32
inline at::Tensor place_boxes(const at::Tensor& boxes, const at::Tensor& candidates,
                              const at::Tensor& group, const OptionalTensor& lengths = {},
                              std::string_view mode = "both", const OptionalTensor& replaces = {}) {
  static const auto op = detail::op<decltype(place_boxes)>("torchvox::place_boxes");
  return op.call(boxes, candidates, group, lengths, mode, replaces);
}

// assigned [B, H, W, A] int32, num_pos [B] int32
inline std::tuple<at::Tensor, at::Tensor> anchor_targets(
    const at::Tensor& boxes, const at::Tensor& labels, const OptionalTensor& weight,
    const OptionalTensor& num_boxes, const at::Tensor& anchors, at::IntArrayRef class_of_anchor,
    at::ArrayRef<double> matched, at::ArrayRef<double> unmatched, std::string_view mode = "pcdet",
    std::optional<at::ArrayRef<double>> min_pos = {}) {
  static const auto op = detail::op<decltype(anchor_targets)>("torchvox::anchor_targets");
  return op.call(boxes, labels, weight, num_boxes, anchors, class_of_anchor, matched, unmatched,
                 mode, min_pos);
}

// heatmap [B, classes, H, W] float32, cell and box [B, tasks, max_objects] int32, count [B, tasks]
// int32
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> center_targets(
    const at::Tensor& boxes, const at::Tensor& labels, const OptionalTensor& weight,
    const OptionalTensor& num_boxes, at::ArrayRef<double> point_cloud_range,
    at::ArrayRef<double> pillar_size, int64_t cells, at::IntArrayRef size,
    at::IntArrayRef task_of_class, c10::SymInt max_objects = 500, double overlap = 0.1,
    int64_t min_radius = 2) {
  static const auto op = detail::op<decltype(center_targets)>("torchvox::center_targets");
  return op.call(boxes, labels, weight, num_boxes, point_cloud_range, pillar_size, cells, size,
                 task_of_class, std::move(max_objects), overlap, min_radius);
}

// [B, 3]: sums over the anchors of a sample, of classes, boxes and directions
inline at::Tensor anchor_loss(const at::Tensor& cls, const at::Tensor& box,
                              const OptionalTensor& direction, const at::Tensor& anchors,
                              const at::Tensor& boxes, const at::Tensor& labels,
                              const at::Tensor& assigned, double dir_offset = 0.,
                              double dir_limit = 0.,
                              std::optional<at::ArrayRef<double>> code_weights = {},
                              double beta = 1. / 9, double negative_weight = 1.,
                              std::string_view mode = "pcdet") {
  static const auto op = detail::op<decltype(anchor_loss)>("torchvox::anchor_loss");
  return op.call(cls, box, direction, anchors, boxes, labels, assigned, dir_offset, dir_limit,
                 code_weights, beta, negative_weight, mode);
}

// empty [C] bool, counts [1, 8] int64
inline std::tuple<at::Tensor, at::Tensor> occupancy_decay_(at::TensorList state, int64_t factor,
                                                           int64_t step, int64_t forget,
                                                           const OptionalTensor& mask = {}) {
  static const auto op = detail::op<decltype(occupancy_decay_)>("torchvox::occupancy_decay_");
  return op.call(state, factor, step, forget, mask);
}

// counts [1, 8] int64
inline at::Tensor occupancy_remove_(at::TensorList state, const at::Tensor& mask) {
  static const auto op = detail::op<decltype(occupancy_remove_)>("torchvox::occupancy_remove_");
  return op.call(state, mask);
}

// counts [1, 8] int64
inline at::Tensor occupancy_insert_(at::TensorList state, const at::Tensor& keys,
                                    at::TensorList layers, at::ArrayRef<double> sensor,
                                    std::string_view merge = "add",
                                    const OptionalTensor& num_valid = {}) {
  static const auto op = detail::op<decltype(occupancy_insert_)>("torchvox::occupancy_insert_");
  return op.call(state, keys, layers, sensor, merge, num_valid);
}

}  // namespace torchvox
