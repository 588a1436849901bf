// Package args is the configuration of the scheduler's side: the plugin reads it
// from pluginConfig of a profile, the extender from a file. The fields are the same.
package args

import (
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-storage/berth/scheduler/binding"
	"github.com/berth-storage/berth/scheduler/cache"
)

// Args configures the plugin or the extender. Unknown fields are refused: a misspelt
// one would otherwise be a setting that does nothing.
type Args struct {
	// BindTimeoutSeconds is how long a pod's volumes are awaited before the pod goes
	// back to the queue. A selected node stays written after it. Default: the plugin
	// 600, as upstream's VolumeBindingArgs; the extender 20, as it waits inside of
	// one request.
	BindTimeoutSeconds *int64 `json:"bindTimeoutSeconds,omitempty"`

	// Shape gives a node's score by how much of its storage the pod would use.
	// Default: 10 at 0 %, 0 at 100 %, which prefers the emptiest node.
	Shape []ShapePoint `json:"shape,omitempty"`

	// AttachLimitGraceSeconds is how long a driver's attach limit is remembered
	// after it vanished from a CSINode, as it does while the driver's pod restarts.
	// Default 300; 0 remembers nothing. The same in all profiles.
	AttachLimitGraceSeconds *int64 `json:"attachLimitGraceSeconds,omitempty"`

	// SharedPools tells which classes of other drivers take their volumes from
	// one pool. The bundled driver says so itself. The same in all profiles.
	SharedPools []SharedPool `json:"sharedPools,omitempty"`
}

// ShapePoint is a corner of Args.Shape (upstream: UtilizationShapePoint).
type ShapePoint struct {
	// Utilization is in percent, 0 to 100.
	Utilization int32 `json:"utilization"`
	// Score is 0 to 10.
	Score int32 `json:"score"`
}

// SharedPool is a rule of Args.SharedPools: the classes of a driver that have one
// value of a parameter share a pool in each topology.
type SharedPool struct {
	Driver string `json:"driver"`
	// Parameter of the StorageClass; empty: all classes of the driver share.
	Parameter string `json:"parameter,omitempty"`
}

const (
	defaultAttachLimitGraceSeconds = 300
	// bindTimeoutMaxSeconds is the longest time.Duration.
	bindTimeoutMaxSeconds = math.MaxInt64 / int64(time.Second)
	// graceMaxSeconds is an hour: a limit that is gone longer is gone.
	graceMaxSeconds    = 3600
	utilizationMax     = 100
	shapeScoreMax      = 10
	sharedPoolsMaximum = 100
)

// Decode reads args in YAML or JSON, gives what is left out its default, and tells
// all that is wrong by field. bindTimeoutSeconds is the default of that field: a
// plugin may wait for long, an extender only within a request.
func Decode(raw []byte, bindTimeoutSeconds int64) (Args, error) {
	var a Args
	if err := decodeStrict(raw, &a); err != nil {
		return Args{}, fmt.Errorf("decoding: %w", err)
	}
	a.setDefaults(bindTimeoutSeconds)
	return a, a.validate().ToAggregate()
}

// decodeStrict refuses fields that do not exist or stand twice, and says where.
func decodeStrict(raw []byte, args *Args) error {
	asJSON, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return err
	}
	strict, err := kjson.UnmarshalStrict(asJSON, args)
	return errors.Join(append(strict, err)...)
}

func (a *Args) setDefaults(bindTimeoutSeconds int64) {
	if a.BindTimeoutSeconds == nil {
		a.BindTimeoutSeconds = &bindTimeoutSeconds
	}
	if a.AttachLimitGraceSeconds == nil {
		a.AttachLimitGraceSeconds = ptr.To[int64](defaultAttachLimitGraceSeconds)
	}
	if a.Shape == nil {
		for _, p := range binding.DefaultShape() {
			a.Shape = append(a.Shape, ShapePoint{int32(p.Utilization), int32(p.Score)}) //nolint:gosec // both are at most 100
		}
	}
}

func (a *Args) validate() field.ErrorList {
	var errs field.ErrorList
	// Upstream takes 0 too, and then no pod with a volume to bind ever gets on.
	if *a.BindTimeoutSeconds < 1 {
		errs = append(errs, field.Invalid(field.NewPath("bindTimeoutSeconds"), *a.BindTimeoutSeconds, "must be at least 1"))
	}
	if *a.BindTimeoutSeconds > bindTimeoutMaxSeconds {
		errs = append(errs, field.Invalid(field.NewPath("bindTimeoutSeconds"), *a.BindTimeoutSeconds, fmt.Sprintf("must be at most %d", bindTimeoutMaxSeconds)))
	}
	if *a.AttachLimitGraceSeconds < 0 || *a.AttachLimitGraceSeconds > graceMaxSeconds {
		errs = append(errs, field.Invalid(field.NewPath("attachLimitGraceSeconds"), *a.AttachLimitGraceSeconds, fmt.Sprintf("must be 0 to %d", graceMaxSeconds)))
	}
	errs = append(errs, validateShape(a.Shape, field.NewPath("shape"))...)
	return append(errs, validateSharedPools(a.SharedPools, field.NewPath("sharedPools"))...)
}

func validateShape(shape []ShapePoint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(shape) == 0 {
		return append(errs, field.Required(path, "give at least one point, or leave the field out"))
	}
	for i, p := range shape {
		at := path.Index(i)
		if p.Utilization < 0 || p.Utilization > utilizationMax {
			errs = append(errs, field.Invalid(at.Child("utilization"), p.Utilization, "must be 0 to 100"))
		}
		if p.Score < 0 || p.Score > shapeScoreMax {
			errs = append(errs, field.Invalid(at.Child("score"), p.Score, "must be 0 to 10"))
		}
		if i > 0 && shape[i-1].Utilization >= p.Utilization {
			errs = append(errs, field.Invalid(at.Child("utilization"), p.Utilization, "must be above that of the point before"))
		}
	}
	return errs
}

func validateSharedPools(rules []SharedPool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(rules) > sharedPoolsMaximum {
		errs = append(errs, field.TooMany(path, len(rules), sharedPoolsMaximum))
	}
	seen := map[string]bool{}
	for i, r := range rules {
		at := path.Index(i).Child("driver")
		switch {
		case r.Driver == "":
			errs = append(errs, field.Required(at, "name the CSI driver"))
		case seen[r.Driver]:
			errs = append(errs, field.Duplicate(at, r.Driver))
		}
		seen[r.Driver] = true
	}
	return errs
}

// Common is what the profiles of one scheduler must agree on.
func (a *Args) Common() Args {
	return Args{AttachLimitGraceSeconds: a.AttachLimitGraceSeconds, SharedPools: append([]SharedPool(nil), a.SharedPools...)}
}

// BindTimeout is BindTimeoutSeconds.
func (a *Args) BindTimeout() time.Duration { return time.Duration(*a.BindTimeoutSeconds) * time.Second }

// AttachGrace is AttachLimitGraceSeconds.
func (a *Args) AttachGrace() time.Duration {
	return time.Duration(*a.AttachLimitGraceSeconds) * time.Second
}

// Scores is Shape as a verdict is scored by it.
func (a *Args) Scores() binding.Shape {
	out := make(binding.Shape, 0, len(a.Shape))
	for _, p := range a.Shape {
		out = append(out, binding.ShapePoint{Utilization: int64(p.Utilization), Score: int64(p.Score)})
	}
	return out
}

// Sharing are the rules of SharedPools as the cache takes them.
func (a *Args) Sharing() []cache.Sharing {
	out := make([]cache.Sharing, 0, len(a.SharedPools))
	for _, r := range a.SharedPools {
		out = append(out, cache.Sharing{Driver: r.Driver, Parameter: r.Parameter})
	}
	return out
}
