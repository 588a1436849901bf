package claimwatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/volume"
)

func claim(name, driver, node string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, Labels: map[string]string{"app": "db"},
		Annotations: map[string]string{volume.AnnStorageProvisioner: driver, volume.AnnSelectedNode: node},
	}}
}

// labels is what each claim says in volume.LabelNode.
func labels(t *testing.T, api client.Client) map[string]string {
	t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := api.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, c := range list.Items {
		out[c.Name] = c.Labels[volume.LabelNode]
		if c.Labels["app"] != "db" {
			t.Errorf("%s lost its own label: %v", c.Name, c.Labels)
		}
	}
	return out
}

func backlog(api client.WithWatch, since time.Time) *Backlog {
	return &Backlog{
		Scope: scope.Scope{Driver: volume.DriverName, Node: "n1"},
		Live:  api, Writer: api, Since: since, Clock: clock.RealClock{},
	}
}

func TestBacklog(t *testing.T) {
	labelled := claim("labelled", volume.DriverName, "n1")
	labelled.Labels[volume.LabelNode] = "n1"
	wrong := claim("wrong", volume.DriverName, "n1")
	wrong.Labels[volume.LabelNode] = "n2"
	bound := claim("bound", volume.DriverName, "n1")
	bound.Spec.VolumeName, bound.Status.Phase = "pvc-1", corev1.ClaimBound
	api := csitest.API(labelled, wrong, bound, claim("waiting", volume.DriverName, "n1"),
		claim("neighbour's", volume.DriverName, "n2"), claim("unselected", volume.DriverName, ""), claim("foreign", "other.csi", "n1"))
	if err := backlog(api, time.Now().Add(-time.Hour)).Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"labelled": "n1", "wrong": "n1", "bound": "n1", "waiting": "n1",
		"neighbour's": "", "unselected": "", "foreign": "",
	}
	if diff := cmp.Diff(want, labels(t, api)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestBacklogFaults fails every request in turn: the end is the same.
func TestBacklogFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for at := 1; ; at++ {
			n, hit := 0, false
			fault := func() error {
				if n++; n == at {
					hit = true
					return errors.New("disturbed")
				}
				return nil
			}
			api := csitest.API(claim("a", volume.DriverName, "n1"), claim("b", volume.DriverName, "n1"))
			disturbed := interceptor.NewClient(api, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					return errors.Join(fault(), c.List(ctx, list, opts...))
				},
				Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
					if err := fault(); err != nil {
						return err
					}
					return c.Patch(ctx, obj, patch, opts...)
				},
			})
			if err := backlog(disturbed, time.Now().Add(-time.Hour)).Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{"a": "n1", "b": "n1"}, labels(t, api)); diff != "" {
				t.Errorf("request %d failed: (-want +got)\n%s", at, diff)
			}
			if !hit {
				return
			}
		}
	})
}

// TestBacklogChanged: a claim that lost its selection after it was read does not
// get the label.
func TestBacklogChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := csitest.API(claim("a", volume.DriverName, "n1"))
		deselected := false
		racing := interceptor.NewClient(api, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
				if !deselected {
					deselected = true
					now := &corev1.PersistentVolumeClaim{}
					if err := c.Get(ctx, client.ObjectKeyFromObject(obj), now); err != nil {
						return err
					}
					delete(now.Annotations, volume.AnnSelectedNode)
					if err := c.Update(ctx, now); err != nil {
						return err
					}
				}
				return c.Patch(ctx, obj, patch, opts...)
			},
		})
		if err := backlog(racing, time.Now().Add(-time.Hour)).Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := labels(t, api)["a"]; got != "" || !deselected {
			t.Errorf("label %q", got)
		}
	})
}

// TestYoungPolicy: claims that an API server wrote before it followed the new
// policy are found soon, and those of a slow one a minute later.
func TestYoungPolicy(t *testing.T) {
	for name, since := range map[string]time.Duration{"just made": 0, "by a clock that is ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := csitest.API()
				done := make(chan error, 1)
				began := time.Now()
				go func() { done <- backlog(api, began.Add(since)).Start(t.Context()) }()
				synctest.Wait()
				if err := api.Create(t.Context(), claim("first", volume.DriverName, "n1")); err != nil {
					t.Fatal(err)
				}
				time.Sleep(soon + time.Millisecond) //nolint:forbidigo // on the bubble's clock, which stands still for others
				synctest.Wait()
				if got := labels(t, api)["first"]; got != "n1" {
					t.Errorf("label %q soon after", got)
				}
				if err := api.Create(t.Context(), claim("last", volume.DriverName, "n1")); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if got, after := labels(t, api)["last"], time.Since(began); got != "n1" || after < settled {
					t.Errorf("label %q after %s", got, after)
				}
			})
		})
	}
}

// TestBacklogEnds with its context, also where nothing succeeds.
func TestBacklogEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := interceptor.NewClient(csitest.API(), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("disturbed")
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := backlog(failing, time.Now()).Start(ctx); err != nil {
			t.Error(err)
		}
	})
}
