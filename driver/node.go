package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	caps := make([]*csi.NodeServiceCapability, 0, len(types))
	for _, t := range types {
		caps = append(caps, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{
			Rpc: &csi.NodeServiceCapability_RPC{Type: t},
		}})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: caps}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	all, err := d.allSegments(ctx)
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetInfoResponse{
		NodeId:             d.nodeID,
		MaxVolumesPerNode:  d.maxVolumes,
		AccessibleTopology: &csi.Topology{Segments: all},
	}, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := required(map[string]string{"volume_id": req.GetVolumeId(), "volume_path": req.GetVolumePath()}); err != nil {
		return nil, err
	}
	p, v, err := d.lookup(ctx, req.GetVolumeId())
	if err != nil {
		return nil, statusOf(err)
	}
	m, err := d.mountedVolume(ctx, p, v, req.GetVolumePath())
	if err != nil {
		return nil, statusOf(err)
	}
	if v.FSType == "" {
		size, err := d.host.BlockSize(m.device)
		if err != nil {
			return nil, statusOf(err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	u, err := d.host.Statfs(req.GetVolumePath())
	if err != nil {
		return nil, statusOf(err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Available: u.AvailableBytes, Used: u.UsedBytes},
		{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Available: u.AvailableInodes, Used: u.UsedInodes},
	}}, nil
}

// notStaged is the answer for a volume that must be staged first.
func notStaged(volumeID, path string) error {
	return refuse(codes.FailedPrecondition, "volume %s is not staged at %q; NodeStageVolume comes first", volumeID, path)
}
