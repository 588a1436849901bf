package volume

// DriverName is the name of the bundled CSI driver, as it stands in CSIDriver,
// CSINode, StorageClass.provisioner and PersistentVolume.spec.csi.driver.
const DriverName = "local.csi.berth.dev"

// Keys that Berth defines. Each is written by one room only, named here.
const (
	// TopologyNodeKey is the topology key of the bundled driver: one segment
	// per node. Written on the Node by whoever registers the driver there (the
	// kubelet, or nodeagent/nodeinfo), from NodeGetInfo.
	TopologyNodeKey = "topology.berth.dev/node"

	// LabelNode names, on a PersistentVolume or PersistentVolumeClaim, the
	// node that is to act on it, so that an agent can watch only its own. On PVs
	// its value is NodeLabelValue(node name), written by controller/provision; on
	// claims ClaimLabelValue(node name), written by the policy ClaimLabelPolicy
	// and, on claims older than it, by controller/claimwatch.
	LabelNode = "berth.dev/node"

	// ClaimLabelPolicy is the name of the MutatingAdmissionPolicy in manifests/,
	// and of its binding, that keep LabelNode on claims equal to AnnSelectedNode.
	ClaimLabelPolicy = "claim-label.berth.dev"

	// AnnotationPool carries a pool's UUID, on CSIStorageCapacity (written by
	// controller/capacity) and on PersistentVolume (written by
	// controller/provision).
	AnnotationPool = "berth.dev/pool"

	// AnnotationAllocation carries a pool's allocation count: on a
	// CSIStorageCapacity the count when the capacity was read, on a
	// PersistentVolume the count that its own allocation made. The scheduler
	// compares the two to know whether a capacity already contains a volume.
	AnnotationAllocation = "berth.dev/allocation"
)

// Keys of the volume context that the bundled driver returns from CreateVolume.
// controller/provision copies them to the annotations of the same meaning.
const (
	ContextPool       = AnnotationPool
	ContextAllocation = AnnotationAllocation
)

// Parameters of a StorageClass that the bundled driver understands, beside the
// reserved csi.storage.k8s.io/* ones.
const (
	// ParameterPool names the pool of a node that holds the class's volumes;
	// empty means the node's default pool.
	ParameterPool = "berth.dev/pool"

	// ReservedParameterPrefix begins the parameters that belong to the
	// provisioner and never reach CreateVolume (external-provisioner,
	// removePrefixedParameters). GetCapacity may still see them.
	ReservedParameterPrefix = "csi.storage.k8s.io/"

	// ParameterFSType is the reserved parameter for the filesystem type.
	ParameterFSType = ReservedParameterPrefix + "fstype"
)

// Keys that Kubernetes defines and Berth reads or writes. Source:
// k8s.io/component-helpers/storage/volume and the upstream component named.
const (
	// AnnSelectedNode is set on a claim by the scheduler and removed by the
	// provisioner to ask for another node.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"

	// AnnStorageProvisioner is set on a claim by the PV controller: who is to
	// provision it. AnnBetaStorageProvisioner is its older spelling.
	AnnStorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"

	// NoProvisioner is the provisioner of classes whose volumes are made by hand
	// (component-helpers, NotSupportedProvisioner).
	NoProvisioner = "kubernetes.io/no-provisioner"
	// AnnMigratedTo names the CSI driver that took over an in-tree volume.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"

	// AnnBindCompleted is set on a claim when its binding is complete.
	AnnBindCompleted = "pv.kubernetes.io/bind-completed"

	// AnnBoundByController marks a binding that a controller (not the user)
	// made, on a claim or PV.
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"

	// AnnProvisionedBy names the driver that provisioned a PV; the PV
	// controller deletes only volumes that carry it.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"

	// AnnBetaStorageClass is the older place of a claim's or PV's class name;
	// it wins over the field.
	AnnBetaStorageClass = "volume.beta.kubernetes.io/storage-class"

	// AnnDeletionSecretName and AnnDeletionSecretNamespace are always set on a
	// PV by the provisioner; empty means that no secret is needed.
	AnnDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	AnnDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"

	// AnnNodeID maps driver names to node ids, as JSON, on a Node.
	AnnNodeID = "csi.volume.kubernetes.io/nodeid"

	// AnnMigratedPlugins lists, on a CSINode, the in-tree plugins whose
	// volumes the node handles as CSI ones.
	AnnMigratedPlugins = "storage.alpha.kubernetes.io/migrated-plugins"

	// AnnControllerManagedAttach hands a node's volumes to the attach-detach
	// controller.
	AnnControllerManagedAttach = "volumes.kubernetes.io/controller-managed-attach-detach"

	// AnnNodeExpansionNotRequired says, on a claim, that growing needed no
	// step on the node.
	AnnNodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

	// AnnPreResizeCapacity keeps, on a PV, its capacity before a growth that
	// the node has yet to finish.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"

	// FinalizerProvisioner holds a PV until its volume is deleted. The key is
	// external-provisioner's, so that either can take over from the other.
	FinalizerProvisioner = "external-provisioner.volume.kubernetes.io/finalizer"

	// LabelCapacityDriver and LabelCapacityManagedBy are external-provisioner's
	// labels on CSIStorageCapacity.
	LabelCapacityDriver    = "csi.storage.k8s.io/drivername"
	LabelCapacityManagedBy = "csi.storage.k8s.io/managed-by"

	// LabelSnapshotManagedBy names the node of a VolumeSnapshotContent in
	// external-snapshotter's distributed mode.
	LabelSnapshotManagedBy = "snapshot.storage.kubernetes.io/managed-by"

	// LabelZone and LabelHostname are the well-known node labels.
	LabelZone     = "topology.kubernetes.io/zone"
	LabelHostname = "kubernetes.io/hostname"
)
