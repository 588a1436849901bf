package story

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-storage/berth/volume"
)

const hugeSize = 1024 * volume.GiB

// claimIsTooLarge: a pod whose claim no pool can hold stays Pending, and its
// event says why, one line per cause, each node counted once.
func (t *teller) claimIsTooLarge(ctx context.Context) error {
	const name = "huge"
	room, err := t.room(ctx, class)
	if err != nil {
		return err
	}
	var most int64
	for _, bytes := range room {
		most = max(most, bytes)
	}
	if err := t.makeClaim(ctx, name, class, hugeSize); err != nil {
		return err
	}
	if err := t.makePod(ctx, t.podWith(name, name)); err != nil {
		return err
	}
	want := []string{
		fmt.Sprintf("1 %s: claim %s/%s: class %s allows only %s=%s", volume.ReasonTopologyNotAllowed.Sentence(), namespace, name, class, volume.LabelZone, zone),
		fmt.Sprintf("2 %s: claim %s/%s asks %s; the freest pool of class %s has %s", volume.ReasonNotEnoughCapacity.Sentence(),
			namespace, name, volume.FormatBytes(hugeSize), class, volume.FormatBytes(most)),
	}
	if err := t.refused(ctx, name, want); err != nil {
		return err
	}
	pod, err := t.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading pod %s: %w", name, err)
	}
	if pod.Status.Phase != corev1.PodPending || pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s is %s on node %q, want Pending on none", name, pod.Status.Phase, pod.Spec.NodeName)
	}
	t.say("a claim of %s: pod %s is Pending, and its event counts each node once:", volume.FormatBytes(hugeSize), name)
	for _, c := range want {
		t.more("%s", c)
	}
	return t.takeBack(ctx, name)
}

// takeBack deletes a pod that never ran, and its claim.
func (t *teller) takeBack(ctx context.Context, name string) error {
	if err := t.deletePod(ctx, name); err != nil {
		return err
	}
	if err := t.deleteClaim(ctx, name); err != nil {
		return err
	}
	if _, err := until(ctx, t.podKind(), gone[*corev1.Pod](name)); err != nil {
		return err
	}
	if _, err := until(ctx, t.claimKind(), gone[*corev1.PersistentVolumeClaim](name)); err != nil {
		return err
	}
	t.say("pod and claim were deleted")
	return nil
}

// refused waits for the event that says why a pod cannot be scheduled, and wants
// these causes of it. A pod that is seen before its claim is first told that
// there is none.
func (t *teller) refused(ctx context.Context, pod string, want []string) error {
	_, err := until(ctx, t.eventKind(), func(have map[string]*corev1.Event) string {
		said := fmt.Sprintf("pod %s has no event FailedScheduling", pod)
		for _, e := range have {
			if e.InvolvedObject.Kind != "Pod" || e.InvolvedObject.Name != pod || e.Reason != "FailedScheduling" {
				continue
			}
			causes, err := causesOf(e.Message, len(t.cluster.Nodes()))
			switch {
			case err != nil:
				said = err.Error()
			case slices.Equal(causes, want):
				return ""
			default:
				said = fmt.Sprintf("the event of pod %s says %q, want %q", pod, causes, want)
			}
		}
		return said
	})
	return err
}

// causesOf splits the text of an event FailedScheduling into its causes, each
// with its number of nodes, which must make up all of them.
// Source: k8s.io/kubernetes/pkg/scheduler/framework, FitError.Error.
func causesOf(message string, nodes int) ([]string, error) {
	rest, ok := strings.CutPrefix(message, fmt.Sprintf("0/%d nodes are available: ", nodes))
	if !ok {
		return nil, fmt.Errorf("the event %q does not begin with the number of nodes, %d", message, nodes)
	}
	rest, _, _ = strings.Cut(rest, " preemption: ")
	rest = strings.TrimSuffix(rest, ".")
	var causes []string
	sum := 0
	for part := range strings.SplitSeq(rest, ", ") {
		number, _, _ := strings.Cut(part, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			// A comma within a cause.
			if len(causes) == 0 {
				return nil, fmt.Errorf("the event %q does not begin with a cause", message)
			}
			causes[len(causes)-1] += ", " + part
			continue
		}
		causes = append(causes, part)
		sum += n
	}
	if sum != nodes {
		return nil, fmt.Errorf("the causes %q count %d nodes, want %d", causes, sum, nodes)
	}
	return causes, nil
}
