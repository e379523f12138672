// SPDX-License-Identifier: Apache-2.0
//
// The one table of schemas, which configs/cmake/cpp_header.py reads too: the comment above a schema
// says what its outputs are. N points of C columns, B samples, H x W cells.
#include "csrc/ops/core/register.h"

#include <torch/library.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "torchvox.h"

namespace torchvox {

namespace {

// The schema of the op `of` under another name, with other outputs.
std::string variant(const std::vector<std::string>& table, const std::string& name,
                    const std::string& of, const std::string& outputs) {
  const auto schema = std::find_if(table.begin(), table.end(),
                                   [&](const auto& s) { return s.rfind(of + "(", 0) == 0; });
  const size_t arguments = of.size(), arrow = schema->find(" -> ");
  return name + schema->substr(arguments, arrow - arguments) + " -> " + outputs;
}

std::string in_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string line, word;
  while (words >> word) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::vector<std::string> make_schemas() {
  // clang-format off
  std::vector<std::string> table = {
      // ---- voxel
      // features [C, P, F] or [C, F], indices [C, 4] int32 (b, z, y, x), num_points [C] int32,
      // point_voxel [N] int32, counts [B + 1, 8] int32; C is B * max_voxels, or N
      R"(voxelize(Tensor points, float[] voxel_size, float[] point_cloud_range, int max_points,
          SymInt max_voxels, *, Tensor? batch_offsets=None, Tensor? num_valid=None,
          str reduce="none", str order="first", str bounds="grid", ScalarType? out_dtype=None,
          bool center_relative=False, str finite="xyz") -> (Tensor features, Tensor indices,
          Tensor num_points, Tensor point_voxel, Tensor counts))",
      // [N, F]
      R"(_voxelize_backward(Tensor grad, Tensor point_voxel, Tensor point_slot, Tensor num_points,
          Tensor arg, str reduce, ScalarType dtype) -> Tensor)",
      // indices [C, 4], num_points [C], point_voxel [N], point_slot [N], counts [B + 1, 8], all
      // int32
      R"(voxel_map(Tensor points, float[] voxel_size, float[] point_cloud_range, int max_points,
          SymInt max_voxels, *, Tensor? batch_offsets=None, Tensor? num_valid=None,
          str order="first", str bounds="grid", str finite="xyz") -> (Tensor indices,
          Tensor num_points, Tensor point_voxel, Tensor point_slot, Tensor counts))",
      // (nx, ny, nz)
      R"(grid_size(float[] voxel_size, float[] point_cloud_range) -> int[])",
      // offsets [num_rows + 1] int32, perm [N] int32
      R"(voxel_csr(Tensor point_voxel, SymInt num_rows) -> (Tensor offsets, Tensor perm))",
      // out [num_rows, C], arg [num_rows, C] int32 for max and min, else [0]
      R"(voxel_scatter(Tensor feats, Tensor point_voxel, SymInt num_rows, str reduce="mean", *,
          Tensor? offsets=None, Tensor? perm=None) -> (Tensor out, Tensor arg))",
      // [N, C]
      R"(_voxel_scatter_backward(Tensor grad, Tensor point_voxel, Tensor offsets, Tensor arg,
          str reduce) -> Tensor)",

      // ---- filter
      // keys [N] int64, counts [B + 1, 3] int32: keyed, outside, not finite
      R"(voxel_keys(Tensor points, float[] voxel_size, *, float[]? origin=None, int[]? lower=None,
          int bits=-1, str layout="morton", Tensor? batch_offsets=None, Tensor? num_valid=None)
          -> (Tensor keys, Tensor counts))",
      // [R, 4] int32: b, z, y, x
      R"(voxel_cells(Tensor keys, int bits, int[] lower, *, str layout="morton") -> Tensor)",
      // row_keys [N] int64; offsets [N + 1], perm [N], point_voxel [N], counts [2] (rows, points)
      // int32
      R"(voxel_group(Tensor keys, *, int key_bits=63, str order="first", str backend="auto")
          -> (Tensor row_keys, Tensor offsets, Tensor perm, Tensor point_voxel, Tensor counts))",
      // [R, C] of integers, [R, 3 * C] of floats, int64
      R"(voxel_sum(Tensor values, Tensor offsets, Tensor perm) -> Tensor)",
      // [R, C] as values
      R"(voxel_mean(Tensor values, Tensor offsets, Tensor perm) -> Tensor)",
      // [R, C] of dtype
      R"(voxel_mean_of_sums(Tensor sums, Tensor num_points, ScalarType dtype) -> Tensor)",
      // out [N, C] as points; indices [N, 4], num_points [N], representative [N], point_voxel [N],
      // counts [B + 1, 4] (rows, points in rows, outside, not finite) int32
      R"(voxel_downsample(Tensor points, float[] voxel_size, *, float[]? origin=None,
          int[]? lower=None, int bits=-1, str order="first", str backend="auto",
          Tensor? batch_offsets=None, Tensor? num_valid=None) -> (Tensor out, Tensor indices,
          Tensor num_points, Tensor representative, Tensor point_voxel, Tensor counts))",

      // ---- cells
      // indices [N, K] as cells; num_points [N], point_voxel [N], offsets [N + 1], perm [N], counts
      // [2] (rows, points) int32
      R"(unique_cells(Tensor cells, int bits=-1, str order="first") -> (Tensor indices,
          Tensor num_points, Tensor point_voxel, Tensor offsets, Tensor perm, Tensor counts))",
      // codes, order and inverse [O, N] int64
      R"(serialize(Tensor cells, str[] order, *, int depth=16, Tensor? batch_offsets=None,
          Tensor? num_valid=None, Tensor? batch_index=None) -> (Tensor codes, Tensor order,
          Tensor inverse))",

      // ---- occupancy
      // Writes the tensors of `state`; counts [1, 16] int64
      R"(occupancy_integrate_(Tensor(a!)[] state, Tensor points, Tensor origins, float voxel_size,
          float[] map_origin, float[] sensor, SymInt max_touched=-1, *, Tensor? origin_index=None,
          Tensor? num_valid=None, Tensor? ray_flags=None, float[]? point_cloud_range=None,
          float min_range=0., float max_range=-1., str long_rays="truncate", str rule="every_ray",
          str[]? flags=None, float threshold=0., str missing="allocate", Tensor? stamp=None,
          Tensor? timestamps=None, float time_base=0., float[]? ndt=None, Tensor? intensity=None,
          float[]? intensity_range=None) -> Tensor)",
      // logodds [N] float32, label [N] int8
      R"(occupancy_query(Tensor[] state, Tensor points, float voxel_size, float[] map_origin, *,
          Tensor? num_valid=None, float threshold=0., float? fill=None) -> (Tensor logodds,
          Tensor label))",
      // logodds [B, nz, ny, nx] float32, label int8
      R"(occupancy_crop(Tensor[] state, float voxel_size, float[] map_origin, float[] cell_size,
          float[] point_cloud_range, *, Tensor? poses=None, float threshold=0., float? fill=None)
          -> (Tensor logodds, Tensor label))",
      // distance and unseen [N] float32, status [N] int8, indices [N, 4] and unknown [N] int32
      R"(occupancy_raycast(Tensor[] state, Tensor points, Tensor origins, float voxel_size,
          float[] map_origin, *, Tensor? origin_index=None, Tensor? num_valid=None,
          float threshold=0., bool stop_unknown=False, float solid_angle=1.) -> (Tensor distance,
          Tensor unseen, Tensor status, Tensor indices, Tensor unknown))",
      // logodds [max_out] float32, mean [max_out, 3] float32, indices [max_out, 4] int32,
      // num_samples [max_out] int32, counts [1, 8] int64
      R"(occupancy_extract(Tensor[] state, SymInt max_out, *, str select="occupied",
          float threshold=0.) -> (Tensor logodds, Tensor mean, Tensor indices, Tensor num_samples,
          Tensor counts))",
      // empty [C] bool, counts [1, 8] int64
      R"(occupancy_decay_(Tensor(a!)[] state, int factor, int step, int forget, *,
          Tensor? mask=None) -> (Tensor empty, Tensor counts))",
      // counts [1, 8] int64
      R"(occupancy_remove_(Tensor(a!)[] state, Tensor mask) -> Tensor)",
      // counts [1, 8] int64
      R"(occupancy_insert_(Tensor(a!)[] state, Tensor keys, Tensor[] layers, *, float[] sensor,
          str merge="add", Tensor? num_valid=None) -> Tensor)",

      // ---- rays
      // [N, 3] float64
      R"(transform_points(Tensor points, Tensor poses, *, Tensor? pose_index=None) -> Tensor)",
      // [L * N, C] or, with age, [L * N, C + 1]; [1] int32; [1 + S, 4] int32
      R"(merge_sweeps(Tensor points, Tensor poses, *, Tensor? lengths=None, Tensor? order=None,
          Tensor? age=None, Tensor? times=None, Tensor? knots=None, float[]? drop_boxes=None)
          -> (Tensor points, Tensor num_points, Tensor counts))",
      // as points; [B] int32; [1 + B, 5] int32
      R"(crop_points(Tensor points, *, Tensor? lengths=None, float[]? keep_range=None,
          float[]? drop_boxes=None, str finite="xyz") -> (Tensor points, Tensor num_points,
          Tensor counts))",
      // [.., bytes // point_step, columns] float32
      R"(unpack_points(Tensor data, int point_step, int[] offsets, str[] types, *,
          Tensor? shift=None, Tensor? scale=None) -> Tensor)",
      // visibility [B, nz, ny, nx] uint8, reached [N] int8, counts [B + 1, 8] int32
      R"(ray_visibility(Tensor points, Tensor origins, float[] voxel_size,
          float[] point_cloud_range, *, Tensor? origin_index=None, Tensor? batch_offsets=None,
          Tensor? num_valid=None, Tensor? ray_flags=None, Tensor? blockers=None)
          -> (Tensor visibility, Tensor reached, Tensor counts))",
      // indices [max_out, 4] and ray [max_out] int32, span [max_out, 2] float64, offsets [N + 1]
      // int64, counts [1, 8] int64
      R"(ray_voxels(Tensor points, Tensor origins, float voxel_size, float[] map_origin,
          SymInt max_out, *, Tensor? origin_index=None, Tensor? num_valid=None,
          Tensor? ray_flags=None, float[]? point_cloud_range=None, float min_range=0.,
          float max_range=-1., str long_rays="truncate", bool reverse=False) -> (Tensor indices,
          Tensor ray, Tensor span, Tensor offsets, Tensor counts))",
      // keys [max_out] int64 ascending, counts [1, 8] int64
      R"(ray_regions(Tensor points, Tensor origins, float voxel_size, float[] map_origin,
          SymInt max_out, *, Tensor? origin_index=None, Tensor? num_valid=None,
          Tensor? ray_flags=None, float[]? point_cloud_range=None, float min_range=0.,
          float max_range=-1., str long_rays="truncate") -> (Tensor keys, Tensor counts))",

      // ---- bev
      // height [B, H, W], counts [B + 1, 4] int32
      R"(bev_max_height(Tensor points, float[] point_cloud_range, int[] size, *,
          Tensor? batch_offsets=None, Tensor? num_valid=None, str orientation="grid",
          ScalarType? out_dtype=None, float fill=0., int lowest_code=1) -> (Tensor height,
          Tensor counts))",
      // height [B, H, W], top_index [B, H, W] int32, counts [B + 1, 4] int32
      R"(bev_max_height_with_index(Tensor points, float[] point_cloud_range, int[] size, *,
          Tensor? batch_offsets=None, Tensor? num_valid=None, str orientation="grid",
          ScalarType? out_dtype=None, float fill=0., int lowest_code=1) -> (Tensor height,
          Tensor top_index, Tensor counts))",
      // image [B, planes, H, W] float32, counts [B + 1, 4] int32
      R"(bev_rasterize(Tensor points, float[] point_cloud_range, int[] size, str[] channels, *,
          Tensor? features=None, Tensor? batch_offsets=None, Tensor? num_valid=None,
          str orientation="grid", float fill=0., int density_base=64) -> (Tensor image,
          Tensor counts))",
      // [N, C]
      R"(_bev_max_height_backward(Tensor grad_height, Tensor top_index, Tensor points,
          float[] point_cloud_range, int[] size, *, Tensor? batch_offsets=None,
          Tensor? num_valid=None, str orientation="grid") -> Tensor)",
      // grad_points [N, C], grad_features as features, or [0]
      R"(_bev_rasterize_backward(Tensor grad_image, Tensor points, float[] point_cloud_range,
          int[] size, str[] channels, *, Tensor? features=None, Tensor? batch_offsets=None,
          Tensor? num_valid=None, str orientation="grid") -> (Tensor grad_points,
          Tensor grad_features))",

      // ---- sampling
      // idx [B, num_samples] int32, dist2 [B, num_samples]
      R"(furthest_point_sample(Tensor points, SymInt num_samples, *, Tensor? lengths=None,
          Tensor? counts=None, int start=0, Tensor? start_idx=None, str tie="lowest",
          int tie_block=1024, str dist_order="pn2", str exhausted="distinct", str nonfinite="skip",
          bool skip_origin=False, float? init_dist2=None) -> (Tensor idx, Tensor dist2))",
      // idx [max_total] int32, dist2 [max_total]
      R"(furthest_point_sample_ragged(Tensor points, Tensor batch_offsets, Tensor out_offsets,
          SymInt max_total, *, int start=0, Tensor? start_idx=None, str tie="lowest",
          int tie_block=1024, str dist_order="pn2", str exhausted="distinct", str nonfinite="skip",
          bool skip_origin=False, float? init_dist2=None, bool local_index=False) -> (Tensor idx,
          Tensor dist2))",
      // [B, num_samples] int32
      R"(furthest_point_sample_with_dist(Tensor distances, SymInt num_samples, *,
          Tensor? lengths=None, int start=0, str tie="lowest", int tie_block=1024,
          float? init_dist=None) -> Tensor)",

      // ---- sparse: K offsets of a kernel, C rows in, C' rows out
      // neighbors [K, C], counts [B + 1, 4]: rows kept, rows found, pairs, rows skipped; int32
      R"(sparse_subm_map(Tensor indices, int[] spatial_shape, SymInt batch_size, int[] kernel_size,
          *, int[]? dilation=None, Tensor? num_valid=None) -> (Tensor neighbors, Tensor counts))",
      // out_indices [C', 4], neighbors [K, C'], inverse [K, C], counts [B + 1, 4], int32
      R"(sparse_conv_map(Tensor indices, int[] spatial_shape, SymInt batch_size, int[] kernel_size,
          *, int[]? stride=None, int[]? padding=None, int[]? dilation=None, SymInt max_rows=-1,
          Tensor? num_valid=None) -> (Tensor out_indices, Tensor neighbors, Tensor inverse,
          Tensor counts))",
      // int32, see SparseSchedule
      R"(sparse_schedule(Tensor neighbors, int[] kernel_size) -> Tensor)",
      // [C', Cout]
      R"(sparse_conv(Tensor features, Tensor weight, Tensor neighbors, *, Tensor? bias=None,
          Tensor? residual=None, bool relu=False, Tensor? inverse=None, bool submanifold=False,
          Tensor? schedule=None, Tensor? inverse_schedule=None, Tensor? num_valid=None) -> Tensor)",
      // as features, weight and [Cout]; [0] if not requested
      R"(_sparse_conv_backward(Tensor grad, Tensor features, Tensor weight, Tensor neighbors, *,
          Tensor? inverse=None, bool submanifold=False, Tensor? schedule=None,
          Tensor? inverse_schedule=None, Tensor? num_valid=None, bool for_features=True,
          bool for_weight=True, bool for_bias=True)
          -> (Tensor grad_features, Tensor grad_weight, Tensor grad_bias))",
      // out as features, batch_mean and batch_var [N] in the type of the sums
      R"(sparse_batch_norm(Tensor features, Tensor weight, Tensor bias, float eps, *,
          Tensor? mean=None, Tensor? var=None, Tensor? num_valid=None) -> (Tensor out,
          Tensor batch_mean, Tensor batch_var))",
      // as features, weight and bias
      R"(_sparse_batch_norm_backward(Tensor grad, Tensor features, Tensor weight, float eps,
          Tensor batch_mean, Tensor batch_var, bool training=True, *, Tensor? num_valid=None)
          -> (Tensor grad_features, Tensor grad_weight, Tensor grad_bias))",
      // out [C', N], arg [C', N] int32, the row, -1 without one
      R"(sparse_max_pool(Tensor features, Tensor neighbors, *, Tensor? inverse=None,
          Tensor? num_valid=None) -> (Tensor out, Tensor arg))",
      // as features
      R"(_sparse_max_pool_backward(Tensor grad, Tensor arg, Tensor inverse) -> Tensor)",

      // ---- grouping
      // [B, M, C], or [B, C, M] with channels_first
      R"(gather_points(Tensor features, Tensor idx, *, bool channels_first=False) -> Tensor)",
      // as features of gather_points
      R"(_gather_points_backward(Tensor grad, Tensor idx, SymInt num_points, *,
          bool channels_first=False) -> Tensor)",
      // out [R, C]; arg [R, C] int32, the row, for max and min, else [0]
      R"(segment_reduce(Tensor src, Tensor offsets, str reduce="sum", *, Tensor? index=None)
          -> (Tensor out, Tensor arg))",
      // [N, C]
      R"(_segment_reduce_backward(Tensor grad, Tensor offsets, Tensor arg, SymInt num_rows,
          str reduce, *, Tensor? index=None) -> Tensor)",
      // [B, M, k, C], or [B, C, M, k] with channels_first; packed: [U, k, C]
      R"(group_points(Tensor features, Tensor idx, *, bool channels_first=False,
          Tensor? batch_offsets=None, Tensor? query_batch_offsets=None, bool local_index=False)
          -> Tensor)",
      // as features of group_points
      R"(_group_points_backward(Tensor grad, Tensor idx, SymInt num_points, *,
          bool channels_first=False) -> Tensor)",
      // int32 in the shape of idx
      R"(neighbor_rows(Tensor idx, SymInt num_points, *, Tensor? count=None,
          Tensor? batch_offsets=None, Tensor? query_batch_offsets=None, bool local_index=False)
          -> Tensor)",
      // [B, M, C], or [B, C, M] with channels_first; packed: [U, C]
      R"(three_interpolate(Tensor features, Tensor idx, Tensor weight, *, bool channels_first=False,
          Tensor? batch_offsets=None, Tensor? query_batch_offsets=None, bool local_index=False)
          -> Tensor)",
      // as features and weight; [0] if not requested
      R"(_three_interpolate_backward(Tensor grad, Tensor features, Tensor idx, Tensor weight, *,
          bool channels_first=False, bool for_features=True, bool for_weight=True)
          -> (Tensor grad_features, Tensor grad_weight))",
      // [.., 3], as dist2
      R"(interpolation_weights(Tensor dist2, *, float eps=1e-8, str weight="dist") -> Tensor)",
      // [B, M, C]
      R"(interpolate_features(Tensor query, Tensor points, Tensor features, *, float eps=1e-8,
          str weight="dist", Tensor? lengths=None, Tensor? query_lengths=None) -> Tensor)",
      // as dist2
      R"(_interpolation_weights_backward(Tensor grad, Tensor dist2, *, float eps=1e-8,
          str weight="dist") -> Tensor)",
      // as points and query, padded or packed; [0] if not requested. count: slots of a query that
      // carry a distance
      R"(_neighbor_distance_backward(Tensor grad_dist2, Tensor points, Tensor query, Tensor idx, *,
          int norm=2, Tensor? count=None, Tensor? batch_offsets=None,
          Tensor? query_batch_offsets=None, bool local_index=False, bool for_points=True,
          bool for_query=True) -> (Tensor grad_points, Tensor grad_query))",

      // ---- neighbors
      // dist2 [B, M, k], idx [B, M, k] int32; packed: [U, k]
      R"(knn(Tensor points, Tensor query, SymInt k, *, int norm=2, str dist_order="pn2",
          Tensor? lengths=None, Tensor? query_lengths=None, Tensor? batch_offsets=None,
          Tensor? query_batch_offsets=None, bool local_index=False) -> (Tensor dist2, Tensor idx))",
      // dist2 [B, M, 3], idx [B, M, 3] int32; packed: [U, 3]
      R"(three_nn(Tensor query, Tensor points, *, str dist_order="pn2", Tensor? lengths=None,
          Tensor? query_lengths=None, Tensor? batch_offsets=None, Tensor? query_batch_offsets=None,
          bool local_index=False) -> (Tensor dist2, Tensor idx))",
      // dist2 [B, M, k], idx [B, M, k] int32, count [B, M] int32; packed: [U, k], [U, k], [U]
      R"(ball_query(Tensor points, Tensor query, float radius, SymInt k, *, float? radius2=None,
          float min_radius=0., float core_dist2=0., bool closed=False, str fill="first",
          str dist_order="pn2", Tensor? lengths=None, Tensor? query_lengths=None,
          Tensor? batch_offsets=None, Tensor? query_batch_offsets=None, bool local_index=False)
          -> (Tensor dist2, Tensor idx, Tensor count))",
      // offsets [U + 1] int64, index [capacity] int32, dist2 [capacity] or [0], count [1] int64
      R"(radius_neighbors(Tensor points, Tensor query, float radius, SymInt capacity, *,
          float? radius2=None, float min_radius=0., float core_dist2=0., bool closed=False,
          str dist_order="pn2", bool return_dist2=True, Tensor? batch_offsets=None,
          Tensor? query_batch_offsets=None) -> (Tensor offsets, Tensor index, Tensor dist2,
          Tensor count))",
      // grouped [B, M, K, D + C], idx [B, M, K] int32, count [B, M, radii] int32; K is the sum of
      // ks
      R"(query_and_group(Tensor points, Tensor query, Tensor? features, float[] radii, SymInt[] ks,
          *, bool use_xyz=True, bool normalize_xyz=False, bool features_first=False,
          bool closed=False, str dist_order="pn2", Tensor? lengths=None, Tensor? query_lengths=None)
          -> (Tensor grouped, Tensor idx, Tensor count))",
      // [B, M, C_out of the last weight]
      R"(group_mlp_max(Tensor points, Tensor query, Tensor? features, Tensor idx, Tensor count,
          Tensor[] weights, Tensor[] biases, *, bool use_xyz=True, float? normalize_radius=None,
          bool features_first=False) -> Tensor)",
      // [B, N, D], [B, M, D], [B, N, channels]; [0] if not requested
      R"(_query_and_group_backward(Tensor grad, Tensor points, Tensor query, Tensor idx,
          SymInt channels, float[] radii, SymInt[] ks, *, bool use_xyz=True,
          bool normalize_xyz=False, bool features_first=False, bool for_points=True,
          bool for_query=True, bool for_features=True) -> (Tensor grad_points, Tensor grad_query,
          Tensor grad_features))",

      // ---- detection
      // [.., 7 or 9]
      R"(box_decode(Tensor deltas, Tensor anchors, *, Tensor? direction=None, float dir_offset=0.,
          float dir_limit=0., bool dir_flip=False) -> Tensor)",
      // boxes [B, K, 7 or 9], scores [B, K], labels [B, K] int32, count [B] int32, overflow [B]
      // int32; K is post, or post * groups
      R"(anchor_decode_nms(Tensor[] cls, Tensor[] box, Tensor[]? direction, Tensor[] anchors,
          float score_threshold, float[] nms_threshold, SymInt pre, SymInt post, *,
          str group="none", bool shared_pre=False, bool global_post=False, bool closed=True,
          float dir_offset=0., float dir_limit=0., bool dir_flip=False, int[]? class_labels=None,
          str nms="rotated") -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count,
          Tensor overflow))",
      // as anchor_decode_nms
      R"(center_decode_nms(Tensor[] heatmap, Tensor[] offset, Tensor[] z, Tensor[] dim,
          Tensor[] rot, Tensor[]? vel, float[] voxel_size, float[] point_cloud_range, int stride,
          float score_threshold, float[] nms_threshold, SymInt pre, SymInt post, *,
          str group="task", bool global_post=False, bool best_class=False, bool closed=False,
          float[]? post_range=None, str rot_order="sin_cos", int[]? class_labels=None,
          str nms="rotated") -> (Tensor boxes, Tensor scores, Tensor labels, Tensor count,
          Tensor overflow))",

      // ---- pillars
      // [B, O, ny, nx], channels_last
      R"(pillar_encode(Tensor points, Tensor indices, Tensor num_points, Tensor point_voxel,
          Tensor point_slot, Tensor weight, Tensor bias, float[] voxel_size,
          float[] point_cloud_range, int max_points, SymInt batch_size, *, int center_axes=3,
          bool legacy=False, str pad_semantics="reference", ScalarType? out_dtype=None) -> Tensor)",
      // as weight and bias
      R"(_pillar_encode_backward(Tensor grad, Tensor mean, Tensor arg, Tensor points,
          Tensor indices, float[] voxel_size, float[] point_cloud_range, ScalarType dtype, *,
          int center_axes=3, bool legacy=False) -> (Tensor grad_weight, Tensor grad_bias))",
      // [(D + 1)(D + 2) / 2] float64
      R"(pillar_moments(Tensor points, Tensor indices, Tensor num_points, Tensor point_voxel,
          Tensor point_slot, float[] voxel_size, float[] point_cloud_range, int max_points, *,
          int center_axes=3, bool legacy=False, str pad_semantics="reference") -> Tensor)",
      // folded weight [O, D] and bias [O], mean [O], unbiased variance [O]
      R"(pillar_norm(Tensor moments, Tensor weight, Tensor gamma, Tensor beta, float eps)
          -> (Tensor folded_weight, Tensor folded_bias, Tensor mean, Tensor var))",
      // as weight, gamma and beta; a gradient that is None is 0
      R"(_pillar_norm_backward(Tensor? grad_weight, Tensor? grad_bias, Tensor moments,
          Tensor weight, Tensor gamma, float eps) -> (Tensor to_weight, Tensor to_gamma,
          Tensor to_beta))",
      // [B, C, ny, nx], channels_last; size is (nx, ny)
      R"(pillar_scatter(Tensor feats, Tensor indices, SymInt batch_size, int[] size) -> Tensor)",
      // as feats
      R"(_pillar_scatter_backward(Tensor grad, Tensor indices) -> Tensor)",

      // ---- boxes
      // [N, M] or [B, N, M]; paired: [N] or [B, N]
      R"(rotated_iou(Tensor a, Tensor b, *, str mode="bev", bool paired=False, str metric="iou")
          -> Tensor)",
      // as a and b; [0] if not requested
      R"(_rotated_iou_backward(Tensor grad, Tensor a, Tensor b, *, str mode="bev",
          bool paired=False, str metric="iou", bool for_a=True, bool for_b=True) -> (Tensor grad_a,
          Tensor grad_b))",
      // index [B, G, k] int32, count [B, G] int32; with a grid [B, G, cells, k] and [B, G, cells]
      R"(box_query(Tensor points, Tensor boxes, SymInt k, *, int[]? grid=None, float margin=0.,
          Tensor? lengths=None, Tensor? box_lengths=None) -> (Tensor index, Tensor count))",
      // index [B, N] int32, mask [B, G, N] bool or count [B, G] int32
      R"(points_in_boxes(Tensor points, Tensor boxes, *, str mode="index", float margin=0.,
          Tensor? lengths=None, Tensor? box_lengths=None) -> Tensor)",
      // index [B, max_out] int32, count [B] int32
      R"(rotated_nms(Tensor boxes, Tensor scores, float threshold, SymInt max_out, *,
          Tensor? group=None, Tensor? lengths=None, str mode="rotated") -> (Tensor index,
          Tensor count))",
      // choice [B, K] int32
      R"(place_boxes(Tensor boxes, Tensor candidates, Tensor group, Tensor? lengths=None,
          str mode="both", *, Tensor? replaces=None) -> Tensor)",

      // ---- targets
      // assigned [B, H, W, A] int32, num_pos [B] int32
      R"(anchor_targets(Tensor boxes, Tensor labels, Tensor? weight, Tensor? num_boxes,
          Tensor anchors, int[] class_of_anchor, float[] matched, float[] unmatched, *,
          str mode="pcdet", float[]? min_pos=None) -> (Tensor assigned, Tensor num_pos))",
      // heatmap [B, classes, H, W] float32, cell and box [B, tasks, max_objects] int32, count [B,
      // tasks] int32
      R"(center_targets(Tensor boxes, Tensor labels, Tensor? weight, Tensor? num_boxes,
          float[] point_cloud_range, float[] pillar_size, int cells, int[] size,
          int[] task_of_class, *, SymInt max_objects=500, float overlap=0.1, int min_radius=2)
          -> (Tensor heatmap, Tensor cell, Tensor box, Tensor count))",
      // [B, 3]: sums over the anchors of a sample, of classes, boxes and directions
      R"(anchor_loss(Tensor cls, Tensor box, Tensor? direction, Tensor anchors, Tensor boxes,
          Tensor labels, Tensor assigned, *, float dir_offset=0., float dir_limit=0.,
          float[]? code_weights=None, float beta=0.1111111111111111, float negative_weight=1.,
          str mode="pcdet") -> Tensor)",
      // as the maps; [0] without directions
      R"(_anchor_loss_backward(Tensor grad, Tensor cls, Tensor box, Tensor? direction,
          Tensor anchors, Tensor boxes, Tensor labels, Tensor assigned, *, float dir_offset=0.,
          float dir_limit=0., float[]? code_weights=None, float beta=0.1111111111111111,
          float negative_weight=1., str mode="pcdet") -> (Tensor grad_cls, Tensor grad_box,
          Tensor grad_direction))",
  };
  // clang-format on
  for (std::string& schema : table) schema = in_one_line(schema);
  // What their gradients need besides: point_slot [N], arg [C, F] or [0]; mean [V, 3], arg [V, O]
  table.push_back(
      variant(table, "_voxelize_train", "voxelize",
              "(Tensor features, Tensor indices, Tensor num_points, Tensor point_voxel, "
              "Tensor counts, Tensor point_slot, Tensor arg)"));
  table.push_back(variant(table, "_pillar_encode_train", "pillar_encode",
                          "(Tensor canvas, Tensor mean, Tensor arg)"));
  return table;
}

}  // namespace

const std::vector<std::string>& schemas() {
  static const std::vector<std::string> table = make_schemas();
  return table;
}

TORCH_LIBRARY(torchvox, m) {
  for (const std::string& schema : schemas()) m.def(schema.c_str());
}

}  // namespace torchvox

// Registration alone leaves no symbol that a linker must resolve; torchvox.h refers to this one.
extern "C" __attribute__((visibility("default"))) int torchvox_force_link() { return 1; }

// For tests: 0 where the functions of torchvox.h have the signatures of the ops' kernels.
extern "C" __attribute__((visibility("default"))) int torchvox_check_cpp_signatures() {
  try {
    torchvox::detail::look_up_all();
  } catch (const c10::Error& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
