package volume

// Link is one link of the chain that a volume goes through. Logs, metrics and
// `berth explain` name links with these words.
type Link string

// The chain, in order, and back.
const (
	// LinkClaim: the claim exists and is well formed.
	LinkClaim Link = "Claim"
	// LinkClass: the claim's StorageClass exists and names a driver.
	LinkClass Link = "Class"
	// LinkSchedule: a node is chosen for the pod (and so for its volumes).
	LinkSchedule Link = "Schedule"
	// LinkProvision: CreateVolume succeeded and the PersistentVolume exists.
	LinkProvision Link = "Provision"
	// LinkBind: claim and PersistentVolume name each other.
	LinkBind Link = "Bind"
	// LinkAttach: the volume is attached to the node, where its driver needs that.
	LinkAttach Link = "Attach"
	// LinkStage: NodeStageVolume succeeded on the node.
	LinkStage Link = "Stage"
	// LinkPublish: NodePublishVolume succeeded for the pod.
	LinkPublish Link = "Publish"
	// LinkExpand: the volume and its filesystem have the size that the claim asks for.
	LinkExpand Link = "Expand"

	// LinkUnpublish: the pod no longer has the volume.
	LinkUnpublish Link = "Unpublish"
	// LinkUnstage: the node no longer has the volume.
	LinkUnstage Link = "Unstage"
	// LinkDetach: the volume is no longer attached to the node.
	LinkDetach Link = "Detach"
	// LinkDelete: the volume and its PersistentVolume are gone.
	LinkDelete Link = "Delete"
)

// Forward are the links from a claim to a running pod, in order.
func Forward() []Link {
	return []Link{
		LinkClaim, LinkClass, LinkSchedule, LinkProvision, LinkBind,
		LinkAttach, LinkStage, LinkPublish, LinkExpand,
	}
}

// Backward are the links from a running pod to nothing left, in order.
func Backward() []Link {
	return []Link{LinkUnpublish, LinkUnstage, LinkDetach, LinkDelete}
}
