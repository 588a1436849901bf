package podruntime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/host/container"
)

// containerSpec says how a container of the pod is run.
func (r *Runtime) containerSpec(ctx context.Context, pod *corev1.Pod, c corev1.Container, csi map[string]Volume) (container.Spec, error) {
	env, err := r.environment(ctx, pod, c)
	if err != nil {
		return container.Spec{}, err
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.name] = e.value
	}
	expand := expansion.MappingFuncFor(values)
	spec := container.Spec{
		Hostname: pod.Name, Dir: c.WorkingDir, Scratch: r.scratch(), Hide: []string{r.Hide},
		ReadOnlyRoot: c.SecurityContext != nil && ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false),
	}
	for _, e := range env {
		spec.Env = append(spec.Env, e.name+"="+e.value)
	}
	spec.Env = append(spec.Env, r.nodeMarker())
	for _, a := range slices.Concat(c.Command, c.Args) {
		spec.Args = append(spec.Args, expansion.Expand(a, expand))
	}
	if spec.User, err = userOf(pod.Spec.SecurityContext, c.SecurityContext); err != nil {
		return container.Spec{}, err
	}
	spec.Mounts, err = r.mounts(pod, c, csi, expand)
	return spec, err
}

// mounts are the container's volumes, and its raw block devices.
func (r *Runtime) mounts(pod *corev1.Pod, c corev1.Container, csi map[string]Volume, expand func(string) string) ([]container.Mount, error) {
	volumes := make(map[string]corev1.Volume, len(pod.Spec.Volumes))
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	var mounts []container.Mount
	for _, m := range c.VolumeMounts {
		mount := container.Mount{Target: m.MountPath, SubPath: m.SubPath, ReadOnly: m.ReadOnly}
		if m.SubPathExpr != "" {
			mount.SubPath = expansion.Expand(m.SubPathExpr, expand)
		}
		v := volumes[m.Name]
		if isLocal(v) {
			mount.Source = r.localDir(pod, m.Name)
			// Only an emptyDir is the pod's to write to.
			mount.ReadOnly = mount.ReadOnly || v.EmptyDir == nil
		} else {
			published, ok := csi[m.Name]
			if !ok || published.Block {
				return nil, fmt.Errorf("volume %q is not a filesystem that the node agent published", m.Name)
			}
			mount.Source = published.Path
			mount.ReadOnly = mount.ReadOnly || published.ReadOnly
		}
		mounts = append(mounts, mount)
	}
	for _, d := range c.VolumeDevices {
		published, ok := csi[d.Name]
		if !ok || !published.Block {
			return nil, fmt.Errorf("volume %q is not a device that the node agent published", d.Name)
		}
		mounts = append(mounts, container.Mount{Source: published.Path, Target: d.DevicePath, ReadOnly: published.ReadOnly})
	}
	return mounts, nil
}

// userOf is who runs the container: nil for root without further groups.
func userOf(pod *corev1.PodSecurityContext, c *corev1.SecurityContext) (*container.User, error) {
	pod, c = new(ptr.Deref(pod, corev1.PodSecurityContext{})), new(ptr.Deref(c, corev1.SecurityContext{}))
	first := func(a, b *int64) int { return int(ptr.Deref(a, ptr.Deref(b, 0))) }
	u := container.User{UID: first(c.RunAsUser, pod.RunAsUser), GID: first(c.RunAsGroup, pod.RunAsGroup)}
	if ptr.Deref(c.RunAsNonRoot, ptr.Deref(pod.RunAsNonRoot, false)) && u.UID == 0 {
		return nil, errors.New("runAsNonRoot is set, and berth-sandbox knows no image's user: set runAsUser too")
	}
	for _, g := range pod.SupplementalGroups {
		u.Groups = append(u.Groups, int(g))
	}
	if pod.FSGroup != nil {
		u.Groups = append(u.Groups, int(*pod.FSGroup))
	}
	if u.UID == 0 && u.GID == 0 && len(u.Groups) == 0 {
		return nil, nil
	}
	return &u, nil
}

type variable struct{ name, value string }

// environment is the container's environment in the order in which it is given,
// the API server's address first. A later value of one name wins.
func (r *Runtime) environment(ctx context.Context, pod *corev1.Pod, c corev1.Container) ([]variable, error) {
	env := []variable{
		{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		{"HOSTNAME", pod.Name},
		{"HOME", "/root"},
		{"KUBERNETES_SERVICE_HOST", r.APIHost},
		{"KUBERNETES_SERVICE_PORT", r.APIPort},
		{"KUBERNETES_PORT", "tcp://" + net.JoinHostPort(r.APIHost, r.APIPort)},
	}
	for _, from := range c.EnvFrom {
		more, err := r.environmentFrom(ctx, pod, from)
		if err != nil {
			return nil, err
		}
		env = append(env, more...)
	}
	for _, e := range c.Env {
		value, ok, err := r.value(ctx, pod, e)
		if err != nil {
			return nil, fmt.Errorf("env %q: %w", e.Name, err)
		}
		if !ok {
			continue
		}
		if e.ValueFrom == nil {
			known := make(map[string]string, len(env))
			for _, v := range env {
				known[v.name] = v.value
			}
			value = expansion.Expand(value, expansion.MappingFuncFor(known))
		}
		env = append(env, variable{e.Name, value})
	}
	return env, nil
}

func (r *Runtime) environmentFrom(ctx context.Context, pod *corev1.Pod, from corev1.EnvFromSource) ([]variable, error) {
	var files []file
	var err error
	switch {
	case from.ConfigMapRef != nil:
		files, err = r.configMapFiles(ctx, pod, from.ConfigMapRef.Name, nil, 0, ptr.Deref(from.ConfigMapRef.Optional, false))
	case from.SecretRef != nil:
		files, err = r.secretFiles(ctx, pod, from.SecretRef.Name, nil, 0, ptr.Deref(from.SecretRef.Optional, false))
	}
	if err != nil {
		return nil, err
	}
	var env []variable
	for _, f := range files {
		env = append(env, variable{from.Prefix + f.path, string(f.content)})
	}
	return env, nil
}

// value is the value of a variable; ok is false for an optional one that is not
// there.
func (r *Runtime) value(ctx context.Context, pod *corev1.Pod, e corev1.EnvVar) (value string, ok bool, err error) {
	from := e.ValueFrom
	if from == nil {
		return e.Value, true, nil
	}
	var files []file
	item := func(key string) []corev1.KeyToPath { return []corev1.KeyToPath{{Key: key, Path: key}} }
	switch {
	case from.FieldRef != nil:
		return r.field(pod, from.FieldRef.FieldPath)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		files, err = r.configMapFiles(ctx, pod, ref.Name, item(ref.Key), 0, ptr.Deref(ref.Optional, false))
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		files, err = r.secretFiles(ctx, pod, ref.Name, item(ref.Key), 0, ptr.Deref(ref.Optional, false))
	default:
		err = errors.New("berth-sandbox has fieldRef, configMapKeyRef and secretKeyRef, not this source")
	}
	if err != nil || len(files) == 0 {
		return "", false, err
	}
	return string(files[0].content), true, nil
}

// field reads a field of the pod; those that the kubelet knows better than the
// object are known here.
func (r *Runtime) field(pod *corev1.Pod, path string) (string, bool, error) {
	switch path {
	case "spec.nodeName":
		return r.NodeName, true, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, true, nil
	case "status.hostIP", "status.podIP", "status.hostIPs", "status.podIPs":
		return address, true, nil
	}
	value, err := fieldpath.ExtractFieldPathAsString(pod, path)
	return value, err == nil, err
}
