# Berth. `make help` lists the targets.

export CGO_ENABLED ?= 0
# grpcnotrace leaves out golang.org/x/net/trace, whose templates keep the linker
# from dropping what no program calls: it halves the agent.
export GOFLAGS     := $(GOFLAGS) -trimpath -buildvcs=false -tags=grpcnotrace

BIN      := bin
VERSION  ?= v0.1.0-dev

# Kubernetes' own components judge by their version what they are compatible
# with: inside of every program it is that of go.mod, beside Berth's.
KUBERNETES := $(shell awk '$$1 == "k8s.io/kubernetes" {print $$2}' go.mod)
LDFLAGS    := -s -w -X github.com/berth-storage/berth/internal/program.version=$(VERSION) \
	-X k8s.io/component-base/version.gitVersion=$(KUBERNETES) -X k8s.io/client-go/pkg/version.gitVersion=$(KUBERNETES) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))

# In a mount namespace of its own: what is mounted there is not held by a
# container, or whatever else copies its namespace, that somebody starts at that
# moment beside it; and it goes with its processes when they are killed.
APART := unshare --mount --propagation slave

# Packages with tests. go test also compiles those without, and for the race
# detector that would be the whole of Kubernetes once more; for the same reason
# what links kube-scheduler's own parts is tested without it, and the oracle, which
# has one goroutine and much to do.
TESTED := go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...

PROGRAMS := $(notdir $(wildcard cmd/*))

.DEFAULT_GOAL := help

##@ Everyday

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: $(addprefix build-,$(PROGRAMS)) ## Build every program into bin/

.PHONY: build-%
build-%:
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/$* ./cmd/$*

.PHONY: build-all
build-all: ## Build every program for amd64 and arm64, into bin/linux_<arch>/
	for arch in amd64 arm64; do \
		GOOS=linux GOARCH=$$arch go build -ldflags '$(LDFLAGS)' -o $(BIN)/linux_$$arch/ ./cmd/... && \
		go run ./hack/binaries -arch=$$arch $(BIN)/linux_$$arch/* || exit 1; \
	done

# The image of all programs, as `make manifests` writes it.
IMAGE ?= berth:$(VERSION)

# plugin: berth-scheduler. extender: a stock kube-scheduler with berth-extender.
SCHEDULER ?= plugin

.PHONY: manifests
manifests: ## Print what to apply to a cluster, with IMAGE=registry.example/berth:tag and SCHEDULER=plugin or extender
	@go run ./hack/manifests -image='$(IMAGE)' -scheduler='$(SCHEDULER)'

.PHONY: demo
demo: prerequisites build ## Show one claim's whole life on a cluster of its own, and clean up
	$(APART) $(BIN)/berth-sandbox demo

.PHONY: demo-extender
demo-extender: prerequisites build ## The same with a stock kube-scheduler and berth-extender instead of berth-scheduler
	$(APART) $(BIN)/berth-sandbox demo --scheduler=extender

.PHONY: up
up: prerequisites build ## Start a cluster and leave it running
	$(BIN)/berth-sandbox up

.PHONY: down
down: ## End the cluster that `make up` started
	$(BIN)/berth-sandbox down

.PHONY: test
test: unit e2e ## Run every test; with the same seeds and order each time

.PHONY: ci
ci: test ## What .ci/run runs on a clean clone

.PHONY: soak
soak: test-prerequisites build ## The long tests with ever new seeds, for SOAK_MINUTES=30; writes docs/soak.md
	BERTH_BIN_DIR=$(CURDIR)/$(BIN) SOAK_MINUTES='$(SOAK_MINUTES)' $(APART) hack/soak.sh

##@ Tests

# The order of the tests of a package: a number, or on for another one each time.
# BERTH_SEED and BERTH_COUNT (test/seeds) say which random cases, and how many.
SHUFFLE ?= 1

.PHONY: unit
unit: test-prerequisites ## The tests that need no cluster, with the race detector and real mounts
	CGO_ENABLED=1 go test -race -shuffle=$(SHUFFLE) -exec '$(APART)' $$($(TESTED) | grep -v -e /test/e2e -e /cmd/berth-scheduler -e /cmd/berth-sandbox -e /test/oracle -e /test/schedulerconfig -e /test/bench/filter)
	go test -shuffle=$(SHUFFLE) -exec '$(APART)' ./cmd/berth-scheduler ./cmd/berth-sandbox ./test/oracle ./test/schedulerconfig ./test/bench/filter

.PHONY: oracle
oracle: ## The scheduler plugin against upstream's, a model and the extender, on 2,000 random clusters
	go test -count=1 -v ./test/oracle

.PHONY: sanity
sanity: test-prerequisites ## The CSI community's suite against the driver, with real mounts
	go test -count=1 -v -run TestSanity -exec '$(APART)' ./driver

.PHONY: e2e
e2e: test-prerequisites build ## The tests on a cluster of real processes
	BERTH_BIN_DIR=$(CURDIR)/$(BIN) go test -count=1 -timeout 30m -exec '$(APART)' ./test/e2e/...

.PHONY: prerequisites
prerequisites:
	@hack/prerequisites.sh

.PHONY: test-prerequisites
test-prerequisites:
	@hack/prerequisites.sh cc:gcc cc:libc6-dev

##@ Benchmarks

# Each needs a quiet machine, writes its progress to standard error, and nothing
# but its lines to standard output. What each says, and its flags: --help.

.PHONY: bench-scheduler
bench-scheduler: bench-filter bench-throughput bench-memory bench-perf ## All benchmarks of the scheduler, beside the stock one

.PHONY: bench-filter
bench-filter: ## What judging nodes for one pod costs, plugin by plugin, and what the extender adds
	go run ./test/bench/filter

.PHONY: bench-throughput
bench-throughput: prerequisites build-berth-sandbox build-berth-scheduler ## Pods a second through both schedulers, as processes on a real API server
	go run ./test/bench/throughput

.PHONY: bench-memory
bench-memory: prerequisites build-berth-sandbox build-berth-scheduler ## Memory of both schedulers with 5,000 nodes and 20,000 volumes
	go run ./test/bench/memory

.PHONY: bench-perf
bench-perf: build-berth-sandbox ## The volume workloads of Kubernetes' scheduler_perf with both schedulers
	go run ./test/bench/perf

##@ Code

.PHONY: generate
generate: ## Remake generated code (needs protoc, protoc-gen-go, protoc-gen-go-grpc)
	protoc -I nodeagent/podvolumes/v1 --go_out=nodeagent/podvolumes/v1 --go_opt=paths=source_relative \
		--go-grpc_out=nodeagent/podvolumes/v1 --go-grpc_opt=paths=source_relative podvolumes.proto

# golangci-lint is a module of its own, so that what it needs pulls at none of
# Berth's versions.
$(BIN)/golangci-lint: hack/lint/go.mod hack/lint/go.sum
	go build -C hack/lint -ldflags '-s -w' -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: $(BIN)/golangci-lint ## Hold the code to .golangci.yml (the first time takes minutes)
	$< run

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format the code
	$< fmt
