package extender

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/utils/clock"

	"github.com/berth-storage/berth/scheduler/args"
	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
)

// served is the service behind its handler.
type served struct {
	http.Handler
	registry *prometheus.Registry
	calls    int
}

func serve(s *Service, allow func(*http.Request) error) *served {
	out := &served{registry: prometheus.NewRegistry()}
	m := NewMetrics(out.registry, func() float64 { return float64(s.Promises()) }, func() float64 { return 0 })
	out.Handler = s.Handler(allow, m, func() { out.calls++ })
	return out
}

func anybody(*http.Request) error { return nil }

// post sends a body, or a value as JSON, and returns status and answer.
func (s *served) post(t testing.TB, path string, body any) (int, string) {
	t.Helper()
	raw, isText := body.(string)
	if !isText {
		encoded, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(encoded)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(raw)))
	return w.Code, w.Body.String()
}

// TestVerbs: each verb as kube-scheduler calls it, with names and with whole nodes.
func TestVerbs(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	r := start(t, pool(t, map[string]string{"n1": "8Gi", "n2": "1Gi"}, fakeapi.PVC("a", "fast", "4Gi"), pod))
	r.PVController(t.Context())
	s := serve(r.Service, anybody)
	const small = `"n2":"node(s) did not have enough free storage: claim default/a asks 4 GiB; the freest pool of class fast has 8 GiB"`
	named := extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"n1", "n2"}}
	whole := extenderv1.ExtenderArgs{Pod: pod, Nodes: &corev1.NodeList{Items: []corev1.Node{*fakeapi.Node("n2"), *fakeapi.Node("n1")}}}
	for _, step := range []struct {
		path string
		body any
		want []string
	}{
		{"/filter", named, []string{`"Nodes":null`, `"NodeNames":["n1"]`, `"FailedAndUnresolvableNodes":{` + small + `}`, `"Error":""`}},
		{"/filter", whole, []string{`"NodeNames":null`, `"name":"n1"`, small}},
		{"/prioritize", named, []string{`[{"Host":"n1","Score":5},{"Host":"n2","Score":0}]`}},
		{"/preempt", extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: map[string]*extenderv1.Victims{
			"n1": {Pods: []*corev1.Pod{fakeapi.Pod("victim")}, NumPDBViolations: 2}, "n2": nil,
		}}, []string{`{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"uid-victim"}],"NumPDBViolations":2}}}`}},
		{"/bind", extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: pod.UID, Node: "n2"}, []string{`{"Error":"pod default/web no longer fits on node n2:`}},
		{"/bind", extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: pod.UID, Node: "n1"}, []string{`{"Error":""}`}},
	} {
		code, got := s.post(t, step.path, step.body)
		for _, want := range step.want {
			if code != http.StatusOK || !strings.Contains(got, want) {
				t.Errorf("%s: %d %s; want %s", step.path, code, got, want)
			}
		}
	}
	if s.calls != 6 {
		t.Errorf("%d calls are counted", s.calls)
	}
	if n, err := testutil.GatherAndCount(s.registry, "berth_extender_requests_total"); err != nil || n != 4 {
		t.Errorf("%d series of requests, %v", n, err)
	}
}

// TestHostile: what no kube-scheduler sends gets a reason and changes nothing.
func TestHostile(t *testing.T) {
	pod := fakeapi.Pod("web", "a")
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "4Gi"), pod))
	s := serve(r.Service, anybody)
	bind := func(change func(*extenderv1.ExtenderBindingArgs)) any {
		a := extenderv1.ExtenderBindingArgs{PodName: "web", PodNamespace: "default", PodUID: pod.UID, Node: "n1"}
		change(&a)
		return a
	}
	cases := map[string]struct {
		path string
		body any
		want string
	}{
		"no JSON":         {"/filter", "<xml/>", "is no JSON of the extender API"},
		"nothing":         {"/bind", "", "is no JSON"},
		"two values":      {"/filter", "{}{}", "is no JSON"},
		"another type":    {"/filter", `{"Pod": 3}`, "is no JSON"},
		"no pod":          {"/prioritize", `{"NodeNames": ["n1"]}`, "Pod is missing"},
		"nameless pod":    {"/filter", `{"Pod": {}, "NodeNames": ["n1"]}`, "needs a name and a namespace"},
		"no nodes":        {"/filter", extenderv1.ExtenderArgs{Pod: pod}, "NodeNames is missing"},
		"empty name":      {"/filter", extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"n1", ""}}, "NodeNames[1] is empty"},
		"name twice":      {"/filter", extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"n1", "n1"}}, `NodeNames[1]: node "n1" stands twice`},
		"victims, no pod": {"/preempt", `{}`, "Pod is missing"},
		"no UID":          {"/bind", bind(func(a *extenderv1.ExtenderBindingArgs) { a.PodUID = "" }), "PodUID is missing"},
		"a path":          {"/bind", bind(func(a *extenderv1.ExtenderBindingArgs) { a.PodName = "../../nodes/n1" }), `PodName "../../nodes/n1"`},
		"no namespace":    {"/bind", bind(func(a *extenderv1.ExtenderBindingArgs) { a.PodNamespace = "" }), `PodNamespace ""`},
		"no node":         {"/bind", bind(func(a *extenderv1.ExtenderBindingArgs) { a.Node = "N 1" }), `Node "N 1"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if code, got := s.post(t, tc.path, tc.body); code != http.StatusBadRequest || !strings.Contains(got, tc.want) {
				t.Errorf("%d %s; want 400 and %s", code, got, tc.want)
			}
		})
	}
	if r.Promises() != 0 || r.nodeOf(pod) != "" {
		t.Error("a bad request changed something")
	}
	if s.calls != 0 {
		t.Errorf("%d calls are counted: a person with curl, or a probe, is no kube-scheduler, whose silence is still to be told", s.calls)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/filter", http.NoBody))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost {
		t.Errorf("a GET: %d", w.Code)
	}
	w = httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/filter", io.LimitReader(zeros{}, BodyMax+1)))
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "nodeCacheCapable: true") {
		t.Errorf("a body too large: %d %s", w.Code, w.Body)
	}
	refusing := serve(r.Service, func(*http.Request) error { return errors.New("show a certificate") })
	if code, got := refusing.post(t, "/filter", "{}"); code != http.StatusUnauthorized || !strings.Contains(got, "show a certificate") || refusing.calls != 0 {
		t.Errorf("a stranger: %d %s, %d calls", code, got, refusing.calls)
	}
	panics := &verb{"filter", nil}
	w = httptest.NewRecorder()
	if code := r.serve(w, httptest.NewRequest(http.MethodPost, "/filter", strings.NewReader("{}")), *panics, anybody, func() {}); code != http.StatusInternalServerError {
		t.Errorf("a panic is answered with %d", code)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestNotReady: what has not read the cluster would promise what is taken.
func TestNotReady(t *testing.T) {
	client := fake.NewClientset()
	a, err := args.Decode(nil, BindTimeoutSeconds)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Client: client, Informers: informers.NewSharedInformerFactory(client, 0), Args: a, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	if code, got := serve(s, anybody).post(t, "/filter", "{}"); code != http.StatusServiceUnavailable || !strings.Contains(got, "starting") {
		t.Errorf("%d %s", code, got)
	}
}

// FuzzHandler: no body makes a verb panic, or answers anything but 200 and 400; and
// what is answered is JSON.
func FuzzHandler(f *testing.F) {
	pod, other := fakeapi.Pod("web", "a", "b"), fakeapi.Pod("other", "c")
	for _, seed := range []any{
		extenderv1.ExtenderArgs{Pod: pod, NodeNames: &[]string{"n1", "n2", "n9"}},
		extenderv1.ExtenderArgs{Pod: other, Nodes: &corev1.NodeList{Items: []corev1.Node{*fakeapi.Node("n1")}}},
		extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"n1": {Pods: []*extenderv1.MetaPod{{UID: "x"}}}}},
		extenderv1.ExtenderBindingArgs{PodName: "gone", PodNamespace: "default", PodUID: "x", Node: "n1"},
	} {
		raw, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		for i := range 4 {
			f.Add(uint8(i), raw) //nolint:gosec // 0 to 3
		}
	}
	c := fakeapi.New(f, fakeapi.Node("n1"), fakeapi.Node("n2"), fakeapi.Driver(driver), fakeapi.Class("fast", driver), fakeapi.Capacity("fast", "n1", "8Gi", 5),
		fakeapi.PVC("a", "fast", "1Gi"), fakeapi.PVC("b", "nowhere", "1Gi"), fakeapi.PVC("c", "fast", "1Gi"))
	a, err := args.Decode(nil, 1)
	if err != nil {
		f.Fatal(err)
	}
	service, err := New(Options{Client: c.Client, Informers: c.Factory, Args: a, Clock: clock.RealClock{}})
	if err != nil {
		f.Fatal(err)
	}
	c.Factory.Start(f.Context().Done())
	if !service.WaitForSync(f.Context()) {
		f.Fatal("never in sync")
	}
	s := serve(service, anybody)
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		path := []string{"/filter", "/prioritize", "/preempt", "/bind"}[which%4]
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body)))
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: the answer is no JSON: %s", path, w.Body)
		}
	})
}
