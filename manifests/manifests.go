// Package manifests embeds what a user applies with kubectl, for the programs
// that apply it themselves.
package manifests

import "embed"

// FS holds the kustomize folder base/, and examples/ to apply to a cluster that
// has it.
//
//go:embed base examples
var FS embed.FS
