package driver

import (
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// What follows reads requests: values in, values or a gRPC status out.

const (
	// defaultFSType is for requests that name no filesystem.
	defaultFSType = "ext4"
	// defaultSize is for requests that name no size, in bytes.
	defaultSize = volume.GiB
	// xfsMinimum is the smallest xfs that mkfs.xfs makes, in bytes
	// (xfsprogs 6, mkfs/xfs_mkfs.c, validate_supported).
	xfsMinimum = 300 * volume.MiB
)

// use is how a volume is to be used: a VolumeCapability, checked.
type use struct {
	block      bool
	fsType     string // "" for a raw block device
	mountFlags []string
	readOnly   bool // by the access mode
	oneWriter  bool // at one target path at a time
}

// useOf reads one capability.
func useOf(c *csi.VolumeCapability) (use, error) {
	if c == nil {
		return use{}, refuse(codes.InvalidArgument, "volume_capability: must be given")
	}
	var u use
	switch kind := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		u.block = true
	case *csi.VolumeCapability_Mount:
		u.fsType = kind.Mount.GetFsType()
		u.mountFlags = kind.Mount.GetMountFlags()
	default:
		return use{}, refuse(codes.InvalidArgument, "volume_capability.access_type: must be block or mount")
	}
	if !u.block && u.fsType == "" {
		u.fsType = defaultFSType
	}
	if !u.block && u.fsType != "ext4" && u.fsType != "xfs" {
		return use{}, refuse(codes.InvalidArgument, "volume_capability.mount.fs_type: %q is not supported; want ext4 or xfs", u.fsType)
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		u.oneWriter = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		u.readOnly = true
	default:
		return use{}, refuse(codes.InvalidArgument,
			"volume_capability.access_mode: %s is not supported; a local volume is used on one node only (ReadWriteOnce or ReadWriteOncePod)", mode)
	}
	return u, nil
}

// useOfAll reads the capabilities of one volume, which must agree on what it
// holds.
func useOfAll(caps []*csi.VolumeCapability) (use, error) {
	if len(caps) == 0 {
		return use{}, refuse(codes.InvalidArgument, "volume_capabilities: must be given")
	}
	first, err := useOf(caps[0])
	if err != nil {
		return use{}, err
	}
	for _, c := range caps[1:] {
		u, err := useOf(c)
		if err != nil {
			return use{}, err
		}
		if u.block != first.block || u.fsType != first.fsType {
			return use{}, refuse(codes.InvalidArgument, "volume_capabilities: one volume cannot be both block and mount, nor hold two filesystems")
		}
	}
	return first, nil
}

// suits checks that a volume can be used so.
func suits(v pool.Volume, u use) error {
	if v.FSType == u.fsType {
		return nil
	}
	return refuse(codes.InvalidArgument, "volume %s was made for %s and cannot be used as %s", v.Name, kindOf(v.FSType), kindOf(u.fsType))
}

func kindOf(fsType string) string {
	if fsType == "" {
		return "a raw block device"
	}
	return fsType
}

// minimumSize is the smallest volume for a use, in bytes.
func minimumSize(u use) int64 {
	if u.fsType == "xfs" {
		return xfsMinimum
	}
	return pool.Unit
}

// sizeOf chooses the size of a new volume.
func sizeOf(r *csi.CapacityRange, u use) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if err := checkRange(required, limit); err != nil {
		return 0, err
	}
	size := required
	if required == 0 {
		size = defaultSize
		if limit > 0 {
			size = min(size, limit-limit%pool.Unit)
		}
	}
	// A smaller ext4 or device is rounded up to the unit, which is their
	// least. Rounding up to xfs' would take far more than anybody counted on.
	if least := minimumSize(u); u.fsType == "xfs" && size < least {
		return 0, refuse(codes.OutOfRange, "capacity_range: %s are too few: xfs needs at least %s; ask for more, or for ext4",
			volume.FormatBytes(size), volume.FormatBytes(least))
	}
	return roundWithin(max(size, 1), limit)
}

// grownSize chooses the size to grow to.
func grownSize(r *csi.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required == 0 {
		return 0, refuse(codes.InvalidArgument, "capacity_range.required_bytes: must be given")
	}
	if err := checkRange(required, limit); err != nil {
		return 0, err
	}
	return roundWithin(required, limit)
}

func checkRange(required, limit int64) error {
	if required < 0 || limit < 0 {
		return refuse(codes.InvalidArgument, "capacity_range: required_bytes %d and limit_bytes %d must not be below 0", required, limit)
	}
	if limit > 0 && limit < required {
		return refuse(codes.InvalidArgument, "capacity_range: limit_bytes %d is below required_bytes %d", limit, required)
	}
	return nil
}

func roundWithin(size, limit int64) (int64, error) {
	rounded := volume.RoundUp(size, pool.Unit)
	if limit > 0 && rounded > limit {
		return 0, refuse(codes.OutOfRange, "capacity_range: sizes are multiples of %s, and %d, the first that is enough, is above limit_bytes %d",
			volume.FormatBytes(pool.Unit), rounded, limit)
	}
	return rounded, nil
}

// within checks that an existing volume's size satisfies a range.
func within(size int64, r *csi.CapacityRange) bool {
	return size >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || size <= r.GetLimitBytes())
}

// poolParameter reads the parameters of a StorageClass.
func poolParameter(parameters map[string]string) (string, error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if key != volume.ParameterPool && !strings.HasPrefix(key, volume.ReservedParameterPrefix) {
			return "", refuse(codes.InvalidArgument, "parameter %q is not known; %s is the only one", key, volume.ParameterPool)
		}
	}
	return parameters[volume.ParameterPool], nil
}

// allows reports whether a topology requirement lets a volume be here. An empty
// requirement lets it be anywhere.
func allows(r *csi.TopologyRequirement, here map[string]string) bool {
	terms := r.GetRequisite()
	if len(terms) == 0 {
		terms = r.GetPreferred()
	}
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(t *csi.Topology) bool {
		return volume.Topology(t.GetSegments()).MatchedBy(here)
	})
}

// required checks that the named fields of a request are not empty.
func required(fields map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if fields[name] == "" {
			return refuse(codes.InvalidArgument, "%s: must be given", name)
		}
	}
	return nil
}
