package rig

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Requests counts what the API server answered since its start: by verb,
// resource and, where it is not a success, status.
type Requests map[string]float64

// Requests asks the API server what it has answered.
func (r *Rig) Requests(ctx context.Context) (Requests, error) {
	raw, err := r.client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("reading the API server's metrics: %w", err)
	}
	return parseRequests(string(raw))
}

// Since is what came after before, for so many pods: how many of each kind a
// pod, the most first, without what is rarer than one in fifty.
func (q Requests) Since(before Requests, pods int) string {
	perPod := func(kind string) float64 { return (q[kind] - before[kind]) / float64(pods) }
	kinds := slices.SortedFunc(maps.Keys(q), func(a, b string) int {
		return cmp.Or(cmp.Compare(perPod(b), perPod(a)), cmp.Compare(a, b))
	})
	var parts []string
	for _, kind := range kinds {
		if n := perPod(kind); n >= 0.02 {
			parts = append(parts, fmt.Sprintf("%s %.2f", kind, n))
		}
	}
	return strings.Join(parts, ", ")
}

// label is one label of a metric.
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// parseRequests reads apiserver_request_total. Watches are counted when they
// end, which says nothing here.
func parseRequests(metrics string) (Requests, error) {
	q := Requests{}
	for line := range strings.Lines(metrics) {
		labels, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(strings.TrimSpace(labels), "} ")
		if !ok {
			return nil, fmt.Errorf("the API server's metrics: %q has no value", line)
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("the API server's metrics: %w", err)
		}
		of := map[string]string{}
		for _, match := range label.FindAllStringSubmatch(labels, -1) {
			of[match[1]] = match[2]
		}
		if of["verb"] == "WATCH" || of["resource"] == "" {
			continue
		}
		kind := of["verb"] + " " + of["resource"]
		if of["subresource"] != "" {
			kind += "/" + of["subresource"]
		}
		if !strings.HasPrefix(of["code"], "2") {
			kind += " (" + of["code"] + ")"
		}
		q[kind] += n
	}
	return q, nil
}
