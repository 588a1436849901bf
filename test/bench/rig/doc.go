// Package rig is what the benchmarks of whole schedulers share: a control plane
// of real processes, simulated nodes on it, the two schedulers, and a stand-in
// for whoever makes and binds volumes, which answers at once. With it the
// schedulers are measured, and not what stands behind them.
package rig
