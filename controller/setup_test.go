package controller_test

import (
	"net/http"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-storage/berth/controller/capacity"
	"github.com/berth-storage/berth/controller/expand"
	"github.com/berth-storage/berth/controller/inflight"
	"github.com/berth-storage/berth/controller/internal/csitest"
	"github.com/berth-storage/berth/controller/provision"
	"github.com/berth-storage/berth/controller/reclaim"
	"github.com/berth-storage/berth/controller/scope"
	"github.com/berth-storage/berth/csiclient"
	"github.com/berth-storage/berth/volume"
)

// What the rooms consume is what the CSI client has.
var (
	_ provision.Driver       = csi.ControllerClient(nil)
	_ reclaim.Driver         = csi.ControllerClient(nil)
	_ expand.Driver          = csi.ControllerClient(nil)
	_ provision.Capabilities = (*csiclient.Client)(nil)
)

type noFiles struct{}

func (noFiles) ReplaceFile(string, []byte) error { return nil }
func (noFiles) RemoveFile(string) error          { return nil }

// TestSetup wires all rooms to one manager, as cmd/berth-agent does.
func TestSetup(t *testing.T) {
	s := scope.Scope{Driver: volume.DriverName, Node: "n1"}
	mgr, err := manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
		Cache:   cache.Options{ByObject: s.Cache("berth-system", scope.LabelledClaims)},
		Metrics: metricsserver.Options{BindAddress: "0"},
		// Without an API server nobody else tells which kinds have a namespace.
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return testrestmapper.TestOnlyStaticRESTMapper(scheme.Scheme), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	records, err := provision.NewFileRecords(t.TempDir(), noFiles{})
	if err != nil {
		t.Fatal(err)
	}
	driver, running := &csitest.Driver{}, &inflight.Set{}
	for room, err := range map[string]error{
		"provision": provision.SetupWithManager(mgr, provision.Config{
			Scope: s, Driver: driver, Capabilities: driver, Records: records, InFlight: running,
		}),
		"reclaim":  reclaim.SetupWithManager(mgr, reclaim.Config{Scope: s, Driver: driver}),
		"expand":   expand.SetupWithManager(mgr, expand.Config{Scope: s, Driver: driver}),
		"capacity": capacity.SetupWithManager(mgr, capacity.Config{Scope: s, Namespace: "berth-system", Source: driver, InFlight: running}),
	} {
		if err != nil {
			t.Errorf("%s: %v", room, err)
		}
	}
}
