package story

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-storage/berth/volume"
)

// remember is what every pod of the story does first: it writes its words once
// into each of its volumes, and notes there each of its starts.
const remember = `
trap 'exit 0' TERM
for v in $VOLUMES; do
  [ -s $v/words ] || echo "$HOSTNAME wrote this at $(date +%s.%N)" > $v/words
  echo "$POD_UID" >> $v/starts
  sync -f $v/starts
done
`

// A pod of the set tells again and again how large it sees its volume; others
// are quiet.
const (
	tellSize = remember + `
while true; do
  echo "size $(df --output=size -B1 $VOLUMES | tail -n 1)"
  sleep 0.2
done
`
	quiet = remember + `
sleep infinity & wait
`
)

// podSpec is a pod that has each of its volumes mounted at the volume's name.
func (t *teller) podSpec(script string, volumes ...string) corev1.PodSpec {
	c := corev1.Container{Name: "main", Image: "none", Command: []string{"bash", "-c", script}}
	paths := make([]string, 0, len(volumes))
	for _, v := range volumes {
		paths = append(paths, mountPath(v))
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v, MountPath: mountPath(v)})
	}
	c.Env = []corev1.EnvVar{
		{Name: "VOLUMES", Value: strings.Join(paths, " ")},
		{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}},
	}
	return corev1.PodSpec{
		SchedulerName:                 t.scheduler,
		TerminationGracePeriodSeconds: ptr.To[int64](5),
		Containers:                    []corev1.Container{c},
	}
}

func mountPath(volume string) string { return "/" + volume }

// podWith is a quiet pod with claims, each a volume of its own name.
func (t *teller) podWith(name string, claims ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: t.podSpec(quiet, claims...)}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return pod
}

// onNode is the pod, to run on that node only.
func onNode(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{volume.LabelHostname: node}
	return pod
}

// preferring is the pod, to run on that node if it can.
func preferring(pod *corev1.Pod, node string) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: volume.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			}},
		}},
	}}
	return pod
}

func claimOf(name, class string, size int64) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(class),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *quantity(size)},
			},
		},
	}
}

func quantity(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes, resource.BinarySI)
}

// setOf is a StatefulSet whose pods come up side by side, each with a claim.
func (t *teller) setOf(name string, replicas int, script string, claim corev1.PersistentVolumeClaim) *appsv1.StatefulSet {
	labels := map[string]string{"app": name}
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: appsv1.StatefulSetSpec{
			Replicas:            new(int32(replicas)),
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       t.podSpec(script, claim.Name),
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{claim},
		},
	}
}

// podsOf are the names of a set's pods.
func podsOf(set string, replicas int) []string {
	names := make([]string, 0, replicas)
	for i := range replicas {
		names = append(names, fmt.Sprintf("%s-%d", set, i))
	}
	return names
}

func (t *teller) makeClaim(ctx context.Context, name, class string, size int64) error {
	c := claimOf(name, class, size)
	if _, err := t.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &c, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making claim %s: %w", name, err)
	}
	return nil
}

func (t *teller) makePod(ctx context.Context, pod *corev1.Pod) error {
	if _, err := t.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making pod %s: %w", pod.Name, err)
	}
	return nil
}

func (t *teller) makeSet(ctx context.Context, set *appsv1.StatefulSet) error {
	if _, err := t.client.AppsV1().StatefulSets(namespace).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("making StatefulSet %s: %w", set.Name, err)
	}
	return nil
}

// runPod makes a pod and returns it once it is ready.
func (t *teller) runPod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if err := t.makePod(ctx, pod); err != nil {
		return nil, err
	}
	pods, err := t.untilReady(ctx, pod.Name)
	return pods[pod.Name], err
}

func (t *teller) deletePod(ctx context.Context, name string) error {
	if err := t.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting pod %s: %w", name, err)
	}
	return nil
}

func (t *teller) deleteClaim(ctx context.Context, name string) error {
	if err := t.client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting claim %s: %w", name, err)
	}
	return nil
}
