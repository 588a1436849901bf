package csitest

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-storage/berth/volume"
)

// API makes an API server in memory with the objects given.
func API(objects ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithStatusSubresource(&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}).
		WithObjects(objects...).Build()
}

// Disturbed is the API server as a controller sees it whose every request is a
// step.
func Disturbed(api client.WithWatch, steps *Steps) client.WithWatch {
	failure := apierrors.NewInternalError(errors.New("disturbed"))
	do := func(verb string, obj any, f func() error) error {
		return steps.Do(fmt.Sprintf("%s %T", verb, obj), failure, f)
	}
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			return do("get", obj, func() error { return c.Get(ctx, key, obj, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return do("list", list, func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return do("create", obj, func() error { return c.Create(ctx, obj, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return do("update", obj, func() error { return c.Update(ctx, obj, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return do("patch", obj, func() error { return c.Patch(ctx, obj, patch, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			return do("delete", obj, func() error { return c.Delete(ctx, obj, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return do("patch "+sub, obj, func() error { return c.SubResource(sub).Patch(ctx, obj, patch, opts...) })
		},
	})
}

// Events keeps what was told to users.
type Events struct{ Told []string }

// Eventf implements notes.Recorder.
func (e *Events) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	e.Told = append(e.Told, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

// Labelled is a cache that holds of the claims only those with the label
// volume.LabelNode, as scope.LabelledClaims makes one; it lags behind nothing.
func Labelled(api client.WithWatch) client.WithWatch {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if err := c.Get(ctx, key, obj, opts...); err != nil {
				return err
			}
			if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Labels[volume.LabelNode] == "" {
				*claim = corev1.PersistentVolumeClaim{}
				return apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), key.Name)
			}
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*corev1.PersistentVolumeClaimList); ok {
				opts = append(opts, client.HasLabels{volume.LabelNode})
			}
			return c.List(ctx, list, opts...)
		},
	})
}
