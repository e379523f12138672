# SPDX-License-Identifier: Apache-2.0
#
# make demo [SCAN=path]   set up, build, run the demo on a generated scan or on a file; a .bin file
#                         needs its columns too: LAYOUT=kitti, nuscenes, or names like x,y,z,intensity
# make train-demo         set up, build, train the small classifier on the CPU (about ten minutes), draw what it learnt
# make detect-demo        set up, build, train a small detector on the CPU (under ten minutes), score it, draw what it
#                         finds, export it and run it from C++
# make test               set up, build, run the tests that this machine can run; make test-all: the long sweeps too
# make mutants            set up, build, put faults into a copy one at a time and see that tests notice each;
#                         MUTANTS_ARGS="--only voxel --tier all" and so on (an hour on two cores)
# make docs               set up, build, draw the gallery's pictures and build the site in build/site, of which every link holds
# make wheel              set up, build manylinux wheels in dist/, without CUDA and where nvcc is with CUDA, each for every
#                         supported torch; install each beside each torch and try it there without a compiler
# make aarch64            set up, build, build for 64-bit Arm, run kernel tests and ops under qemu, compare bits (10 minutes)
# make bench              set up, build, measure this machine; BENCH_ARGS="--growth --only FPS" and so on
# make weights            set up, build, train, measure and store the weights that the package ships
# PYTHON=python3.12 picks an interpreter; TORCHVOX_NO_VENV=1 uses it as it is (it must have torch).
SHELL := /bin/bash
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
# uv compiles nothing ahead; without bytecode every process of the tests would parse torch anew.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := setup.py pyproject.toml CMakeLists.txt $(shell find csrc configs/cmake -type f)
WORKERS := $(shell nproc 2>/dev/null || echo 1)

# What is visible is what is built: for the GPUs that are here, or for the CPU alone where none is and
# nobody asks for more.
GPU_ARCHS := $(or $(TORCH_CUDA_ARCH_LIST),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | paste -sd,))
ifeq ($(TORCHVOX_CUDA)$(GPU_ARCHS),)
export TORCHVOX_CUDA := 0
CPU_ALONE := @echo "torchvox: no GPU is visible, so make builds for the CPU alone; TORCHVOX_CUDA=1 or TORCH_CUDA_ARCH_LIST=9.0 asks for CUDA"
endif
CMAKE := PATH="$$PATH:$(CURDIR)/.venv/bin" cmake
CTEST = $(patsubst %cmake,%ctest,$(CMAKE)) --output-on-failure -j $(WORKERS)

.PHONY: demo train-demo detect-demo weights build cpu test test-all test-gpu kernel-tests test-cpp sanitize sanitize-gpu mutants bench docs aarch64 lint tidy format wheel clean

demo: build/.built
	$(PY) -m torchvox demo $(if $(SCAN),"$(SCAN)") $(if $(LAYOUT),--layout "$(LAYOUT)") $(DEMO_ARGS)
	@echo 'torchvox: the command is $(COMMAND); $(COMMAND) --help lists what it does'

# From nothing to a trained net and its pictures, in train_demo_out/.
train-demo: build/.built
	rm -rf train_demo_out
	$(PY) -m torchvox train pointnet2_cls_shapes_small $(TRAIN_ARGS) -o train_demo_out
	$(PY) -m torchvox eval train_demo_out/best.ckpt --device cpu --at-least accuracy=0.95 --pictures train_demo_out

# From nothing to a detector that runs without Python, in detect_demo_out/.
detect-demo: build/.built
	rm -rf detect_demo_out
	$(PY) -m torchvox train center_world_small $(TRAIN_ARGS) -o detect_demo_out
	$(PY) -m torchvox eval detect_demo_out/best.ckpt --device cpu --pictures detect_demo_out \
		--at-least 3d/loose/Car=0.70 --at-least 3d/loose/Pedestrian=0.80 --at-least 3d/loose/Cyclist=0.45
	$(PY) -m torchvox export detect_demo_out/model.pt --no-fuse -o detect_demo_out/program.pt
	$(PY) -m torchvox eval detect_demo_out/program.pt --config detect_demo_out/config.yaml --device cpu
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/detector_from_cpp.py detect_demo_out/model.pt detect_demo_out/program.pt

# The weights that the package ships, trained anew, as the two demos above do it, and measured.
weights: build/.built
	rm -rf build/weights
	$(PY) -m torchvox train center_world_small -o build/weights/center_world_small
	$(PY) -m torchvox train pointnet2_cls_shapes_small -o build/weights/pointnet2_cls_shapes_small
	$(PY) configs/registry.py center_world_small world_v1 build/weights/center_world_small
	$(PY) configs/registry.py pointnet2_cls_shapes_small shapes_v1 build/weights/pointnet2_cls_shapes_small

build: build/.built

# Set-up: an environment with the build tools, then with torch and every extra. Stamps lie in it.
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

# The command, over this folder: it works from any other, and sees what is built here.
.venv/bin/torchvox: .venv/.ready
	printf '#!%s\nimport sys\n\nsys.path.insert(0, "%s")\nfrom torchvox.cli import main\n\nsys.exit(main())\n' \
		"$(CURDIR)/.venv/bin/python" "$(CURDIR)" > $@
	chmod +x $@

build/.built: $(if $(TORCHVOX_NO_VENV),,.venv/.ready) $(SOURCES) $(if $(TORCHVOX_NO_VENV),,| .venv/bin/torchvox)
	$(CPU_ALONE)
	$(if $(TORCHVOX_NO_VENV),,PATH="$(CURDIR)/.venv/bin:$$PATH") $(PY) setup.py --quiet build_ext --inplace
	touch $@

cpu: export TORCHVOX_CUDA := 0
cpu: build/.built

test: build/.built
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --slow none $(PYTEST_ARGS)

test-all: build/.built
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-gpu: build/.built
	$(PY) -m pytest -m "gpu or multigpu" $(PYTEST_ARGS)

mutants: build/.built
	$(PY) tests/mutants/run.py $(MUTANTS_ARGS)

bench: build/.built
	$(PY) -m benchmarks $(BENCH_ARGS)

docs: build/.built
	$(PY) configs/docs/pictures.py build/pictures
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build  # with --quiet its warnings would not count

kernel-tests: build/.built
	$(CMAKE) --build build/cmake --target kernel_tests -j $(or $(MAX_JOBS),$(WORKERS))

test-cpp: kernel-tests
	cd build/cmake && $(CTEST)

# AddressSanitizer and UndefinedBehaviorSanitizer over the CPU kernels.
sanitize: $(if $(TORCHVOX_NO_VENV),,.venv/.tools)
	$(CMAKE) -S . -B build/sanitize -DTORCHVOX_KERNELS_ONLY=ON -DTORCHVOX_WERROR=ON -DTORCHVOX_CUDA=0 -DTORCHVOX_SANITIZE=address,undefined
	$(CMAKE) --build build/sanitize --target kernel_tests -j $(or $(MAX_JOBS),$(WORKERS))
	cd build/sanitize && UBSAN_OPTIONS=print_stacktrace=1 $(CTEST)

# compute-sanitizer's four tools over the CUDA kernels.
sanitize-gpu: kernel-tests
	@command -v compute-sanitizer > /dev/null || { echo "make sanitize-gpu: no compute-sanitizer on PATH (it comes with the CUDA toolkit)" >&2; exit 1; }
	@for tool in memcheck racecheck initcheck synccheck; do for test in build/cmake/test_*_kernels; do \
		echo "== $$tool $$test"; compute-sanitizer --tool $$tool --error-exitcode 1 $$test $$([ $$tool != racecheck ] || echo --quick) || exit 1; \
	done; done

CPP_FILES = $$(git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' ':!*/third_party/*')
# clang-tidy over the kernels takes half a minute of one core, over the glue with torch's headers minutes.
TIDY = xargs -P $(WORKERS) -I{} $(CLANG_TIDY) --quiet {} -- -std=c++17 -I.

lint:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git ls-files 'csrc/kernels/*.cpp' | $(TIDY)
	$(CLANG_FORMAT) --dry-run --Werror $(CPP_FILES)

tidy:
	git ls-files 'csrc/kernels/*.cpp' 'csrc/ops/*.cpp' | $(TIDY) -Ibuild/cmake/generated $$($(PY) -c 'import sysconfig; from torch.utils import cpp_extension as c; print(*("-isystem " + p for p in [*c.include_paths(), sysconfig.get_path("include")]))')

format:
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(CPP_FILES)

aarch64: build/.built
	PATH="$$PATH:$(CURDIR)/.venv/bin" $(PY) configs/aarch64.py

wheel: $(if $(TORCHVOX_NO_VENV),,.venv/.ready)
	$(PY) configs/wheels.py $(or $(WHEEL_ARGS),all)

clean:
	rm -rf build dist torchvox/lib torchvox/include torchvox/share torchvox/_build.py torchvox/_C*.so
