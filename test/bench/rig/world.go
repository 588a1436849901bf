package rig

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Workload is how the volumes of the pods come to be.
type Workload string

// The workloads. Binding waits for the first consumer in both.
const (
	// Dynamic volumes are made for the claim; each node has a capacity object.
	Dynamic Workload = "dynamic"
	// Static volumes exist before: VolumesPerNode local ones a node, one class.
	Static Workload = "static"
)

// Workloads are all workloads.
func Workloads() []Workload { return []Workload{Dynamic, Static} }

// VolumesPerNode is how many local volumes a node has with Static.
const VolumesPerNode = 4

// writers is how many requests are under way at once while objects are made.
const writers = 48

// World makes the class, nodes, and what nodes offer of storage.
func (r *Rig) World(ctx context.Context, w Workload, nodes int) error {
	if _, err := r.client.StorageV1().CSIDrivers().Create(ctx, csiDriver(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the driver: %w", err)
	}
	if _, err := r.client.StorageV1().StorageClasses().Create(ctx, storageClass(w), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the class: %w", err)
	}
	r.Logf("%d nodes", nodes)
	if err := each(ctx, nodes, func(ctx context.Context, i int) error { return r.createNode(ctx, nodeName(i)) }); err != nil {
		return err
	}
	switch w {
	case Dynamic:
		r.Logf("%d capacities", nodes)
		return each(ctx, nodes, func(ctx context.Context, i int) error {
			_, err := r.client.StorageV1().CSIStorageCapacities(Namespace).Create(ctx, capacity(nodeName(i)), metav1.CreateOptions{})
			return failed(err, "creating the capacity of node %s", nodeName(i))
		})
	case Static:
		r.Logf("%d volumes", nodes*VolumesPerNode)
		return each(ctx, nodes*VolumesPerNode, func(ctx context.Context, i int) error {
			return r.createVolume(ctx, localVolume(nodeName(i/VolumesPerNode), i%VolumesPerNode))
		})
	}
	return fmt.Errorf("workload %q: there is dynamic and static", w)
}

func (r *Rig) createNode(ctx context.Context, name string) error {
	if _, err := r.client.CoreV1().Nodes().Create(ctx, node(name), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating node %s: %w", name, err)
	}
	// The API server adds the taint of a node that is not ready yet, which a
	// controller would take away.
	ready := []byte(`{"spec":{"taints":null}}`)
	if _, err := r.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, ready, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("making node %s ready: %w", name, err)
	}
	_, err := r.client.StorageV1().CSINodes().Create(ctx, csiNode(name), metav1.CreateOptions{})
	return failed(err, "creating the CSINode of %s", name)
}

// createVolume makes a volume that is free: the PV controller's word, without
// which neither scheduler takes one.
func (r *Rig) createVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	pv, err := r.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a volume: %w", err)
	}
	pv.Status.Phase = corev1.VolumeAvailable
	_, err = r.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{})
	return failed(err, "writing the phase of volume %s", pv.Name)
}

// Pods makes pods for a scheduler, each with a claim of its own of the same name,
// and returns their names.
func (r *Rig) Pods(ctx context.Context, scheduler string, n int) ([]string, error) {
	r.Logf("%d pods, each with a claim", n)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%06d", scheduler, i)
	}
	return names, each(ctx, n, func(ctx context.Context, i int) error {
		name := names[i]
		if _, err := r.client.CoreV1().PersistentVolumeClaims(Namespace).Create(ctx, claim(name), metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating claim %s: %w", name, err)
		}
		_, err := r.client.CoreV1().Pods(Namespace).Create(ctx, pod(name, scheduler), metav1.CreateOptions{})
		return failed(err, "creating pod %s", name)
	})
}

// each calls do for 0 … n-1, many at once, until one fails.
func each(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func failed(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
