# What a newcomer types: `make run` and `make test`. Both make the virtual environment first.

PYTHON ?= python3
BIN     = .venv/bin

# Where Python keeps no bytecode, each of hundreds of processes compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

# The real parts that the tests talk to.
PACKAGES = linuxptp chrony prometheus postgresql libedit2 libseccomp2 mosquitto snmpd snmp snmptrapd chromium g++ iproute2 util-linux procps systemd

# What the daemon serves as its page; git ignores it.
BUNDLE = timesyncd/web/bundle/built-from.txt

# A test that ends its process fails the run at once, by its name; in its place a new process may wait for ever.
XDIST = --dist loadfile --max-worker-restart 0

# Peers that only benches compare with.
BENCH_PACKAGES = $(PACKAGES) prometheus-node-exporter mosquitto-clients

.PHONY: run check page floods lock test-versions unit lint test real test-packages bench-packages bench bench-policies claim gpu-check fuzz properties soak test-more vm-test vm-soak matrix matrix-packages faults job-soak schemas docs dist dist-test deploy-test rabbitmq-test rabbitmq-load load clean

# DEMO='--seconds 20 --json' runs it without the view.
run: $(BUNDLE)
	@$(BIN)/timesyncd demo $(DEMO)

# What a contributor runs before each commit: lint, types, import layers and the unit tests. Needs no Debian package and no root.
check: .venv/dev $(BUNDLE)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint page unit

unit: .venv/dev
	$(BIN)/pytest --numprocesses 2 $(XDIST) tests/unit $(PYTEST)

# The page's types, and the tests of its pure parts.
page: $(BUNDLE)
	@$(BIN)/python page/build_page.py check

# Every view of the page, light and dark, at three widths, into build/screenshots, from a real daemon with a simulated fleet; six of them,
# small, into docs/pictures, which README and docs show.
.PHONY: screenshots
screenshots: export PYTHONPATH := tests/support
screenshots: test-packages .venv/dev $(BUNDLE)
	@$(BIN)/python tests/pictures/screenshots.py build/screenshots docs/pictures

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/tools/prose.py

# Everything: what `check` runs, then all that needs real parts.
test: test-packages
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory real

# The tests on real parts. They wait more than they compute, so there is one process more than cores.
real: .venv/dev $(BUNDLE)
	$(BIN)/pytest --numprocesses 2 $(XDIST) --database postgresql tests/unit/store
	$(BIN)/pytest --numprocesses 3 $(XDIST) tests/integration tests/acceptance tests/simulation $(PYTEST)

# Where chrony and prometheus are unpacked to (tests/packages.sh).
real soak: export PATH := $(PATH):$(CURDIR)/.unpacked/usr/sbin:$(CURDIR)/.unpacked/usr/bin

# Root installs what is missing; anybody else is told, before any test.
test-packages:
	@sh tests/packages.sh $(PACKAGES)

bench-packages:
	@sh tests/packages.sh $(BENCH_PACKAGES)

# One script a claim; each prints a ratio against a peer measured in the same run.
bench: bench-packages .venv/dev
	@for script in $(filter-out bench/gpu_check.py bench/whole_load.py,$(wildcard bench/[a-z]*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The largest load of nodes, jobs and browsers together that a hub holds on this machine's cores (docs/scaling.md); MINUTES in all.
load: MINUTES = 7.5
load: bench-packages .venv/dev $(BUNDLE)
	@$(BIN)/python bench/whole_load.py --minutes $(MINUTES)

# The client for PyTorch on a machine with one card (docs/pytorch.md). PYTHON is one that has torch; it needs nothing else.
gpu-check:
	@$(PYTHON) bench/gpu_check.py

# The claims of vendors of timing equipment, measured on a reproducible job: docs/audit.md.
claim: .venv/dev
	@$(BIN)/timesyncd claim

# When to synchronize: what each policy costs and gains, in 20 minutes; it goes on where it stopped. PART=curves trains replicas in one process,
# PART=table writes docs/policies-bench.md. bench/policies/README.md.
bench-policies: .venv/dev
	@cd bench && $(CURDIR)/$(BIN)/python -m policies.$(or $(PART),run)

# Coverage-guided fuzzing of every parser and of a whole hub, MINUTES in all. It goes on where the last run stopped, and keeps what fails
# in .fuzz/faults. TARGET='mqtt payload' takes one of them.
MINUTES ?= 30
fuzz: .venv/dev
	@$(BIN)/python -m pip install --quiet --group fuzz
	@$(BIN)/python fuzz/run.py --minutes $(MINUTES) $(if $(TARGET),--target '$(TARGET)')

# The property tests of every parser and of the arithmetic with 5 000 examples each. What fails is kept in .hypothesis and tried
# first by the next run, so this can be stopped at any time. PYTEST='-k decode' takes some of them.
properties: .venv/dev
	$(BIN)/pytest -m hypothesis --hypothesis-profile=fuzz $(PYTEST)

# The bound against a known truth: SEEDS simulated chains of each scenario, whose worst seeds are printed, then real parts for about ten
# minutes a bout. Stopped, it goes on after the last seed or whole bout; finished, it begins anew.
BOUTS ?= 5
SEEDS ?= 2000
soak: test-packages .venv/dev
	@mkdir -p .soak && touch .soak/bouts-done
	@$(BIN)/python tests/simulation/soak.py --state .soak/seeds --seeds $(SEEDS)
	@while [ $$(wc -l < .soak/bouts-done) -lt $(BOUTS) ]; do \
		TIMESYNCD_TRUTH_ROUNDS=4 $(BIN)/pytest -q tests/acceptance/test_truth.py || exit 1; \
		date -u >> .soak/bouts-done; \
		echo "soak: $$(wc -l < .soak/bouts-done) of $(BOUTS) bouts held"; \
	done
	@rm -r .soak

# Real virtual machines under QEMU, with PTP hardware clocks (docs/proven.md). Root, and QEMU 8.1 or newer; the disk is made once, into
# $TIMESYNCD_VM_CACHE (~/.cache/timesyncd-vm). PYTEST='-k card' takes some of the tests.
vm-test: .venv/dev $(BUNDLE)
	@$(BIN)/python tests/vm/vm_build.py
	$(BIN)/pytest tests/vm $(PYTEST)

# Every scenario of tests/vm/vm_scenarios.py. Stopped, it goes on after the last one that was judged; what was judged is in .vm-soak.
# SCENARIOS='quiet step-2s' runs some.
vm-soak: .venv/dev $(BUNDLE)
	@$(BIN)/python tests/vm/vm_soak.py --state .vm-soak $(SCENARIOS)

# The drivers against each linuxptp and chrony that Debian 12, 13 and sid have, and timesyncd on each release's Python and systemd. Root; the
# releases are made once, into $TIMESYNCD_MATRIX_CACHE (~/.cache/timesyncd-matrix). Prints the tables of docs/ptp4l.md and docs/clock-sources.md.
matrix: export PYTHONPATH := $(CURDIR)/deploy
matrix: matrix-packages .venv/dev $(BUNDLE)
	@$(BIN)/python tests/matrix/matrix_run.py

# What CI runs after `make test`.
test-more: matrix test-versions

matrix-packages:
	@sh tests/packages.sh mmdebstrap debian-archive-keyring iproute2 util-linux procps

# Each fault of tests/faults/faults_rows.py, done to a running system with a known truth; root. Writes the table of docs/faults.md.
# Stopped, it goes on after the last fault that was judged; what was judged is in .faults. FAULTS='broker: EMFILE' does some and writes nothing;
# TIMESYNCD_FAULTS_KILLS is how often the daemon is killed (100).
faults: export PATH := $(PATH):$(CURDIR)/.unpacked/usr/sbin:$(CURDIR)/.unpacked/usr/bin
faults: export PYTHONPATH := tests/support
faults: test-packages .venv/dev
	@$(BIN)/python tests/faults/faults_run.py --state .faults $(if $(FAULTS),$(FAULTS),--write docs/faults.md)

# Regenerates schemas/, docs/reference/ and the tables of docs/grandmasters.md from the code; a test fails when they differ.
schemas: .venv/dev
	$(BIN)/python -m timesyncd.cli.schemas
	$(BIN)/python docs/tools/reference.py

# The documentation as a site, in build/docs/<version>/; a link that leads nowhere fails.
docs: .venv/dev
	@$(BIN)/python -m pip install --quiet --group docs
	@$(BIN)/python docs/tools/build_site.py

# The newest versions that pyproject.toml allows, with the hashes of every platform's files. The lock is made on the oldest Python, which
# needs the most packages.
lock: .venv/daemon
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND='make lock' .venv-lock/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --extra daemon --extra demo \
		--output-file requirements/run.lock pyproject.toml requirements/installer.in
	CUSTOM_COMPILE_COMMAND='make lock' .venv-lock/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --output-file requirements/node.lock requirements/node.in
	rm -r .venv-lock
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/run.lock
	$(BIN)/python requirements/dependencies.py licences > requirements/licences.md

# The unit tests with the lowest version of each dependency that pyproject.toml allows, and with the newest one that there is. What an old
# version calls and a newer one deprecates is no fault of this project. anyio's plugin of pytest is not used, and an old one fails.
EXTRAS = audit,daemon,demo,mib,notify,otlp,parquet,postgresql
test-versions:
	$(PYTHON) requirements/dependencies.py lowest > .lowest-versions
	$(PYTHON) -m venv --clear .venv-lowest && .venv-lowest/bin/python -m pip install --quiet --upgrade pip
	.venv-lowest/bin/python -m pip install --quiet --constraint .lowest-versions --editable '.[$(EXTRAS)]' --group dev
	.venv-lowest/bin/pytest -p no:anyio -W ignore::DeprecationWarning --numprocesses 2 $(XDIST) tests/unit $(PYTEST)
	$(PYTHON) -m venv --clear .venv-newest && .venv-newest/bin/python -m pip install --quiet --upgrade pip
	.venv-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[$(EXTRAS)]' --group dev
	.venv-newest/bin/pytest -p no:anyio --numprocesses 2 $(XDIST) tests/unit $(PYTEST)
	rm -r .venv-lowest .venv-newest .lowest-versions

# 40 training scripts with and without run-audit: the same bits, the late rank named, and no healthy one in RUNS runs. Stopped, it goes on after
# the last run (.job-soak); prints the table of docs/proven.md. `make test` tries three of the scripts (tests/integration/test_scripts_real.py).
RUNS ?= 200
job-soak: export PYTHONPATH := tests/support
job-soak: .venv/dev
	@$(BIN)/python tests/scripts/job_soak.py --state .job-soak --runs $(RUNS); status=$$?; \
		$(BIN)/python tests/scripts/job_soak.py --state .job-soak --table; exit $$status

# Each entry point of a daemon that needs no credential is flooded for a minute, and a hub by what the broker lets others publish
# (tests/integration/test_floods.py, test_floods_hub.py; `make test` does so for seconds).
floods: .venv/dev
	TIMESYNCD_FLOOD_S=60 $(BIN)/pytest -s tests/integration/test_floods.py tests/integration/test_floods_hub.py $(PYTEST)

# What a release has, in dist/, of the commit that is checked out: source distribution, wheel, Debian packages, bill of materials, sums.
dist: matrix-packages .venv/dev
	@$(BIN)/python -m pip install --quiet --group dist
	@$(BIN)/python deploy/dist.py

# What deploys timesyncd (tests/deploy): Debian's Slurm as docs/install-slurm.md installs it, and the manifests of Kubernetes; root.
SLURM_PACKAGES = munge slurm-client slurmctld slurmd
deploy-test: .venv/dev
	@sh tests/packages.sh $(SLURM_PACKAGES)
	@$(BIN)/python -m pip install --quiet --group deploy
	$(BIN)/pytest tests/deploy $(PYTEST)

# Hubs on a cluster of three RabbitMQ 4 of Debian 13 (tests/broker); root. The root is made once, into the matrix's cache.
rabbitmq-test: matrix-packages .venv/dev
	$(BIN)/pytest tests/broker $(PYTEST)

# How many nodes three hubs hold on that cluster, on this machine's cores (docs/scaling.md); root. NODES=30000 is what it begins with.
rabbitmq-load: export PYTHONPATH := bench:deploy:tests/support
rabbitmq-load: matrix-packages .venv/dev
	@$(BIN)/python tests/broker/cluster_load.py $(if $(NODES),--nodes $(NODES))

# What `make dist` built: installed, upgraded, removed and purged in a root of each Debian release, and an image of it by buildah.
dist-test: dist
	@sh tests/packages.sh buildah
	$(BIN)/pytest tests/dist $(PYTEST)

clean:
	rm -rf timesyncd/web/bundle page/node_modules .venv .venv-lock .venv-lowest .venv-newest .lowest-versions build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .fuzz .soak .vm-soak .faults .job-soak .unpacked

# Node.js is that of the machine, else a wheel from the registry that pip uses.
$(BUNDLE): $(wildcard page/*.json page/*.mjs page/*.py page/src/* page/src/views/*) | .venv/daemon
	@$(BIN)/python page/build_page.py
	@touch $@

# From a lock file with hashes, on any Python from 3.11 on; it brings pip and setuptools too, so nothing else is downloaded.
.venv/daemon: pyproject.toml requirements/run.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "timesyncd needs Python 3.11 or later, and $(PYTHON) is none: give another one, as in make run PYTHON=python3.11" >&2; exit 2; }
	@echo "installing into .venv, from the lock file: once, and it takes a minute or two"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/run.lock
	@$(BIN)/python page/build_page.py find-node 2>/dev/null || $(BIN)/python -m pip install --quiet --require-hashes --requirement requirements/node.lock
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev: .venv/daemon
	$(BIN)/python -m pip install --quiet --editable ".[audit,daemon,demo,mib,notify,otlp,parquet,postgresql]" --group dev
	@touch $@
