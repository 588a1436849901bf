package podruntime

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/utils/ptr"
)

// tokenSeconds is the life of a projected token. The kubelet renews short ones;
// here a file is written once, so it lasts longer than a sandbox.
const tokenSeconds = 30 * 24 * 3600

// file is one file of a local volume, its path relative to the volume.
type file struct {
	path    string
	content []byte
	mode    os.FileMode
}

func (r *Runtime) localDir(pod *corev1.Pod, volume string) string {
	return filepath.Join(r.podDir(pod.UID), "volumes", volume)
}

// makeLocalVolumes writes the pod's local volumes. It may be repeated.
func (r *Runtime) makeLocalVolumes(ctx context.Context, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		if !isLocal(v) {
			continue
		}
		dir := r.localDir(pod, v.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("making volume %q: %w", v.Name, err)
		}
		if v.EmptyDir != nil {
			// As the kubelet does: any user of the pod may write.
			if err := os.Chmod(dir, 0o777); err != nil {
				return fmt.Errorf("making volume %q: %w", v.Name, err)
			}
			continue
		}
		files, err := r.volumeFiles(ctx, pod, v)
		if err != nil {
			return fmt.Errorf("making volume %q: %w", v.Name, err)
		}
		if err := writeFiles(dir, files); err != nil {
			return fmt.Errorf("making volume %q: %w", v.Name, err)
		}
	}
	return nil
}

func writeFiles(dir string, files []file) error {
	for _, f := range files {
		// Joined as if dir were the root: "..", which the API server refuses
		// anyway, leads nowhere.
		target := filepath.Join(dir, path.Clean("/"+f.path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, f.content, f.mode); err != nil {
			return err
		}
		// The mode asked for, whatever the umask.
		if err := os.Chmod(target, f.mode); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) volumeFiles(ctx context.Context, pod *corev1.Pod, v corev1.Volume) ([]file, error) {
	switch {
	case v.ConfigMap != nil:
		return r.configMapFiles(ctx, pod, v.ConfigMap.Name, v.ConfigMap.Items, modeOf(v.ConfigMap.DefaultMode), ptr.Deref(v.ConfigMap.Optional, false))
	case v.Secret != nil:
		return r.secretFiles(ctx, pod, v.Secret.SecretName, v.Secret.Items, modeOf(v.Secret.DefaultMode), ptr.Deref(v.Secret.Optional, false))
	case v.DownwardAPI != nil:
		return downwardFiles(pod, v.DownwardAPI.Items, modeOf(v.DownwardAPI.DefaultMode))
	default:
		return r.projectedFiles(ctx, pod, *v.Projected)
	}
}

func (r *Runtime) projectedFiles(ctx context.Context, pod *corev1.Pod, p corev1.ProjectedVolumeSource) ([]file, error) {
	mode := modeOf(p.DefaultMode)
	var all []file
	for _, s := range p.Sources {
		var files []file
		var err error
		switch {
		case s.ConfigMap != nil:
			files, err = r.configMapFiles(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, mode, ptr.Deref(s.ConfigMap.Optional, false))
		case s.Secret != nil:
			files, err = r.secretFiles(ctx, pod, s.Secret.Name, s.Secret.Items, mode, ptr.Deref(s.Secret.Optional, false))
		case s.DownwardAPI != nil:
			files, err = downwardFiles(pod, s.DownwardAPI.Items, mode)
		case s.ServiceAccountToken != nil:
			files, err = r.tokenFile(ctx, pod, *s.ServiceAccountToken, mode)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

func (r *Runtime) configMapFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode os.FileMode, optional bool) ([]file, error) {
	cm, err := r.Client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if optional && apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading configMap %q: %w", name, err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return pick(data, items, mode, optional, fmt.Sprintf("configMap %q", name))
}

func (r *Runtime) secretFiles(ctx context.Context, pod *corev1.Pod, name string, items []corev1.KeyToPath, mode os.FileMode, optional bool) ([]file, error) {
	secret, err := r.Client.CoreV1().Secrets(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if optional && apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading secret %q: %w", name, err)
	}
	return pick(secret.Data, items, mode, optional, fmt.Sprintf("secret %q", name))
}

// pick turns data into files: the items asked for, or all.
func pick(data map[string][]byte, items []corev1.KeyToPath, mode os.FileMode, optional bool, where string) ([]file, error) {
	var files []file
	if len(items) == 0 {
		for k, v := range data {
			files = append(files, file{path: k, content: v, mode: mode})
		}
		return files, nil
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("%s has no key %q", where, item.Key)
		}
		own := mode
		if item.Mode != nil {
			own = modeOf(item.Mode)
		}
		files = append(files, file{path: item.Path, content: content, mode: own})
	}
	return files, nil
}

func downwardFiles(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, mode os.FileMode) ([]file, error) {
	var files []file
	for _, item := range items {
		if item.FieldRef == nil {
			return nil, fmt.Errorf("%s: berth-sandbox has only fieldRef, not resourceFieldRef", item.Path)
		}
		value, err := fieldpath.ExtractFieldPathAsString(pod, item.FieldRef.FieldPath)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", item.Path, err)
		}
		own := mode
		if item.Mode != nil {
			own = modeOf(item.Mode)
		}
		files = append(files, file{path: item.Path, content: []byte(value), mode: own})
	}
	return files, nil
}

func (r *Runtime) tokenFile(ctx context.Context, pod *corev1.Pod, p corev1.ServiceAccountTokenProjection, mode os.FileMode) ([]file, error) {
	var audiences []string
	if p.Audience != "" {
		audiences = []string{p.Audience}
	}
	answer, err := r.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, ExpirationSeconds: ptr.To[int64](tokenSeconds),
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of service account %q: %w", pod.Spec.ServiceAccountName, err)
	}
	return []file{{path: p.Path, content: []byte(answer.Status.Token), mode: mode}}, nil
}

// modeOf is the mode of a volume's files; the API server sets its default.
func modeOf(mode *int32) os.FileMode { return os.FileMode(ptr.Deref(mode, 0o644)) }
