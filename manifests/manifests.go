// Package manifests embeds what a user applies with kubectl, for the programs
// that apply it themselves.
package manifests

import "embed"

// FS holds the kustomize folders: base/ and what lies beside it.
//
//go:embed base
var FS embed.FS
