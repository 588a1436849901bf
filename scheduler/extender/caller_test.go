package extender

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-storage/berth/scheduler/internal/fakeapi"
	"github.com/berth-storage/berth/volume"
)

// slowAPI takes patches over HTTP: it tells of each that has arrived, and carries it
// out when it may, whether or not somebody still waits for the answer.
type slowAPI struct {
	cluster      *fakeapi.Cluster
	arrived, may chan struct{}
}

func (s *slowAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPatch {
		http.Error(w, "only patches", http.StatusMethodNotAllowed)
		return
	}
	s.arrived <- struct{}{}
	<-s.may
	var out any
	core, name := s.cluster.Client.CoreV1(), path.Base(r.URL.Path)
	ctx := context.WithoutCancel(r.Context())
	if strings.Contains(r.URL.Path, "/persistentvolumes/") {
		out, err = core.PersistentVolumes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	} else {
		out, err = core.PersistentVolumeClaims("default").Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // nobody may be there
}

// TestCallerGoneInWrite: who asked goes while the plan is being written (kube-scheduler's
// httpTimeout, its end, or the end of this program): no write is cut off, as its
// outcome would be unknown and what it reserved nobody's, and the promise is kept.
func TestCallerGoneInWrite(t *testing.T) {
	pod := fakeapi.Pod("web", "sta", "dyn")
	c := pool(t, map[string]string{"n1": "8Gi"}, fakeapi.Class("local", volume.NoProvisioner), fakeapi.PV("free", "local", "2Gi", "n1"),
		fakeapi.PVC("sta", "local", "1Gi"), fakeapi.PVC("dyn", "fast", "1Gi"), pod)
	api := &slowAPI{c, make(chan struct{}, 10), make(chan struct{})}
	server := httptest.NewServer(api)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, c, func(o *Options) { o.Client = client })
	ctx, gone := context.WithCancel(t.Context())
	defer gone()
	ended := make(chan error, 1)
	go func() { ended <- r.Bind(ctx, bindingOf(pod, "n1")) }()
	<-api.arrived
	<-api.arrived
	gone()
	close(api.may)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "is kept") || r.Promises() != 1 {
		t.Errorf("%v, %d promises", err, r.Promises())
	}
	if node := r.Claim("dyn").Annotations[volume.AnnSelectedNode]; node != "n1" || r.Volume("free").Spec.ClaimRef == nil {
		t.Errorf("claim selected for %q, volume reserved for %v", node, r.Volume("free").Spec.ClaimRef)
	}
	r.Delete(pod)
	r.seen("the reserved volume is given back", func() bool { return r.Volume("free").Spec.ClaimRef == nil })
}

// TestCallerGoneBefore: kube-scheduler has forgotten a pod whose bind it gave up, and may
// have given its place on the node to another by now. What has not begun is left alone.
func TestCallerGoneBefore(t *testing.T) {
	plain, pod := fakeapi.Pod("plain"), fakeapi.Pod("web", "a")
	r := start(t, pool(t, map[string]string{"n1": "8Gi"}, fakeapi.PVC("a", "fast", "1Gi"), plain, pod))
	r.PVController(t.Context())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, p := range []*corev1.Pod{plain, pod} {
		if err := r.Bind(gone, bindingOf(p, "n1")); !errors.Is(err, context.Canceled) || r.nodeOf(p) != "" || r.Promises() != 0 {
			t.Errorf("%s: %v, on node %q, %d promises", p.Name, err, r.nodeOf(p), r.Promises())
		}
	}
	if node := r.Claim("a").Annotations[volume.AnnSelectedNode]; node != "" {
		t.Errorf("the claim is selected for %s", node)
	}
}
