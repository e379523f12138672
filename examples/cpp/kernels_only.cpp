// SPDX-License-Identifier: Apache-2.0
//
// A bird's-eye-view height image from the kernels alone: no torch, no Python.
//   kernels_only cloud.bin columns height.bin
// Every kernel is called the same way: fill a struct of named fields with pointers, ask how much
// workspace it needs, then run_cpu() with a thread pool of yours, or launch() on a stream of yours.
// In a CUDA build the image is made a second time on the GPU, when there is one, and compared.
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "csrc/kernels/bev/max_height.h"
#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

constexpr float kLower[3] = {0.f, -40.f, -3.f};  // meters
constexpr float kUpper[3] = {80.f, 40.f, 3.f};
constexpr int64_t kCells = 400;

torchvox::BevMaxHeightArgs height_args(const float* points, int64_t rows, int64_t columns,
                                       float* height, int32_t* counts) {
  torchvox::BevMaxHeightArgs args;
  args.points.data = points;
  args.points.dtype = torchvox::DType::kFloat;
  args.points.packed = true;
  args.points.rows = rows;
  args.points.columns = columns;
  args.points.row_stride = columns;
  for (int axis = 0; axis < 3; ++axis) {
    args.grid.lower[axis] = kLower[axis];
    args.grid.upper[axis] = kUpper[axis];
  }
  args.grid.nx = args.grid.ny = kCells;
  for (int axis = 0; axis < 2; ++axis) {
    args.grid.resolution[axis] = (kUpper[axis] - kLower[axis]) / static_cast<float>(kCells);
  }
  args.grid.orientation = torchvox::BevOrientation::kImage;
  args.height = height;
  args.counts = counts;
  return args;
}

#ifdef TORCHVOX_CUDA
// The same image on the first GPU, on a stream of its own.
cudaError_t height_on_gpu(const std::vector<float>& points, int64_t columns,
                          std::vector<float>* height) {
  torchvox::CudaContext context;
  cudaDeviceProp properties;
  cudaError_t status = cudaGetDeviceProperties(&properties, 0);
  if (status != cudaSuccess) return status;
  context.target.cuda = true;
  context.target.multiprocessors = properties.multiProcessorCount;
  context.target.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  context.target.compute_capability = 10 * properties.major + properties.minor;
  if ((status = cudaStreamCreate(&context.stream)) != cudaSuccess) return status;

  void *device_points = nullptr, *device_height = nullptr, *counts = nullptr, *workspace = nullptr;
  const size_t point_bytes = points.size() * sizeof(float);
  const size_t height_bytes = height->size() * sizeof(float);
  cudaMallocAsync(&device_points, point_bytes, context.stream);
  cudaMallocAsync(&device_height, height_bytes, context.stream);
  cudaMallocAsync(&counts, 2 * torchvox::kBevCounts * sizeof(int32_t), context.stream);
  const auto args =
      height_args(static_cast<float*>(device_points), static_cast<int64_t>(points.size()) / columns,
                  columns, static_cast<float*>(device_height), static_cast<int32_t*>(counts));
  cudaMallocAsync(&workspace, static_cast<size_t>(workspace_bytes(args, context.target)),
                  context.stream);
  cudaMemcpyAsync(device_points, points.data(), point_bytes, cudaMemcpyHostToDevice,
                  context.stream);
  status = launch(args, workspace, context);  // returns at once; errors are values
  cudaMemcpyAsync(height->data(), device_height, height_bytes, cudaMemcpyDeviceToHost,
                  context.stream);
  for (void* memory : {device_points, device_height, counts, workspace}) {
    cudaFreeAsync(memory, context.stream);
  }
  const cudaError_t finished = cudaStreamSynchronize(context.stream);
  cudaStreamDestroy(context.stream);
  return status != cudaSuccess ? status : finished;
}
#endif

int run(const std::string& cloud_path, int64_t columns, const std::string& out_path) {
  std::ifstream file(cloud_path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file || columns < 3 || bytes.size() % (sizeof(float) * columns) != 0) {
    std::cerr << "kernels_only: " << cloud_path << " is no file of float32 rows of " << columns
              << " columns\n";
    return 1;
  }
  std::vector<float> points(bytes.size() / sizeof(float));
  std::memcpy(points.data(), bytes.data(), bytes.size());
  const auto rows = static_cast<int64_t>(points.size()) / columns;

  std::vector<float> height(kCells * kCells);
  std::vector<int32_t> counts(2 * torchvox::kBevCounts);
  const auto args = height_args(points.data(), rows, columns, height.data(), counts.data());
  std::vector<char> workspace(static_cast<size_t>(workspace_bytes(args, torchvox::Target{})));
  run_cpu(args, workspace.data(), torchvox::serial_for);
  std::cout << "cpu: " << rows << " points, " << counts[torchvox::kBevPointsUsed] << " used, "
            << counts[torchvox::kBevOutOfRange] << " out of range, "
            << counts[torchvox::kBevNonFinite] << " not finite, "
            << counts[torchvox::kBevCellsFilled] << " cells filled\n";
  std::ofstream out(out_path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(height.data()),
            static_cast<std::streamsize>(height.size() * sizeof(float)));

#ifdef TORCHVOX_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::cout << "cuda: skipped, no CUDA device\n";
    return 0;
  }
  std::vector<float> gpu_height(height.size());
  const cudaError_t status = height_on_gpu(points, columns, &gpu_height);
  if (status != cudaSuccess) {
    std::cerr << "kernels_only: " << cudaGetErrorString(status) << "\n";
    return 1;
  }
  const bool same =
      std::memcmp(height.data(), gpu_height.data(), height.size() * sizeof(float)) == 0;
  std::cout << "cuda: " << (same ? "the same bits" : "other bits than the CPU") << "\n";
  return same ? 0 : 1;
#else
  std::cout << "cuda: not in this build\n";
  return 0;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: kernels_only cloud.bin columns height.bin\n";
    return 2;
  }
  return run(argv[1], std::stol(argv[2]), argv[3]);
}
