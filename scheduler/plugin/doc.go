// Package plugin is BerthVolumes, a kube-scheduler plugin that takes the place
// of VolumeBinding and NodeVolumeLimits in a profile. It is an adapter:
// scheduler/binder judges, plans and binds; here are the extension points, what
// they keep of a cycle, and which event wakes which pod. It is the only importer
// of the scheduler framework.
//
// The flow of one pod, by extension point:
//
//	PreFilter         the pod's claims, classified, and a snapshot for the cycle
//	Filter            a verdict for each node (parallel; no side effect)
//	PreScore, Score   the node whose storage stays emptiest
//	Reserve           the plan becomes visible to every later decision
//	PreBindPreFlight  is there anything to write or to wait for?
//	PreBind           the plan is written, then awaited by informer events; a pod
//	                  that waits long for one thing is told by an event of its own
//	Unreserve         undoes Reserve, in memory; nothing in the API is undone
//
// Differences from upstream, by the name of their Difference; elsewhere both
// give the same answer:
//
//   - Holds: What is promised to a claim and not yet inside a published
//     capacity is subtracted from it; upstream promises the same bytes again.
//   - JointCapacity: All claims of a pod are judged together against the pools
//     that they share, over classes; upstream judges each alone.
//   - BoundedAndFree: An object that publishes both a capacity and a maximum
//     volume size must have room by both; upstream looks at the maximum alone.
//   - Matching: Where the greedy match of claims to volumes is not complete,
//     another one is looked for; upstream refuses the node.
//   - Prebound: A claim whose reserved volume cannot be reached from the node
//     is refused there; upstream provisions it another one.
//   - MatchFields: Terms of a volume's node affinity with matchFields are
//     honoured; upstream ignores the fields.
//   - Huge: A claim that asks for 8 EiB or more finds no capacity that is large
//     enough; upstream takes such a number for 0 or less, and provisions it
//     anywhere.
//   - SelectedNowhere: A selected-node annotation without a value selects nothing;
//     upstream refuses the claim every node.
//   - SelectedHere: A claim that is selected for the node is not asked for
//     capacity again, as its bytes are held; upstream may refuse it its own
//     place.
//   - Reserved: What another pod has reserved stays reserved until the API says
//     so, whatever else changes: two pods of one claim never part, and no volume
//     is promised twice; upstream forgets at any change of the object.
//   - Source: A claim made from a snapshot or from another claim is refused
//     where that cannot be reached; upstream lets the driver fail.
//   - Refused: A node whose driver gave a claim of the class and size back is
//     taken only where no other that takes the pod has room, until its capacity
//     changes or two minutes pass; upstream tries it again at once.
//   - AttachedOwn: A volume that is still attached from the pod's former life
//     on the node counts once; upstream counts it twice.
//   - AttachedAny: VolumeAttachments of migrated and of inline volumes, and
//     those whose volume is gone, take their place; upstream counts CSI
//     volumes that exist.
//   - Preemption: In a dry run the attachments of evicted pods go with the
//     pods; upstream still counts them, so that preemption never helps.
//   - LimitGrace: An attach limit that vanishes or becomes 0 is remembered for
//     a grace; upstream takes any number in the meantime.
//   - DriverMissing: A node without a driver that must be there is
//     unresolvable, as no eviction installs it, and a startup taint <driver>/…
//     says so too; upstream calls it unschedulable and knows no taint.
//   - ForeignEphemeral: The ephemeral claim of a pod on the node that belongs
//     to another object is not counted; upstream ends in an error.
//   - ClaimTwice: A claim that a pod names in two volumes is one claim; upstream
//     looks for a volume for each of them.
//   - ClaimErrors: A claim that is missing or broken is told in words of ours
//     behind the same code; the claim is named by namespace and name.
//   - ScorePools: Where a class's claims use several objects, a score sums
//     their capacities, and capacity means what is free of holds; upstream
//     takes the last object's.
//   - ScoreUnpublished: An object that publishes only a maximum volume size
//     counts as full; upstream ends in a panic.
//   - PreScore: PreScore skips pods without a claim to place; upstream scores
//     every node 0.
//   - Details: A reason is upstream's sentence, a colon and a detail.
//   - ReserveAgain: Reserve, Unreserve and Reserve with one state holds the
//     volumes; upstream's second Reserve does not.
//   - Writes: All preconditions are looked at before the first write, writes
//     are patches on a version, run at once, and are repeated on a conflict;
//     upstream updates one object after another and stops at the first
//     failure.
//   - Undo: A volume that was reserved for a pod whose binding fails is given
//     back if nobody has touched it and no other pod counts on it; upstream
//     leaves it. A selected node is never taken back, as upstream.
//   - NoPoll: PreBind returns at the event that completes the binding;
//     upstream looks once a second, the first time after a second.
//   - Hints: Hints look at class, pool, driver, size and node, wake on
//     deletions that end holds and pods with claims when a driver stops
//     tracking capacity; upstream wakes every pod on each change of a node or
//     a volume, and some never.
package plugin
