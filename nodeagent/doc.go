// Package nodeagent is the kubelet's side of CSI for nodes without a kubelet:
// drivers register, the node is described in the API, and the volumes of the
// node's pods are staged, published, grown, unpublished and unstaged.
//
//	registrar ─▶ drivers ─▶ nodeinfo ─▶ Node, CSINode
//	                 │
//	desired ──┐      ▼
//	record  ──┼─▶ plan ─▶ apply ─▶ the CSI driver
//	mounts  ──┘             │
//	podvolumes ◀────────────┘  ◀─▶ the pod runtime
//
// The unit of work is one volume: a queue holds the volumes whose desired state,
// record or driver changed, and a volume is worked on by one worker at a time.
// A failure backs off for that volume alone.
package nodeagent
