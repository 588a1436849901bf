package extender

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// BodyMax bounds a request, in bytes: the names of 15,000 nodes at their longest take
// 4 MiB; whole nodes, as a kube-scheduler without nodeCacheCapable sends them,
// about 10 KiB each.
const BodyMax = 64 << 20

// judgeTimeout bounds filter, prioritize and preempt.
const judgeTimeout = 5 * time.Second

// verb answers a request. An error that is no badRequest stands in the answer, where
// the verb's answer has a place for it; there is none beside it otherwise.
type verb struct {
	name   string
	answer func(ctx context.Context, body []byte) (any, error)
}

// badRequest is what is wrong with a request: the field and the fix.
type badRequest struct{ error }

func bad(format string, args ...any) error { return badRequest{fmt.Errorf(format, args...)} }

// Handler serves the verbs at /filter, /prioritize, /preempt and /bind, to whom allow
// lets in. called is told of each request that a kube-scheduler may have sent.
func (s *Service) Handler(allow func(*http.Request) error, m *Metrics, called func()) http.Handler {
	mux := http.NewServeMux()
	for _, v := range []verb{
		{"filter", s.answerFilter}, {"prioritize", s.answerPrioritize}, {"preempt", s.answerPreempt}, {"bind", s.answerBind},
	} {
		mux.HandleFunc("/"+v.name, func(w http.ResponseWriter, r *http.Request) {
			begun := time.Now()
			code := s.serve(w, r, v, allow, called)
			m.observe(v.name, code, time.Since(begun))
		})
	}
	return mux
}

// serve answers one request and returns its code. It never panics: one bad request
// must not end the others.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, v verb, allow func(*http.Request) error, called func()) (code int) {
	defer func() { //nolint:contextcheck // klog has it from the request
		if p := recover(); p != nil {
			klog.FromContext(r.Context()).Error(fmt.Errorf("%v", p), "a request panicked", "verb", v.name, "stack", string(debug.Stack()))
			code = refuse(w, http.StatusInternalServerError, "a fault of berth-extender; its log has the stack")
		}
	}()
	if err := allow(r); err != nil {
		return refuse(w, http.StatusUnauthorized, err.Error())
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return refuse(w, http.StatusMethodNotAllowed, v.name+" is a POST")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, BodyMax))
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes; set nodeCacheCapable: true in the scheduler's configuration", BodyMax))
		}
		return refuse(w, http.StatusBadRequest, "reading the request: "+err.Error())
	}
	if !s.Ready() {
		called()
		return refuse(w, http.StatusServiceUnavailable, "berth-extender is starting: it has not read the cluster yet")
	}
	out, err := v.answer(r.Context(), body)
	if err != nil {
		klog.FromContext(r.Context()).V(2).Info("request failed", "verb", v.name, "err", err.Error())
	}
	if wrong, is := errors.AsType[badRequest](err); is {
		// No kube-scheduler's, and so no sign that one asks.
		return refuse(w, http.StatusBadRequest, wrong.Error())
	}
	called()
	if out == nil {
		return refuse(w, http.StatusInternalServerError, err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		klog.FromContext(r.Context()).V(4).Info("the answer was not taken", "verb", v.name, "err", err.Error())
	}
	return http.StatusOK
}

// refuse answers with a reason in plain text, which kube-scheduler does not read and
// a person with curl does.
func refuse(w http.ResponseWriter, code int, why string) int {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.Error(w, why, code)
	return code
}

// decode reads a request's one JSON value.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return bad("the request is no JSON of the extender API: %w", err)
	}
	return nil
}

// judged reads the request of filter and prioritize: the pod and the nodes' names.
func judged(body []byte) (a extenderv1.ExtenderArgs, names []string, err error) {
	if err := decode(body, &a); err != nil {
		return a, nil, err
	}
	if err := checkPod(a.Pod); err != nil {
		return a, nil, err
	}
	switch {
	case a.NodeNames != nil:
		names = *a.NodeNames
	case a.Nodes != nil:
		for i := range a.Nodes.Items {
			names = append(names, a.Nodes.Items[i].Name)
		}
	default:
		return a, nil, bad("NodeNames is missing: name the nodes to judge")
	}
	seen := make(map[string]struct{}, len(names))
	for i, name := range names {
		if name == "" {
			return a, nil, bad("NodeNames[%d] is empty", i)
		}
		if _, twice := seen[name]; twice {
			return a, nil, bad("NodeNames[%d]: node %q stands twice", i, name)
		}
		seen[name] = struct{}{}
	}
	return a, names, nil
}

func checkPod(pod *corev1.Pod) error {
	switch {
	case pod == nil:
		return bad("Pod is missing")
	case pod.Name == "" || pod.Namespace == "":
		return bad("Pod.metadata needs a name and a namespace")
	}
	return nil
}

func (s *Service) answerFilter(ctx context.Context, body []byte) (any, error) {
	a, names, err := judged(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
	defer cancel()
	result, err := s.Filter(ctx, a.Pod, names)
	if err != nil {
		return &extenderv1.ExtenderFilterResult{Error: err.Error()}, err
	}
	if a.NodeNames == nil {
		result.Nodes, result.NodeNames = kept(a.Nodes, *result.NodeNames), nil
	}
	return result, nil
}

// kept are the nodes of those names, which are in the list's order.
func kept(all *corev1.NodeList, names []string) *corev1.NodeList {
	out := &corev1.NodeList{Items: make([]corev1.Node, 0, len(names))}
	for i := range all.Items {
		if n := len(out.Items); n < len(names) && all.Items[i].Name == names[n] {
			out.Items = append(out.Items, all.Items[i])
		}
	}
	return out
}

func (s *Service) answerPrioritize(ctx context.Context, body []byte) (any, error) {
	a, names, err := judged(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
	defer cancel()
	scores, err := s.Prioritize(ctx, a.Pod, names)
	if err != nil {
		return nil, err
	}
	return scores, nil
}

func (s *Service) answerPreempt(ctx context.Context, body []byte) (any, error) {
	var a extenderv1.ExtenderPreemptionArgs
	if err := decode(body, &a); err != nil {
		return nil, err
	}
	if err := checkPod(a.Pod); err != nil {
		return nil, err
	}
	nodes := a.NodeNameToMetaVictims
	if nodes == nil {
		nodes = meta(a.NodeNameToVictims)
	}
	ctx, cancel := context.WithTimeout(ctx, judgeTimeout)
	defer cancel()
	result, err := s.Preempt(ctx, a.Pod, nodes)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// meta names the victims, as the answer does.
func meta(nodes map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := make(map[string]*extenderv1.MetaVictims, len(nodes))
	for name, victims := range nodes {
		if victims == nil {
			continue
		}
		m := &extenderv1.MetaVictims{NumPDBViolations: victims.NumPDBViolations, Pods: []*extenderv1.MetaPod{}}
		for _, p := range victims.Pods {
			if p != nil {
				m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
		}
		out[name] = m
	}
	return out
}

func (s *Service) answerBind(ctx context.Context, body []byte) (any, error) {
	var a extenderv1.ExtenderBindingArgs
	if err := decode(body, &a); err != nil {
		return nil, err
	}
	if err := checkBinding(a); err != nil {
		return nil, err
	}
	if err := s.Bind(ctx, a); err != nil {
		return &extenderv1.ExtenderBindingResult{Error: err.Error()}, err
	}
	return &extenderv1.ExtenderBindingResult{}, nil
}

// checkBinding looks at names before they become part of a URL.
func checkBinding(a extenderv1.ExtenderBindingArgs) error {
	if a.PodUID == "" {
		return bad("PodUID is missing")
	}
	for _, f := range []struct {
		field, value string
		check        func(string) []string
	}{
		{"PodName", a.PodName, validation.IsDNS1123Subdomain},
		{"PodNamespace", a.PodNamespace, validation.IsDNS1123Label},
		{"Node", a.Node, validation.IsDNS1123Subdomain},
	} {
		if problems := f.check(f.value); len(problems) > 0 {
			return bad("%s %q: %s", f.field, f.value, strings.Join(problems, "; "))
		}
	}
	return nil
}
