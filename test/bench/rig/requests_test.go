package rig

import "testing"

func TestRequests(t *testing.T) {
	const metrics = `# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="binding",verb="POST",version="v1"} 300
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="persistentvolumeclaims",scope="resource",subresource="",verb="PUT",version="v1"} 1.5e+02
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="persistentvolumeclaims",scope="resource",subresource="",verb="PUT",version="v1"} 30
apiserver_request_total{code="0",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 900
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 900
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 1
apiserver_requested_deprecated_apis{group=""} 1
`
	now, err := parseRequests(metrics)
	if err != nil {
		t.Fatal(err)
	}
	before := Requests{"POST pods/binding": 100}
	const want = "POST pods/binding 2.00, PUT persistentvolumeclaims 1.50, PUT persistentvolumeclaims (409) 0.30"
	if got := now.Since(before, 100); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	for _, wrong := range []string{"apiserver_request_total{verb=\"GET\"\n", "apiserver_request_total{verb=\"GET\"} many\n"} {
		if _, err := parseRequests(wrong); err == nil {
			t.Errorf("%q is no error", wrong)
		}
	}
}
