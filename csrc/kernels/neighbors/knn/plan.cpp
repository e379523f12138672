// SPDX-License-Identifier: Apache-2.0
//
// The kernel of a knn, from sizes alone.
#include "csrc/kernels/neighbors/knn/common.h"

namespace torchvox {
namespace {

// On a GPU a spatial order takes about as long as so many distances (H200).
constexpr int64_t kScannedPairs = int64_t{1} << 21;
constexpr int64_t kScannedPoints = 1024;
constexpr int64_t kScannedForFew = 512;
// On the host, as long as so many queries that measure every point.
constexpr int64_t kScanningQueries = 8;

}  // namespace

KnnKernel choose_knn_kernel(const KnnArgs& args, const Target& target) {
  const int64_t forced = knn_kernel_plan.value();
  const KnnKernel wanted = static_cast<KnnKernel>(forced);
  if (!is_fast(args)) return target.cuda ? KnnKernel::kSelect : KnnKernel::kScan;
  if (!target.cuda) {
    if (forced != kAutomatic) return wanted == KnnKernel::kTiles ? wanted : KnnKernel::kScan;
    return args.query.rows < kScanningQueries && !args.points.packed ? KnnKernel::kScan
                                                                     : KnnKernel::kTiles;
  }
  if (args.k > kMostListed || args.points.clouds == 0 || wanted == KnnKernel::kSelect) {
    return KnnKernel::kSelect;
  }
  if (args.points.packed || wanted == KnnKernel::kTiles) return KnnKernel::kTiles;
  const bool small = (args.k <= kFewListed && args.points.rows <= kScannedForFew) ||
      (args.points.rows <= kScannedPoints && args.queries() * args.points.rows <= kScannedPairs);
  return small || wanted == KnnKernel::kScan ? KnnKernel::kScan : KnnKernel::kTiles;
}

}  // namespace torchvox
