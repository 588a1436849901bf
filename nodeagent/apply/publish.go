package apply

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

func (r *Runner) publish(ctx context.Context, s plan.Step, w *plan.Wanted, d Driver) error {
	if err := r.inside(s.Target); err != nil {
		return err
	}
	use, ok := useOf(w, s.Pod)
	if !ok {
		return fmt.Errorf("pod %s does not want the volume any more", s.Pod)
	}
	mountsForGroup, err := d.NodeHas(ctx, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	if err != nil {
		return err
	}
	capability, err := capabilityFor(ctx, d, w, use.FSGroup)
	if err != nil {
		return err
	}
	secrets, err := r.secret(ctx, w.PublishSecret)
	if err != nil {
		return err
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId:          w.Key.Handle,
		StagingTargetPath: s.Staging,
		TargetPath:        s.Target,
		VolumeCapability:  capability,
		Readonly:          use.ReadOnly,
		VolumeContext:     merged(w.Context, use.PodInfo),
		Secrets:           secrets,
	}
	return r.bringAbout(ctx, s.Key, setUp{
		path: s.Target,
		edit: publishEffect(s.Pod),
		identify: func(rec *plan.Record) {
			rec.PV, rec.Block = w.PV, w.Block
			p := rec.Pods[s.Pod]
			p.Pod, p.Volume, p.ReadOnly = use.Pod, use.Name, use.ReadOnly
			rec.Pods[s.Pod] = p
		},
		prepare: func() error { return r.makeTarget(s, w) },
		call: func(ctx context.Context) error {
			return call(ctx, "NodePublishVolume", func(ctx context.Context) error {
				_, err := d.Node().NodePublishVolume(ctx, request)
				return err
			})
		},
		finish: func(context.Context) error {
			if use.FSGroup == nil || mountsForGroup || !w.ChownToFSGroup || use.ReadOnly || w.Block {
				return nil
			}
			return giveToGroup(s.Target, *use.FSGroup, use.FSGroupIfRootDiffers)
		},
		discard: func() error { return r.removeTarget(s.Target, w.Block) },
	})
}

func (r *Runner) unpublish(ctx context.Context, s plan.Step, d Driver) error {
	if err := r.inside(s.Target); err != nil {
		return err
	}
	block := r.cfg.Record.Get(s.Key).Block
	return r.takeBack(ctx, s.Key, undo{
		path: s.Target,
		edit: publishEffect(s.Pod),
		check: func(rec plan.Record) error {
			if rec.Pods[s.Pod].Custody == plan.HandedOut {
				return fmt.Errorf("pod %s was handed the volume in the meantime", s.Pod)
			}
			return nil
		},
		inverse: func(ctx context.Context) error {
			return call(ctx, "NodeUnpublishVolume", func(ctx context.Context) error {
				_, err := d.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
					VolumeId: s.Key.Handle, TargetPath: s.Target,
				})
				return err
			})
		},
		clean: func() error { return r.removeTarget(s.Target, block) },
	})
}

// makeTarget makes the target's parent; the target itself is the driver's to make.
func (r *Runner) makeTarget(s plan.Step, w *plan.Wanted) error {
	parent := filepath.Dir(s.Target)
	if err := makeDir(parent); err != nil {
		return err
	}
	if w.Block {
		return nil
	}
	return writeVolData(parent, volData{
		SpecVolID:           w.PV,
		VolumeHandle:        s.Key.Handle,
		DriverName:          s.Key.Driver,
		NodeName:            r.cfg.NodeName,
		AttachmentID:        volume.AttachmentName(s.Key.Handle, s.Key.Driver, r.cfg.NodeName),
		VolumeLifecycleMode: "Persistent",
	})
}

func useOf(w *plan.Wanted, uid string) (plan.PodUse, bool) {
	if w != nil {
		for _, u := range w.Pods {
			if u.Pod.UID == uid {
				return u, true
			}
		}
	}
	return plan.PodUse{}, false
}

// merged copies, because a Wanted is shared.
func merged(base, more map[string]string) map[string]string {
	all := make(map[string]string, len(base)+len(more))
	maps.Copy(all, base)
	maps.Copy(all, more)
	return all
}
