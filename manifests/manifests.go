// Package manifests embeds what a user applies with kubectl, for the programs
// that apply it themselves.
package manifests

import "embed"

// FS holds the kustomize folders base/ and extender/, and examples/ to apply to a
// cluster that has one of them.
//
//go:embed base extender examples
var FS embed.FS
