# Berth. `make help` lists the targets.

export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath -buildvcs=false

BIN      := bin
VERSION  ?= v0.1.0-dev
LDFLAGS  := -s -w -X k8s.io/component-base/version.gitVersion=$(VERSION)
PROGRAMS := $(notdir $(wildcard cmd/*))

.DEFAULT_GOAL := help

##@ Everyday

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: $(addprefix build-,$(PROGRAMS)) ## Build every program into bin/

.PHONY: build-%
build-%:
	go build -ldflags '$(LDFLAGS)' -o $(BIN)/$* ./cmd/$*

.PHONY: unit
unit: ## Run the tests that need no cluster, with the race detector (root, for real mounts)
	CGO_ENABLED=1 go test -race -shuffle=on $$(go list ./... | grep -v '/test/e2e')

.PHONY: test
test: unit ## Run every test

##@ Code

.PHONY: generate
generate: ## Remake generated code (needs protoc, protoc-gen-go, protoc-gen-go-grpc)
	protoc -I nodeagent/podvolumes/v1 --go_out=nodeagent/podvolumes/v1 --go_opt=paths=source_relative \
		--go-grpc_out=nodeagent/podvolumes/v1 --go-grpc_opt=paths=source_relative podvolumes.proto

.PHONY: fmt
fmt: ## Format the code
	gofmt -w $$(git ls-files '*.go')
