package manners_test

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-storage/berth/internal/sandbox"
	"github.com/berth-storage/berth/test/e2e/rig"
)

// TestExtender: berth-extender with the rights that are shipped and no scheduler that
// would call: what it says of itself, and of the silence.
func TestExtender(t *testing.T) {
	c := rig.Start(t, sandbox.Options{Nodes: 1, Extender: true, Skip: []sandbox.Component{
		sandbox.StockScheduler, sandbox.Scheduler, sandbox.Agents, sandbox.Runtimes, sandbox.ControllerManager,
	}})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	secret, rest, api := accountToken(t, client, "berth-extender"), c.RESTConfig(), freeAddress(t)
	extender := start(t, "berth-extender", "--kubeconfig="+token(rest.Host, rest.CAData, secret)(t),
		"--serve-address="+api, "--http-address=127.0.0.1:0", "--uncalled-after=2s", "--logging-format=json", "-v=10")
	extender.await(t, "the server's address", func() bool { return extender.http() != "" })
	ready := func() string { _, body := get(t, extender.http()+"/readyz?verbose"); return body }
	extender.await(t, "ready", func() bool { return ready() == "[+]caches\n[+]called\n[+]shutdown\n[+]start\nok\n" })
	extender.await(t, "the Lease of the cluster-scoped work", func() bool { return lease(t, client, "berth-cluster").holder != "" })

	silent(t, client, extender, ready)
	if code := post(t, "http://"+api+"/filter", "{}"); code != http.StatusBadRequest || !strings.Contains(ready(), "[-]called") {
		t.Errorf("a person with curl: %d, and that is no kube-scheduler", code)
	}
	question := `{"Pod": {"metadata": {"namespace": "default", "name": "web"}}, "NodeNames": []}`
	if code := post(t, "http://"+api+"/filter", question); code != http.StatusOK || !strings.Contains(ready(), "[+]called") {
		t.Errorf("a call is the end of it: %d %s", code, ready())
	}
	wantMetrics(t, extender.http()+"/metrics",
		`berth_build_info{go_version="`, `berth_extender_requests_total{code="400",verb="filter"} `, "berth_extender_request_duration_seconds_bucket{",
		"berth_extender_promises 0", "berth_extender_uncalled_pods 0", "rest_client_requests_total{", `leader_election_master_status{name="berth-cluster"} 1`)
	extender.end(t, syscall.SIGTERM)
	if got := lease(t, client, "berth-cluster").holder; got != "" {
		t.Errorf("the Lease berth-cluster is still held by %s", got)
	}
	extender.wantJSON(t)
	extender.wantSilent(t, secret)
}

// silent makes a pod that nobody schedules, and wants that told everywhere.
func silent(t *testing.T, client kubernetes.Interface, extender *running, ready func() string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{
			SchedulerName: "berth-extender", AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "web", Image: "web"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if _, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const why = "no kube-scheduler has asked berth-extender yet, and pods with volumes (1) wait for scheduler berth-extender"
	extender.await(t, "/readyz tells", func() bool { return strings.Contains(ready(), "[-]called: "+why) })
	extender.await(t, "the metric tells", func() bool {
		_, metrics := get(t, extender.http()+"/metrics")
		return strings.Contains(metrics, "berth_extender_uncalled_pods 1")
	})
	extender.await(t, "an event tells", func() bool {
		all, err := client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all.Items {
			if e.Regarding.Name == "web" && e.Reason == "ExtenderNotCalled" && e.Type == corev1.EventTypeWarning && strings.HasPrefix(e.Note, why) {
				return true
			}
		}
		return false
	})
}

func post(t *testing.T, url, body string) int {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}
