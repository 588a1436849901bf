package apply

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/berth-storage/berth/nodeagent/plan"
)

func (r *Runner) stage(ctx context.Context, s plan.Step, w *plan.Wanted, d Driver) error {
	if err := r.inside(s.Staging); err != nil {
		return err
	}
	// What may fail without leaving a trace comes before the intent.
	capability, err := capabilityFor(ctx, d, w, firstFSGroup(w))
	if err != nil {
		return err
	}
	secrets, err := r.secret(ctx, w.StageSecret)
	if err != nil {
		return err
	}
	request := &csi.NodeStageVolumeRequest{
		VolumeId:          w.Key.Handle,
		StagingTargetPath: s.Staging,
		VolumeCapability:  capability,
		VolumeContext:     w.Context,
		Secrets:           secrets,
	}
	return r.bringAbout(ctx, s.Key, setUp{
		path:     s.Staging,
		edit:     stageEffect,
		identify: func(rec *plan.Record) { rec.PV, rec.Block = w.PV, w.Block },
		prepare: func() error {
			if err := makeDir(s.Staging); err != nil {
				return err
			}
			if w.Block {
				return nil
			}
			return writeVolData(filepath.Dir(s.Staging), volData{VolumeHandle: s.Key.Handle, DriverName: s.Key.Driver})
		},
		call: func(ctx context.Context) error {
			return call(ctx, "NodeStageVolume", func(ctx context.Context) error {
				_, err := d.Node().NodeStageVolume(ctx, request)
				return err
			})
		},
		discard: func() error { return r.removeStaging(s.Staging, w.Block) },
	})
}

func (r *Runner) unstage(ctx context.Context, s plan.Step, d Driver) error {
	if err := r.inside(s.Staging); err != nil {
		return err
	}
	block := r.cfg.Record.Get(s.Key).Block
	return r.takeBack(ctx, s.Key, undo{
		path: s.Staging,
		edit: stageEffect,
		check: func(rec plan.Record) error {
			for uid, p := range rec.Pods {
				if p.Publish.State != plan.Absent {
					return fmt.Errorf("pod %s still has the volume", uid)
				}
			}
			return nil
		},
		inverse: func(ctx context.Context) error {
			return call(ctx, "NodeUnstageVolume", func(ctx context.Context) error {
				_, err := d.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
					VolumeId: s.Key.Handle, StagingTargetPath: s.Staging,
				})
				return err
			})
		},
		clean: func() error { return r.removeStaging(s.Staging, block) },
		done: func(rec *plan.Record) {
			// The volume may have another size when it comes back.
			rec.Grow.BecomeAbsent()
			rec.GrownTo = 0
		},
	})
}
