# make demo, make profile, make test: everything from a fresh clone, in a virtual environment of their own.
# PYTHON=python3.12 chooses the interpreter; VENV=dir the place of the environment.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
# A worker that has nothing left takes tests from the other's list.
SPREAD := -n $(WORKERS) --dist worksteal
INSTALLED := $(VENV)/.installed
WITH_TENSORFLOW := $(VENV)/.with-tensorflow
# The last release of each minor version that the shim is written for.
TENSORFLOWS := 2.18.1 2.19.1 2.20.0 2.21.0
# BERT and GPT-2 for tests; tensorflow-text is for one TensorFlow.
KERAS_HUB := keras-hub 'tensorflow-text>=2.21,<2.22' absl-py regex sentencepiece tokenizers

.PHONY: demo profile test test-tf test-xla test-wheel tf-shim tf-shims tf-wheel lint format gpu-test clean
.PHONY: install install-tf install-xla

demo: $(INSTALLED)
	$(BIN)/python -m astitch.demo

# With XLA's compiler for NVIDIA GPUs, which compiles without one: an environment of its own, 0.5 GB to download.
profile: $(VENV)-profile/.installed
	$(VENV)-profile/bin/astitch-profile examples/bert_layer.py --gpu h100 --html report.html

$(VENV)-profile/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-profile
	$(VENV)-profile/bin/python -m pip install --quiet --disable-pip-version-check -e '.[xla-cuda13]'
	touch $@

test: lint
	$(BIN)/python -m pytest $(SPREAD) -q

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The TensorFlow add-on; TensorFlow takes 2 GB on disk.  `make test` leaves these tests out where it is missing.
test-tf: $(WITH_TENSORFLOW)
	$(BIN)/python -m pytest $(SPREAD) -q tests/tf

# The training loops in examples/, and programs that XLA compiles for NVIDIA GPUs that are not here, with astitch in
# XLA's hook.  That needs Python 3.12 and an environment of its own; where there is no such Python it says so and does
# nothing.
WHERE := -c "import sys; print(sys.executable)" 2>/dev/null
PYTHON_XLA ?= $(shell python3.12 $(WHERE) || PYENV_VERSION=$$(pyenv latest 3.12 2>/dev/null) python3.12 $(WHERE))
test-xla: install-xla
	@test -n "$(PYTHON_XLA)" || { echo "make test-xla: skipped: there is no Python 3.12"; exit 0; }; \
	JAX_PLATFORMS=cpu $(VENV)-xla/bin/python -m pytest $(SPREAD) -q -m 'not xla_hook' tests/whole/test_examples.py tests/whole/test_modern.py && \
	JAX_PLATFORMS=cpu $(VENV)-xla/bin/python -m pytest $(SPREAD) -q -m xla_hook

# The environments alone.
install: $(INSTALLED)
install-tf: $(WITH_TENSORFLOW)
install-xla:
	@test -z "$(PYTHON_XLA)" || $(MAKE) --no-print-directory $(VENV)-xla/.installed VENV=$(VENV)

$(VENV)-xla/.installed: pyproject.toml
	$(PYTHON_XLA) -m venv $(VENV)-xla
	$(VENV)-xla/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,examples,xla-cuda13]'
	touch $@

# The wheel, built and used in an environment of its own.
test-wheel:
	rm -rf $(VENV)-wheel
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(VENV)-wheel/dist .
	$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check $(VENV)-wheel/dist/*.whl
	cd / && $(abspath $(VENV))-wheel/bin/python -P $(CURDIR)/tests/wheel.py
	rm -rf $(VENV)-wheel build

# Not -m: the package imports this module before.
BUILD_SHIM := -c 'import sys, tf_addon.shim_build; sys.exit(tf_addon.shim_build.main())'

# The shim for the TensorFlow in the environment, into the package, from where a wheel takes it.
tf-shim: $(WITH_TENSORFLOW)
	$(BIN)/python $(BUILD_SHIM)

# The shim for each TensorFlow that is supported, each built in an environment of its own; some two minutes each.
# The wheel with all of them is for one platform: nobody who installs it needs a compiler.
tf-shims: $(TENSORFLOWS:%=tf_addon/prebuilt/.built-%)
tf-wheel: tf-shims $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . \
	  -C--build-option=--plat-name=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_platform())")

tf_addon/prebuilt/.built-%: tf_addon/shim/astitch_tf.cc tf_addon/shim_build.py
	$(PYTHON) -m venv $(VENV)-tf-$*
	$(VENV)-tf-$*/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==$*
	$(VENV)-tf-$*/bin/python -m pip install --quiet --disable-pip-version-check ml_dtypes networkx protobuf
	$(VENV)-tf-$*/bin/python $(BUILD_SHIM)
	rm -rf $(VENV)-tf-$*
	touch $@

# On a machine with an NVIDIA GPU whose PYTHON already has CuPy, JAX for CUDA and pytest.
gpu-test:
	$(PYTHON) -m pytest -q -m gpu

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "astitch needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,jax]'
	touch $@

$(WITH_TENSORFLOW): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,jax,tensorflow-cpu]'
	# Without what they ask for: TensorFlow's other wheel, which has the same files.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(KERAS_HUB)
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info build
