# SPDX-License-Identifier: Apache-2.0
#
# `make help` lists the targets. PYTHON=python3.12 picks an interpreter; TORCHVOX_NO_VENV=1 uses it as it is (it must have torch).
SHELL := /bin/bash
.DEFAULT_GOAL := build
PYTHON ?= python3
TORCH ?= torch==2.11.0
SCAN ?=
LAYOUT ?=
PYTEST_ARGS ?=

ifdef TORCHVOX_NO_VENV
PY := $(PYTHON)
COMMAND := $(PYTHON) -m torchvox
CLANG_FORMAT := clang-format
CLANG_TIDY := clang-tidy
else
PY := .venv/bin/python
COMMAND := .venv/bin/torchvox
CLANG_FORMAT := .venv/bin/clang-format
CLANG_TIDY := .venv/bin/clang-tidy
endif
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
# uv does not compile bytecode, without which every process of the tests would parse torch again.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := setup.py pyproject.toml CMakeLists.txt $(shell find csrc configs/cmake -type f)
WORKERS := $(shell nproc 2>/dev/null || echo 1)

# Builds for the GPUs of this machine; without one, for the CPU only unless asked for more.
GPU_ARCHS := $(or $(TORCH_CUDA_ARCH_LIST),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | paste -sd,))
ifeq ($(TORCHVOX_CUDA)$(GPU_ARCHS),)
export TORCHVOX_CUDA := 0
CPU_ALONE := @echo "torchvox: no GPU is visible, so this build is CPU-only; set TORCHVOX_CUDA=1 or TORCH_CUDA_ARCH_LIST=9.0 to build for CUDA"
endif
CMAKE := PATH="$$PATH:$(CURDIR)/.venv/bin" cmake
CTEST = $(patsubst %cmake,%ctest,$(CMAKE)) --output-on-failure -j $(WORKERS)

.PHONY: help demo train-demo detect-demo weights build cpu test test-all test-gpu kernel-tests test-cpp sanitized-kernels sanitize sanitize-gpu mutants bench docs aarch64 lint tidy format wheel clean

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 14

demo: build/.built  ## build, run on a generated scan or SCAN=file (.bin files need LAYOUT=kitti, nuscenes or x,y,z,intensity)
	$(PY) -m torchvox demo $(if $(SCAN),"$(SCAN)") $(if $(LAYOUT),--layout "$(LAYOUT)") $(DEMO_ARGS)
	@echo 'torchvox: the command is $(COMMAND); $(COMMAND) --help lists what it does'

# From nothing to a trained net and its pictures, in train_demo_out/.
train-demo: build/.built  ## build, train a small PointNet++ on the CPU (ten minutes), draw its predictions
	rm -rf train_demo_out
	$(PY) -m torchvox train pointnet2_cls_shapes_small $(TRAIN_ARGS) -o train_demo_out
	$(PY) -m torchvox eval train_demo_out/best.ckpt --device cpu --at-least accuracy=0.95 --pictures train_demo_out

# From nothing to a detector that runs without Python, in detect_demo_out/.
detect-demo: build/.built  ## build, train a small detector on the CPU (ten minutes), evaluate it, export it, run it from C++
	rm -rf detect_demo_out
	$(PY) -m torchvox train center_world_small $(TRAIN_ARGS) -o detect_demo_out
	$(PY) -m torchvox eval detect_demo_out/best.ckpt --device cpu --pictures detect_demo_out \
		--at-least 3d/loose/Car=0.70 --at-least 3d/loose/Pedestrian=0.80 --at-least 3d/loose/Cyclist=0.45
	$(PY) -m torchvox export detect_demo_out/model.pt --no-fuse -o detect_demo_out/program.pt
	$(PY) -m torchvox eval detect_demo_out/program.pt --config detect_demo_out/config.yaml --device cpu
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/detector_from_cpp.py detect_demo_out/model.pt detect_demo_out/program.pt

# Trained as in the two demos above.
weights: build/.built  ## train, measure and store the weights that the package ships
	rm -rf build/weights
	$(PY) -m torchvox train center_world_small -o build/weights/center_world_small
	$(PY) -m torchvox train pointnet2_cls_shapes_small -o build/weights/pointnet2_cls_shapes_small
	$(PY) configs/registry.py center_world_small world_v1 build/weights/center_world_small
	$(PY) configs/registry.py pointnet2_cls_shapes_small shapes_v1 build/weights/pointnet2_cls_shapes_small

build: build/.built  ## set up .venv and build in place, for the GPUs of this machine or else for the CPU

# An environment with the build tools, then with torch and every extra. The stamps are in it.
# uv installs torch in a quarter of pip's time.
PIP := .venv/bin/uv pip install --quiet --python .venv/bin/python
.venv/.tools: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "torchvox needs Python >= 3.10, got " + sys.version.split()[0] + ": set PYTHON=")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet uv
	$(PIP) $$(.venv/bin/python configs/requirements.py build)
	touch $@

.venv/.ready: .venv/.tools
	$(PIP) "$(TORCH)" numpy
	$(PIP) $$(.venv/bin/python configs/requirements.py)
	touch $@

# An editable install: .venv/bin/python and the command torchvox work in every folder, with what is built here.
.venv/bin/torchvox: .venv/.ready pyproject.toml
	TORCHVOX_SKIP_BUILD=1 $(PIP) --no-deps --no-build-isolation --config-setting editable_mode=compat --editable .
	touch $@

build/.built: $(if $(TORCHVOX_NO_VENV),,.venv/.ready) $(SOURCES) $(if $(TORCHVOX_NO_VENV),,| .venv/bin/torchvox)
	$(CPU_ALONE)
	$(if $(TORCHVOX_NO_VENV),,PATH="$(CURDIR)/.venv/bin:$$PATH") $(PY) setup.py --quiet build_ext --inplace
	touch $@

cpu: export TORCHVOX_CUDA := 0
cpu: build/.built  ## the same for the CPU only

test: build/.built  ## every test that this machine can run, without the long sweeps (5 minutes)
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --slow none $(PYTEST_ARGS)

test-all: build/.built  ## the long sweeps too
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-gpu: build/.built  ## what needs a GPU
	$(PY) -m pytest -m "gpu or multigpu" $(PYTEST_ARGS)

mutants: build/.built  ## plant faults in a copy, one at a time, and list those that no test notices; MUTANTS_ARGS="--only voxel"
	$(PY) tests/mutants/run.py $(MUTANTS_ARGS)

bench: build/.built  ## measure this machine; BENCH_ARGS="--growth --only FPS"
	$(PY) -m benchmarks $(BENCH_ARGS)

docs: build/.built  ## draw the pictures and build the site in build/site; a broken link is an error
	$(PY) configs/docs/pictures.py build/pictures
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build  # with --quiet its warnings would not count

kernel-tests: build/.built
	$(CMAKE) --build build/cmake --target kernel_tests -j $(or $(MAX_JOBS),$(WORKERS))

test-cpp: kernel-tests  ## kernel tests, without torch
	cd build/cmake && $(CTEST)

# AddressSanitizer and UndefinedBehaviorSanitizer over the CPU kernels: the kernel tests, then the calls of the op_infos.
# The instrumented kernels compile without torch. For the calls they are preloaded, behind GCC's runtimes of the
# sanitizers, so that their functions take the place of those in the build's library.
SANITIZED := build/sanitize/libtorchvox_kernels_sanitized.so
sanitized-kernels: $(if $(TORCHVOX_NO_VENV),,.venv/.tools)
	$(CMAKE) -S . -B build/sanitize -DTORCHVOX_KERNELS_ONLY=ON -DTORCHVOX_WERROR=ON -DTORCHVOX_CUDA=0 -DTORCHVOX_SANITIZE=address,undefined
	$(CMAKE) --build build/sanitize --target kernel_tests -j $(or $(MAX_JOBS),$(WORKERS))

sanitize: export ASAN_OPTIONS := detect_leaks=0:protect_shadow_gap=0:quarantine_size_mb=64
sanitize: export UBSAN_OPTIONS := print_stacktrace=1
sanitize: sanitized-kernels build/.built  ## the CPU kernels under AddressSanitizer and UndefinedBehaviorSanitizer
	cd build/sanitize && $(CTEST)
	LD_PRELOAD="$$(ldd $(SANITIZED) | grep -o '/[^ ]*lib[a-z]*san[^ ]*' | xargs) $(SANITIZED)" $(PY) tests/sanitize.py cpu

# compute-sanitizer's four tools over the CUDA kernels. Each tensor has memory of its own, so that memcheck sees its end.
# racecheck, which watches every access to shared memory, and initcheck, which would report torch's own kernels, run the
# kernel tests alone.
sanitize-gpu: kernel-tests  ## the CUDA kernels under compute-sanitizer's four tools
	@command -v compute-sanitizer > /dev/null || { echo "make sanitize-gpu: no compute-sanitizer on PATH (it comes with the CUDA toolkit)" >&2; exit 1; }
	@for tool in memcheck racecheck initcheck synccheck; do \
		echo "== $$tool kernel_tests"; compute-sanitizer --tool $$tool --error-exitcode 1 build/cmake/kernel_tests || exit 1; \
	done
	@for tool in memcheck synccheck; do \
		echo "== $$tool ops"; PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 $(PY) tests/sanitize.py cuda || exit 1; \
	done

CPP_FILES = $$(git ls-files '*.h' '*.cuh' '*.cpp' '*.cu')
# clang-tidy over the kernels takes half a minute of one core, over the glue with torch's headers minutes.
TIDY = xargs -P $(WORKERS) -I{} $(CLANG_TIDY) --quiet {} -- -std=c++17 -I.

lint: ## format, types (mypy), clang-tidy over the kernels' host code
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git ls-files 'csrc/kernels/*.cpp' | $(TIDY)
	$(CLANG_FORMAT) --dry-run --Werror $(CPP_FILES)

tidy: ## clang-tidy over the glue too (minutes)
	git ls-files 'csrc/kernels/*.cpp' 'csrc/ops/*.cpp' | $(TIDY) -Ibuild/cmake/generated $$($(PY) -c 'import sysconfig; from torch.utils import cpp_extension as c; print(*("-isystem " + p for p in [*c.include_paths(), sysconfig.get_path("include")]))')

format: ## reformat Python and C++
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(CPP_FILES)

aarch64: build/.built  ## build for 64-bit Arm, run kernel tests and ops under qemu, compare bits (10 minutes)
	PATH="$$PATH:$(CURDIR)/.venv/bin" $(PY) configs/aarch64.py

wheel: $(if $(TORCHVOX_NO_VENV),,.venv/.ready)  ## manylinux wheels in dist/, tried beside every supported torch
	$(PY) configs/wheels.py $(or $(WHEEL_ARGS),all)

clean: ## remove everything built
	rm -rf build dist torchvox/lib torchvox/include torchvox/share torchvox/_build.py torchvox/_C*.so
