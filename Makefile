# make pretrain    train on the bundled images, evaluate, write runs/fashion_small, print a table
# make test        run the tests that take less than ten minutes on two cores
# make test-slow   run the others
# make test-settings run the numerical tests without oneDNN, with AVX2 alone, and on one thread
# make test-beam   run those that need Apache Beam, whose Pillow is older, in an environment of their own
# make test-oldest run those that depend on versions with the lowest that setup.py allows; make test-colab with Colab's Keras
# make test-addons compare with TensorFlow Addons, whose TensorFlow is older, in an environment of its own
# make test-peers  compare losses with lightly's, whose PyTorch is no part of the others, in an environment of its own
# make test-hub    networks of keras-hub as encoders, and its detector on one of ours, in an environment of their own
# make test-detection  run Mask R-CNN of TensorFlow Model Garden on encoders, in an environment of its own
# make lint        ruff and mypy
# make lock        resolve requirements.lock again
# make docs        build the documentation into site/; make test-docs looks at it in a browser (Chromium)
# make notebooks   run the notebooks in colab/ and keep their outputs
# make tpu-check  compile the training step for a TPU, without one; ONLY=small|local|swav|r50|r50_local|replicas|negative for one case
# make clean       remove what these targets made

PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find keras_sslhsic -type f -not -name '*.pyc') keras_sslhsic_command.py setup.py pyproject.toml README.md CITATION.cff LICENSE
RUN ?= runs/fashion_small
# An interrupted run goes on; a new one begins in an empty folder.
RESUME = $(if $(wildcard $(RUN)/config.json),--resume)

.PHONY: pretrain test test-slow test-settings test-beam lint lock clean

pretrain: .venv/installed
	$(BIN)/keras-sslhsic pretrain --config configs/fashion_small.py --workdir $(RUN) $(RESUME)

test: .venv/installed
	$(BIN)/pytest -m "not slow" -n 2

test-slow: .venv/installed
	$(BIN)/pytest -m slow -n 2

# As other processors round, which is not part of the continuous integration. With oneDNN held to AVX2, TensorFlow still
# asks it for the half precision that the processor has, and aborts.
NUMERICAL := -m "not slow" -n 2 tests/hsic tests/losses tests/methods tests/views tests/encoders tests/training tests/evaluation
test-settings: .venv/installed
	TF_ENABLE_ONEDNN_OPTS=0 $(BIN)/pytest $(NUMERICAL)
	ONEDNN_MAX_CPU_ISA=AVX2 XLA_FLAGS=--xla_cpu_max_isa=AVX2 OPENBLAS_CORETYPE=Haswell \
	  $(BIN)/pytest $(NUMERICAL) -k "not bfloat16 and not half and not mixed"
	TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 $(BIN)/pytest $(NUMERICAL)

test-beam: .venv/installed .venv-beam/installed
	.venv-beam/bin/python -m pytest tests/data_pipeline/test_prepare.py tests/zoo/test_shards.py

.PHONY: test-addons
test-addons: .venv/installed .venv-addons/expected.npz
	ADDONS_EXPECTED=.venv-addons/expected.npz $(BIN)/pytest tests/addons

.PHONY: test-peers
test-peers: .venv/installed .venv-peers/expected.npz
	PEERS_EXPECTED=.venv-peers/expected.npz $(BIN)/pytest tests/peers

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: test-hub
test-hub: .venv/installed .venv-hub/installed
	.venv-hub/bin/python -m pytest tests/encoders/test_any.py tests/encoders/test_keras_hub.py

.PHONY: test-detection
test-detection: .venv/installed .venv-detection/installed
	.venv-detection/bin/python -m pytest tests/evaluation/test_detection.py

.venv/requirements: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Python 3.10 to 3.13 is needed, $$($(PYTHON) --version) was found: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --progress-bar off -r requirements.lock
	@touch $@

# The package as users get it, from a wheel: the tests run against that.
.venv/installed: .venv/requirements $(SOURCES)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --force-reinstall .
	@rm -rf build keras_sslhsic.egg-info
	@touch $@

# What Beam does not replace is taken from .venv.
.venv-beam/installed: .venv/requirements
	$(PYTHON) -m venv --clear .venv-beam
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$(.venv-beam/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
	.venv-beam/bin/python -m pip install --quiet --progress-bar off apache-beam==2.77.0 'pillow<13'
	@touch $@

# What depends on versions: files, networks and the training step.
VERSIONED := -m "not slow" -n 2 tests/encoders tests/losses tests/methods tests/zoo/test_versions.py tests/zoo/test_load.py \
  tests/zoo/test_save.py tests/training/test_trainer.py tests/training/test_checkpoint.py tests/test_import.py

.PHONY: test-oldest test-colab
test-oldest: .venv/installed .venv-oldest/installed
	PYTHONPATH=. .venv-oldest/bin/python -m pytest $(VERSIONED)

test-colab: .venv/installed .venv-colab/installed
	PYTHONPATH=. .venv-colab/bin/python -m pytest $(VERSIONED)

.venv-oldest/installed: setup.py tools/oldest.py .venv/installed
	$(PYTHON) -m venv --clear .venv-oldest
	$(BIN)/python tools/oldest.py > .venv-oldest/versions.txt
	.venv-oldest/bin/pip install --quiet --progress-bar off -r .venv-oldest/versions.txt pytest pytest-xdist hypothesis
	@touch $@

# Python 3.12 is Colab's; another serves where there is none.
.venv-colab/installed: requirements.lock
	$(or $(shell python3.12 -c 'print("python3.12")' 2>/dev/null),$(PYTHON)) -m venv --clear .venv-colab
	grep -v '^keras==' requirements.lock > .venv-colab/versions.txt
	.venv-colab/bin/pip install --quiet --progress-bar off --no-deps -r .venv-colab/versions.txt keras==3.13.2
	@touch $@

.venv-addons/expected.npz: .venv-addons/installed tools/addons_expected.py
	.venv-addons/bin/python -W ignore tools/addons_expected.py $@

.venv-addons/installed:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "TensorFlow Addons 0.23 is tested with Python 3.11, $$($(PYTHON) --version) was found: make test-addons PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv --clear .venv-addons
	.venv-addons/bin/pip install --quiet --progress-bar off \
	  tensorflow-addons==0.23.0 tensorflow-cpu==2.15.1 keras==2.15.0 'numpy<2'
	@touch $@

.venv-peers/expected.npz: .venv-peers/installed tools/peers_expected.py
	.venv-peers/bin/python -W ignore tools/peers_expected.py $@

# Of what lightly asks for, its losses need PyTorch and NumPy alone; of PyTorch, the build for a CPU is enough.
.venv-peers/installed: .venv/requirements
	$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/pip install --quiet --progress-bar off torch==2.13.0 numpy==2.2.6
	.venv-peers/bin/pip install --quiet --progress-bar off --no-deps lightly==1.6.0
	@touch $@

# Of what keras-hub asks for, its networks need these alone; tensorflow-text, of another TensorFlow, stays out.
.venv-hub/installed: .venv/requirements
	$(PYTHON) -m venv --clear .venv-hub
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$(.venv-hub/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
	.venv-hub/bin/pip install --quiet --progress-bar off --no-deps \
	  keras-hub==0.32.0 regex==2026.11.19 tokenizers==0.23.3 sentencepiece==0.2.3
	@touch $@

# Of what Model Garden asks for, Mask R-CNN needs these alone; its older absl-py is why it is apart.
.venv-detection/installed: .venv/requirements
	$(PYTHON) -m venv --clear .venv-detection
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$(.venv-detection/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
	.venv-detection/bin/pip install --quiet --progress-bar off --no-deps \
	  tf-models-official==2.20.0 tensorflow-model-optimization==0.8.0 absl-py==1.4.0 pycocotools==2.0.11 \
	  gin-config==0.5.0 tensorflow-hub==0.16.1 imgviz==2.1.0 cmap==0.8.0
	@touch $@

lock:
	uv pip compile --universal --python-version 3.10 --extra dev --extra hub --extra onnx --no-header --no-annotate --no-emit-index-url \
	  --no-emit-find-links setup.py -o requirements.lock

clean:
	rm -rf .venv .venv-docs .venv-beam .venv-addons .venv-peers .venv-hub .venv-detection .venv-oldest .venv-colab .venv-tpu build dist keras_sslhsic.egg-info runs site

.PHONY: tpu-check
tpu-check: .venv-tpu/installed
	TPU_SKIP_MDS_QUERY=1 PYTHONPATH=. .venv-tpu/bin/python tools/tpu_check.py $(if $(ONLY),--only $(ONLY))

# tensorflow-tpu takes the place of tensorflow; both in one environment overwrite each other.
.venv-tpu/installed: requirements.lock
	$(PYTHON) -m venv .venv-tpu
	grep -v '^tensorflow==' requirements.lock > .venv-tpu/requirements.txt
	.venv-tpu/bin/pip install --quiet --progress-bar off --no-deps -r .venv-tpu/requirements.txt \
	  tensorflow-tpu==2.20.0 libtpu==0.0.30 jax==0.6.2 jaxlib==0.6.2
	@touch $@

.PHONY: docs test-docs notebooks
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet

# PICTURES=folder keeps what the browser showed.
test-docs: docs
	.venv-docs/bin/python tools/check_site.py $(PICTURES)

notebooks: .venv/installed
	$(BIN)/python tools/run_notebooks.py

# Pages are made from the sources alone: neither TensorFlow nor the package is installed. Playwright drives the Chromium that is there.
.venv-docs/installed: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --progress-bar off -r requirements-docs.txt
	@touch $@
