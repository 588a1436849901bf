package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/extender"
)

// service is the extender over a world, asked in the words of its API.
type service struct {
	*server
	ctx     context.Context
	handler http.Handler
	nodes   []string
	// promises is how many pods have volumes promised.
	promises func() int
}

// newService brings the extender up over the world as it was, and lets its past
// happen, but for promises.
func newService(ctx context.Context, w *world) (*service, error) {
	s := &service{server: newServer(), ctx: ctx}
	s.tellAll()
	a, err := args.Decode(nil, extender.BindTimeoutSeconds)
	if err != nil {
		return nil, fmt.Errorf("reading no arguments: %w", err)
	}
	// Nothing ends by time here, and a real clock's timers would keep the promises of
	// thousands of clusters.
	e, err := extender.New(extender.Options{Client: s.client, Informers: s.factory, Args: a, Clock: testclock.NewFakeClock(time.Now())})
	if err != nil {
		return nil, fmt.Errorf("making the extender: %w", err)
	}
	none := func() float64 { return 0 }
	s.handler = e.Handler(func(*http.Request) error { return nil }, extender.NewMetrics(prometheus.NewRegistry(), none, none), func() {})
	s.promises = e.Promises
	for _, n := range w.nodes {
		s.nodes = append(s.nodes, n.Name)
	}
	s.past(w, func() {}, func(runtime.Object) {})
	return s, nil
}

// call asks a verb. An error is one of HTTP: what is wrong with a pod stands in the
// answer.
func (s *service) call(ctx context.Context, verb string, body, answer any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("writing a request: %w", err)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/"+verb, bytes.NewReader(raw)))
	if w.Code != http.StatusOK {
		return fmt.Errorf("%s: %d %s", verb, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", verb, err)
	}
	return nil
}

// bind binds a pod for whose volumes nobody cares, and returns why it cannot be bound
// yet: whoever asks goes as soon as the bind counts on that, which writes all the same,
// and what was promised stays.
func (s *service) bind(pod *corev1.Pod, node string) (why string, err error) {
	ctx, leave := context.WithCancel(s.ctx)
	defer leave()
	var result extenderv1.ExtenderBindingResult
	err = s.call(impatient{ctx, leave}, "bind", extenderv1.ExtenderBindingArgs{PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node}, &result)
	return result.Error, err
}

// impatient is a caller who goes at the moment when somebody asks how to learn of it.
// What has not begun by then has not met one that is gone.
type impatient struct {
	context.Context
	leave func()
}

// Done implements context.Context.
func (i impatient) Done() <-chan struct{} {
	i.leave()
	return i.Context.Done()
}

// promise gives another pod its node: with an extender that is a bind that waits. It
// returns why the pod is promised nothing.
func (s *service) promise(o other) (refusal string, err error) {
	pod := o.pod()
	s.put(pod)
	before := s.promises()
	why, err := s.bind(pod, o.node)
	if o.again && err == nil {
		why, err = s.bind(pod, o.node)
	}
	if err != nil || s.promises() > before {
		return "", err
	}
	return "nothing is promised: " + why, nil
}

// touch changes what another pod was promised, as the API has it by now, in something
// that does not matter.
func (s *service) touch(o other) {
	key := "persistentvolumeclaims " + o.claim
	if o.volume != "" {
		key = "persistentvolumes " + o.volume
	}
	s.mu.Lock()
	now := s.objects[key].DeepCopyObject()
	s.mu.Unlock()
	switch now := now.(type) {
	case *corev1.PersistentVolume:
		metav1.SetMetaDataAnnotation(&now.ObjectMeta, "touched", "yes")
	case *corev1.PersistentVolumeClaim:
		now.Labels = map[string]string{"touched": "yes"}
	}
	s.put(now)
}
