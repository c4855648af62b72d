#!/bin/sh
# Builds what `make test-deploy` needs beside Python into .tools/bin, from Go modules of fixed versions: helm, promtool,
# etcd and kube-apiserver. It takes about ten minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.tools/bin
export GOBIN="$bin" GOWORK=off GOFLAGS=-buildvcs=false CGO_ENABLED=0
kubernetes=37.2

go install -ldflags="-s -w" helm.sh/helm/v4/cmd/helm@v4.3.1
# Without service discovery, which promtool's tests do not use, a third of the code is left to compile.
go install -ldflags="-s -w" -tags remove_all_sd github.com/prometheus/prometheus/cmd/promtool@v0.316.0

# These modules replace others, so each is built from a module of its own that requires it.
build() {
    (cd "$1" && go build -mod=mod -ldflags="-s -w ${4:-}" -o "$bin/$2" "$3")
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/etcd" "$folder/kubernetes"
printf 'module etcd\ngo 1.26.0\nrequire go.etcd.io/etcd/server/v3 v3.7.0\n' >"$folder/etcd/go.mod"
build "$folder/etcd" etcd go.etcd.io/etcd/server/v3
# Kubernetes names the libraries of its own tree by paths; their published versions have the same number.
source=$(go mod download -json "k8s.io/kubernetes@v1.$kubernetes" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')
{
    printf 'module kubernetes\ngo 1.26.0\nrequire k8s.io/kubernetes v1.%s\n' "$kubernetes"
    sed -n "s|^[[:space:]]*\(k8s.io/[a-z-]*\) => ./staging/.*|replace \1 => \1 v0.$kubernetes|p" "$source/go.mod"
} >"$folder/kubernetes/go.mod"
version=k8s.io/component-base/version
build "$folder/kubernetes" kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver \
    "-X $version.gitVersion=v1.$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${kubernetes%.*}"
