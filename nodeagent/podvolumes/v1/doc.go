// Package podvolumesv1 is the public protocol between a pod runtime and the
// node agent; podvolumes.proto is its text. The generated files are remade by
// `make generate`.
package podvolumesv1
