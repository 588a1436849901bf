// Package volume is the vocabulary that every room of Berth shares: names and
// keys, identities, sizes, topology, the links of the chain and the reasons
// that a link is broken.
//
// It is pure: values in, values out. It imports no client, no clock, no
// operating system, so that any room may import it and none can be surprised
// by it.
package volume
