package driver_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

// TestCapacities checks that what controller/capacity is told is what the pool
// has, and that a change of the pool is signalled.
func TestCapacities(t *testing.T) {
	w, _ := fakeWorld(t)
	source := w.d.Capacities()
	before, err := w.pool.Capacity(t.Context())
	w.must(err)
	got, err := source.Capacity(t.Context(), map[string]string{volume.ParameterFSType: "ext4"})
	if diff := cmp.Diff(before, got); err != nil || diff != "" {
		t.Errorf("the default pool: %v (-want +got)\n%s", err, diff)
	}
	got, err = source.Capacity(t.Context(), map[string]string{volume.ParameterPool: "elsewhere"})
	if diff := cmp.Diff(volume.PoolCapacity{}, got); err != nil || diff != "" {
		t.Errorf("a pool that the node lacks has nothing here: %v (-want +got)\n%s", err, diff)
	}
	if _, err := source.Capacity(t.Context(), map[string]string{"typo": "x"}); err == nil {
		t.Error("an unknown parameter was taken; no volume of the class could be made")
	}

	select {
	case <-source.Changed():
		t.Error("a change was signalled before any")
	default:
	}
	_, err = w.pool.Create(t.Context(), "v", pool.Spec{Size: pool.Unit, FSType: "ext4"})
	w.must(err)
	<-source.Changed()
	after, err := source.Capacity(t.Context(), nil)
	if err != nil || after.Allocation <= before.Allocation || after.Available >= before.Available {
		t.Errorf("after a volume: %+v, %v; want less than %+v and a higher count", after, err, before)
	}
}
