// SPDX-License-Identifier: Apache-2.0
//
// sparse_batch_norm and its gradients on the CPU: sums of groups of 32 rows, the tree above them,
// then tasks of rows.
#include "csrc/kernels/sparse/conv.h"
#include "csrc/kernels/sparse/norm.h"

namespace torchvox {
namespace {

constexpr int64_t kRowsPerTask = 64;

struct NormWork {
  void* channels;
  HostTree tree;

  NormWork(const SparseNormArgs& args, Workspace& workspace)
      : channels(workspace.take<SparseNormChannel<double>>(args.channels)),
        tree(args.sums() ? args.rows : 0, 2 * args.channels, workspace) {}
};

template <class T, bool kGradient>
void normalize(const SparseNormArgs& args, const NormWork& work, const ParallelFor& parallel_for) {
  const int64_t valid = args.valid(), count = args.channels;
  const auto* mean = static_cast<const compute_t<T>*>(args.mean);
  for_each_index(parallel_for, work.tree.groups(), 8, [&](int64_t group) {
    double* sums = std::fill_n(work.tree.of(group), 2 * count, 0.0) - 2 * count;
    const int64_t begin = group * kTreeWidth, end = std::min(begin + kTreeWidth, valid);
    run_vectorized(sparse_cpu_plan, [&] {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < count; ++c) {
          add_terms<T, kGradient>(args, row * count + c, kGradient ? mean[c] : 0, sums[c],
                                  sums[count + c]);
        }
      }
    });
  });
  const double* sums = work.tree.total(parallel_for);
  auto* channels = static_cast<SparseNormChannel<compute_t<T>>*>(work.channels);
  for (int64_t c = 0; c < count; ++c) channels[c].finish(args, c, sums[c], sums[count + c]);
  const auto* features = static_cast<const T*>(args.features);
  const auto* grad = static_cast<const T*>(kGradient ? args.grad : args.features);
  auto* out = static_cast<T*>(args.out);
  for_each_range(parallel_for, args.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    const int64_t used = clamp_index(valid, begin, end);
    run_vectorized(sparse_cpu_plan, [&] {
      for (int64_t row = begin; row < used; ++row) {
        for (int64_t c = 0, at = row * count; c < count; ++c, ++at) {
          out[at] = narrow_item<T>(channels[c].template value<kGradient>(
              widen(features[at]), widen(grad[at]), args.training));
        }
      }
    });
    std::fill_n(out + used * count, (end - used) * count, T{});
  });
}

}  // namespace

int64_t workspace_bytes_cpu(const SparseNormArgs& args) { return carved_bytes<NormWork>(args); }

void run_cpu(const SparseNormArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<NormWork>(memory, args);
  with_norm_types(args, [&](auto type, auto gradient) {
    normalize<decltype(type), gradient()>(args, work, parallel_for);
  });
}

}  // namespace torchvox
