package plugin

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Args configures the plugin, in pluginConfig of a profile. Unknown fields are
// refused: a misspelt one would otherwise be a setting that does nothing.
type Args struct {
	// BindTimeoutSeconds is how long PreBind waits for a pod's volumes to be
	// bound before the pod goes back to the queue. Default 600, as upstream's
	// VolumeBindingArgs. A selected node stays written after it.
	BindTimeoutSeconds *int64 `json:"bindTimeoutSeconds,omitempty"`
}

const defaultBindTimeoutSeconds = 600

func decodeArgs(obj runtime.Object) (Args, error) {
	var args Args
	switch o := obj.(type) {
	case nil:
	case *runtime.Unknown:
		if err := yaml.UnmarshalStrict(o.Raw, &args); err != nil {
			return Args{}, fmt.Errorf("decoding: %w", err)
		}
	default:
		return Args{}, fmt.Errorf("want runtime.Unknown, got %T", obj)
	}
	if args.BindTimeoutSeconds == nil {
		args.BindTimeoutSeconds = ptr.To[int64](defaultBindTimeoutSeconds)
	}
	return args, validateArgs(args).ToAggregate()
}

func validateArgs(a Args) field.ErrorList {
	var errs field.ErrorList
	if *a.BindTimeoutSeconds < 1 {
		errs = append(errs, field.Invalid(field.NewPath("bindTimeoutSeconds"), *a.BindTimeoutSeconds, "must be at least 1"))
	}
	return errs
}
