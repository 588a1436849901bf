// Package apply carries out the steps that package plan decides on. For every
// CSI call the intent is durable before it and the outcome after it:
//
//	record uncertain → folders and vol_data.json → call → record done | absent
//
// A call whose outcome is unknown leaves the record uncertain, and so does
// every crash: the next plan repeats the call or makes its inverse. A call that
// failed for good makes the record absent only if it was absent before, because
// a failure says nothing about an earlier call that timed out.
package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/host"
	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// callTimeout bounds each CSI call (kubelet, csi_plugin.go, csiTimeout).
const callTimeout = 2 * time.Minute

// Driver is what is needed of a CSI client.
type Driver interface {
	Node() csi.NodeClient
	NodeHas(ctx context.Context, capability csi.NodeServiceCapability_RPC_Type) (bool, error)
}

// Record is what is needed of the durable record. Update returns after the
// change is durable.
type Record interface {
	Get(key volume.Key) plan.Record
	Update(key volume.Key, change func(*plan.Record) error) error
}

// Mounts is what is needed of the machine.
type Mounts interface {
	MountsUnder(prefix string) ([]host.MountPoint, error)
}

// Config is what a Runner needs.
type Config struct {
	// Root is the agent's root folder; nothing outside of it is touched.
	Root     string
	NodeName string
	Record   Record
	Mounts   Mounts
	Secrets  typedcorev1.SecretsGetter
	Claims   typedcorev1.PersistentVolumeClaimsGetter
}

// Runner carries out steps. It may be used for different volumes at once; the
// caller keeps the steps of one volume in order.
type Runner struct{ cfg Config }

// New makes a Runner.
func New(cfg Config) *Runner { return &Runner{cfg: cfg} }

// StepError is the failure of one step.
type StepError struct {
	Step plan.Step
	// Outcome is what is known of the CSI call; Retry if it was not reached.
	Outcome csiclient.Outcome
	Err     error
}

func (e *StepError) Error() string {
	return fmt.Sprintf("%s of volume %s: %v", e.Step.Op, e.Step.Key, e.Err)
}

// Unwrap gives the cause.
func (e *StepError) Unwrap() error { return e.Err }

// Run carries out one step. w is what the step was planned for; it may be nil
// for the inverse steps. d may be nil for Forget. The error is a *StepError.
func (r *Runner) Run(ctx context.Context, s plan.Step, w *plan.Wanted, d Driver) error {
	err := r.run(ctx, s, w, d)
	if err == nil {
		return nil
	}
	failed := &StepError{Step: s, Outcome: csiclient.Retry, Err: err}
	if c, ok := errors.AsType[*callError](err); ok {
		failed.Outcome = c.outcome
	}
	return failed
}

func (r *Runner) run(ctx context.Context, s plan.Step, w *plan.Wanted, d Driver) error {
	switch s.Op {
	case plan.OpStage:
		return r.stage(ctx, s, w, d)
	case plan.OpPublish:
		return r.publish(ctx, s, w, d)
	case plan.OpGrow:
		return r.grow(ctx, s, w, d)
	case plan.OpUnpublish:
		return r.unpublish(ctx, s, d)
	case plan.OpUnstage:
		return r.unstage(ctx, s, d)
	case plan.OpForget:
		return r.cfg.Record.Update(s.Key, func(rec *plan.Record) error {
			if rec.Pods[s.Pod].Publish.State != plan.Absent {
				return fmt.Errorf("pod %s still has the volume", s.Pod)
			}
			delete(rec.Pods, s.Pod)
			return nil
		})
	default:
		panic("step " + string(s.Op) + " does not exist")
	}
}

// callError is the error of a CSI call, with what it means.
type callError struct {
	method  string
	outcome csiclient.Outcome
	err     error
}

func (e *callError) Error() string { return e.method + ": " + e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// call makes one CSI call with its own deadline. The caller's context still
// runs when it passes, so that the outcome can be written down.
func call(ctx context.Context, method string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return &callError{method: method, outcome: csiclient.OutcomeOf(err), err: err}
	}
	return nil
}

// editor applies a change to one effect of a record.
type editor func(rec *plan.Record, change func(*plan.Effect))

func stageEffect(rec *plan.Record, change func(*plan.Effect)) { change(&rec.Stage) }

func growEffect(rec *plan.Record, change func(*plan.Effect)) { change(&rec.Grow) }

func publishEffect(uid string) editor {
	return func(rec *plan.Record, change func(*plan.Effect)) {
		p := rec.Pods[uid]
		change(&p.Publish)
		rec.Pods[uid] = p
	}
}

// setUp is one effect brought about: what to do around the call, and the call.
type setUp struct {
	path string
	edit editor
	// identify completes the record's and the pod's names.
	identify func(*plan.Record)
	// prepare makes what must be there before the call.
	prepare func() error
	call    func(context.Context) error
	// finish does what belongs to the effect after the call; its failure leaves
	// the effect uncertain. done completes the record.
	finish func(context.Context) error
	done   func(*plan.Record)
	// discard removes what prepare made, after a failure for good.
	discard func() error
}

func (r *Runner) bringAbout(ctx context.Context, key volume.Key, u setUp) error {
	var before plan.Certainty
	err := r.cfg.Record.Update(key, func(rec *plan.Record) error {
		u.identify(rec)
		u.edit(rec, func(e *plan.Effect) {
			before = e.State
			e.BecomeUncertain(u.path)
		})
		return nil
	})
	if err != nil {
		return err
	}
	if err = u.prepare(); err == nil {
		err = u.call(ctx)
	}
	if err != nil {
		return r.failed(key, u, before, err)
	}
	if u.finish != nil {
		if err := u.finish(ctx); err != nil {
			return err
		}
	}
	saw, err := r.mountedAt(u.path)
	if err != nil {
		return err
	}
	return r.cfg.Record.Update(key, func(rec *plan.Record) error {
		u.edit(rec, func(e *plan.Effect) { e.BecomeDone(saw) })
		if u.done != nil {
			u.done(rec)
		}
		return nil
	})
}

// failed writes down what a failed set-up leaves. The error of the call counts;
// a second one on the way only leaves the effect uncertain.
func (r *Runner) failed(key volume.Key, u setUp, before plan.Certainty, cause error) error {
	var c *callError
	if errors.As(cause, &c) && c.outcome == csiclient.Wait || before != plan.Absent {
		return cause
	}
	if err := u.discard(); err != nil {
		return cause
	}
	//nolint:errcheck // uncertain, which it stays, is the safe answer
	r.cfg.Record.Update(key, func(rec *plan.Record) error {
		u.edit(rec, (*plan.Effect).BecomeAbsent)
		return nil
	})
	return cause
}

// undo is one effect taken back.
type undo struct {
	path string
	edit editor
	// check looks at the record at the moment of the intent: what was planned on
	// may have changed since.
	check   func(plan.Record) error
	inverse func(context.Context) error
	// clean removes what the set-up made.
	clean func() error
	// done completes the record.
	done func(*plan.Record)
}

// takeBack is the inverse: intent, call, proof that nothing is mounted, files,
// outcome. Every failure leaves the effect uncertain.
func (r *Runner) takeBack(ctx context.Context, key volume.Key, u undo) error {
	err := r.cfg.Record.Update(key, func(rec *plan.Record) error {
		if err := u.check(*rec); err != nil {
			return err
		}
		u.edit(rec, func(e *plan.Effect) { e.BecomeUncertain(u.path) })
		return nil
	})
	if err != nil {
		return err
	}
	if err := u.inverse(ctx); err != nil {
		return err
	}
	still, err := r.mountedAt(u.path)
	if err != nil {
		return err
	}
	if still {
		return fmt.Errorf("the driver reports success, but something is still mounted at %s", u.path)
	}
	if err := u.clean(); err != nil {
		return err
	}
	return r.cfg.Record.Update(key, func(rec *plan.Record) error {
		u.edit(rec, (*plan.Effect).BecomeAbsent)
		if u.done != nil {
			u.done(rec)
		}
		return nil
	})
}

func (r *Runner) mountedAt(path string) (bool, error) {
	mounts, err := r.cfg.Mounts.MountsUnder(path)
	if err != nil {
		return false, fmt.Errorf("looking for mounts at %s: %w", path, err)
	}
	for _, m := range mounts {
		if m.Target == path {
			return true, nil
		}
	}
	return false, nil
}
