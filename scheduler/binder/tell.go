package binder

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
)

// TellAfter is how long an attempt waits for one thing before the pod is told of it:
// longer than a local volume takes, and short beside the bind timeout. Until then
// nothing would tell a person why a pod that has its node does not start.
const TellAfter = 10 * time.Second

// waitReason is the reason of an event about a wait. The set is closed.
type waitReason string

const (
	// waitProvisioning: the provisioner has not made the claim's volume.
	waitProvisioning waitReason = "WaitForProvisioning"
	// waitBinding: the PV controller has not completed the binding.
	waitBinding waitReason = "WaitForBinding"
	// waitSight: the API has accepted it, and the watch has not shown it yet.
	waitSight waitReason = "WaitForWatch"
)

// sentence says who is at work, and where to look further.
func (r waitReason) sentence() string {
	switch r {
	case waitProvisioning:
		return "the claim's own events tell what its provisioner does"
	case waitBinding:
		return "kube-controller-manager does this"
	case waitSight:
		return "the scheduler's watch of the API server lags behind"
	}
	return ""
}

// Waiting is what a written plan waits for first, zero for nothing.
type Waiting struct {
	reason waitReason
	// claim is the key of the claim.
	claim string
	// Text names the claim and says what is awaited.
	Text string
}

func waitForBinding(claim, pv string) Waiting {
	return Waiting{waitBinding, claim, fmt.Sprintf("claim %s: waiting for the PV controller to bind it to volume %s", claim, pv)}
}

// teller puts an event on a pod whose wait is long, once for each thing awaited.
// It serves one attempt.
type teller struct {
	*Attempt
	now   Waiting
	timer clock.Timer
	told  map[Waiting]struct{}
}

// watch takes what is awaited now. The time runs anew for each thing, as the
// next one is progress.
func (t *teller) watch(now Waiting) {
	if t.now == now {
		return
	}
	t.stop()
	t.now = now
	if _, told := t.told[now]; !told {
		t.timer = t.clock.NewTimer(TellAfter)
	}
}

// due fires when the pod is to be told; nil never does.
func (t *teller) due() <-chan time.Time {
	if t.timer == nil {
		return nil
	}
	return t.timer.C()
}

// tell puts the event on the pod, related to the claim.
func (t *teller) tell() {
	t.stop()
	t.told[t.now] = struct{}{}
	if t.events == nil {
		return
	}
	var related runtime.Object
	if pvc := t.cache.ClaimByKey(t.now.claim); pvc != nil {
		related = pvc
	}
	t.events.Eventf(t.pod, related, corev1.EventTypeNormal, string(t.now.reason), "Binding", "%s; %s", t.now.Text, t.now.reason.sentence())
}

func (t *teller) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}
