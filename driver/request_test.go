package driver

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-storage/berth/driver/pool"
	"github.com/berth-storage/berth/volume"
)

func TestSizeOf(t *testing.T) {
	const mib = volume.MiB
	for reason, c := range map[string]struct {
		required, limit int64
		fsType          string
		want            int64
		wantCode        codes.Code
	}{
		"nothing asked":                           {want: volume.GiB},
		"a multiple of the unit":                  {required: 8 * mib, want: 8 * mib},
		"rounded up":                              {required: 8*mib + 1, want: 12 * mib},
		"one byte":                                {required: 1, want: 4 * mib},
		"rounded up to the limit":                 {required: 9 * mib, limit: 12 * mib, want: 12 * mib},
		"no multiple within":                      {required: 9 * mib, limit: 11 * mib, wantCode: codes.OutOfRange},
		"only a limit, above the default":         {limit: 5 * volume.GiB, want: volume.GiB},
		"only a limit, below the default":         {limit: 9 * mib, want: 8 * mib},
		"only a limit, below the unit":            {limit: mib, wantCode: codes.OutOfRange},
		"limit below required":                    {required: 2, limit: 1, wantCode: codes.InvalidArgument},
		"negative required":                       {required: -1, wantCode: codes.InvalidArgument},
		"negative limit":                          {limit: -1, wantCode: codes.InvalidArgument},
		"xfs too small":                           {required: 299 * mib, fsType: "xfs", wantCode: codes.OutOfRange},
		"xfs as small as can be":                  {required: 300 * mib, fsType: "xfs", want: 300 * mib},
		"xfs, only a limit that is too small":     {limit: 299 * mib, fsType: "xfs", wantCode: codes.OutOfRange},
		"a size that cannot be rounded up wholly": {required: math.MaxInt64, want: math.MaxInt64 - (4*mib - 1)},
	} {
		t.Run(reason, func(t *testing.T) {
			got, err := sizeOf(&csi.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit}, use{fsType: c.fsType})
			if got != c.want || status.Code(err) != c.wantCode {
				t.Errorf("got %d, %v; want %d, %v", got, err, c.want, c.wantCode)
			}
		})
	}
}

// Whatever sizeOf answers keeps the bounds that CSI sets.
func FuzzSizeOf(f *testing.F) {
	for _, seed := range [][2]int64{{0, 0}, {1, 0}, {1, 1}, {volume.GiB, volume.GiB}, {math.MaxInt64, math.MaxInt64}, {-1, -1}} {
		f.Add(seed[0], seed[1], false)
		f.Add(seed[0], seed[1], true)
	}
	f.Fuzz(func(t *testing.T, required, limit int64, xfs bool) {
		u := use{fsType: "ext4"}
		if xfs {
			u.fsType = "xfs"
		}
		got, err := sizeOf(&csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}, u)
		if err != nil {
			return
		}
		saturated := required > got && required-got < pool.Unit && got > 1<<62
		if got <= 0 || got%pool.Unit != 0 || got < required && !saturated || limit > 0 && got > limit || got < minimumSize(u) {
			t.Errorf("required %d, limit %d, %s: got %d", required, limit, u.fsType, got)
		}
	})
}

func TestUseOf(t *testing.T) {
	capability := func(mode csi.VolumeCapability_AccessMode_Mode, mount *csi.VolumeCapability_MountVolume) *csi.VolumeCapability {
		c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
		if mount == nil {
			c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			c.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
		}
		return c
	}
	const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	for reason, c := range map[string]struct {
		caps     []*csi.VolumeCapability
		want     use
		wantCode codes.Code
	}{
		"no filesystem named": {
			caps: []*csi.VolumeCapability{capability(writer, &csi.VolumeCapability_MountVolume{MountFlags: []string{"noatime"}})},
			want: use{fsType: "ext4", mountFlags: []string{"noatime"}},
		},
		"xfs": {
			caps: []*csi.VolumeCapability{capability(writer, &csi.VolumeCapability_MountVolume{FsType: "xfs"})},
			want: use{fsType: "xfs"},
		},
		"block": {
			caps: []*csi.VolumeCapability{capability(writer, nil)},
			want: use{block: true},
		},
		"reader only": {
			caps: []*csi.VolumeCapability{capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, nil)},
			want: use{block: true, readOnly: true},
		},
		"one writer": {
			caps: []*csi.VolumeCapability{capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil)},
			want: use{block: true, oneWriter: true},
		},
		"two that agree": {
			caps: []*csi.VolumeCapability{
				capability(writer, &csi.VolumeCapability_MountVolume{}),
				capability(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, &csi.VolumeCapability_MountVolume{FsType: "ext4"}),
			},
			want: use{fsType: "ext4"},
		},
		"none":               {wantCode: codes.InvalidArgument},
		"nil":                {caps: []*csi.VolumeCapability{nil}, wantCode: codes.InvalidArgument},
		"no access type":     {caps: []*csi.VolumeCapability{{}}, wantCode: codes.InvalidArgument},
		"unknown filesystem": {caps: []*csi.VolumeCapability{capability(writer, &csi.VolumeCapability_MountVolume{FsType: "ntfs"})}, wantCode: codes.InvalidArgument},
		"no access mode":     {caps: []*csi.VolumeCapability{capability(csi.VolumeCapability_AccessMode_UNKNOWN, nil)}, wantCode: codes.InvalidArgument},
		"many nodes":         {caps: []*csi.VolumeCapability{capability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil)}, wantCode: codes.InvalidArgument},
		"block and mount":    {caps: []*csi.VolumeCapability{capability(writer, nil), capability(writer, &csi.VolumeCapability_MountVolume{})}, wantCode: codes.InvalidArgument},
	} {
		t.Run(reason, func(t *testing.T) {
			got, err := useOfAll(c.caps)
			if status.Code(err) != c.wantCode {
				t.Fatalf("error %v, want code %v", err, c.wantCode)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(use{})); diff != "" {
				t.Errorf("use (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoolParameter(t *testing.T) {
	for reason, c := range map[string]struct {
		parameters map[string]string
		want       string
		wantText   string
	}{
		"none":           {},
		"a pool":         {parameters: map[string]string{volume.ParameterPool: "fast"}, want: "fast"},
		"reserved":       {parameters: map[string]string{volume.ParameterFSType: "xfs", "csi.storage.k8s.io/pvc/name": "x"}},
		"one not known":  {parameters: map[string]string{"type": "ssd"}, wantText: `parameter "type" is not known; berth.dev/pool is the only one`},
		"the first said": {parameters: map[string]string{"b": "", "a": ""}, wantText: `parameter "a" is not known; berth.dev/pool is the only one`},
	} {
		t.Run(reason, func(t *testing.T) {
			got, err := poolParameter(c.parameters)
			text := ""
			if err != nil {
				text = status.Convert(err).Message()
			}
			if got != c.want || text != c.wantText {
				t.Errorf("got %q, %q; want %q, %q", got, text, c.want, c.wantText)
			}
		})
	}
}

func TestAllows(t *testing.T) {
	here := map[string]string{"node": "a", "zone": "z"}
	term := func(segments map[string]string) *csi.Topology { return &csi.Topology{Segments: segments} }
	for reason, c := range map[string]struct {
		requirement *csi.TopologyRequirement
		want        bool
	}{
		"none":                    {nil, true},
		"empty":                   {&csi.TopologyRequirement{}, true},
		"this node":               {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"node": "a"})}}, true},
		"another":                 {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"node": "b"})}}, false},
		"one of several":          {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"node": "b"}), term(map[string]string{"zone": "z"})}}, true},
		"both keys of a term":     {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"node": "a", "zone": "y"})}}, false},
		"a key that is not here":  {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"rack": "1"})}}, false},
		"preferred alone":         {&csi.TopologyRequirement{Preferred: []*csi.Topology{term(map[string]string{"node": "b"})}}, false},
		"preferred is not needed": {&csi.TopologyRequirement{Requisite: []*csi.Topology{term(map[string]string{"node": "a"})}, Preferred: []*csi.Topology{term(map[string]string{"node": "b"})}}, true},
	} {
		t.Run(reason, func(t *testing.T) {
			if got := allows(c.requirement, here); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}

func TestCodeOf(t *testing.T) {
	for reason, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"an answer, wrapped":     {errors.Join(errors.New("x"), refuse(codes.OutOfRange, "y")), codes.OutOfRange},
		"not found":              {pool.ErrNotFound, codes.NotFound},
		"in use":                 {pool.ErrInUse, codes.FailedPrecondition},
		"exists":                 {&pool.ExistsError{}, codes.AlreadyExists},
		"exhausted":              {&pool.ExhaustedError{}, codes.ResourceExhausted},
		"damaged":                {&pool.DamagedError{}, codes.DataLoss},
		"deadline":               {context.DeadlineExceeded, codes.DeadlineExceeded},
		"canceled":               {context.Canceled, codes.Canceled},
		"anything else":          {errors.New("x"), codes.Internal},
		"taken back":             {tookBack(pool.ErrNotFound, nil), codes.NotFound},
		"not taken back":         {tookBack(pool.ErrNotFound, errors.New("x")), codes.Unavailable},
		"not taken back, answer": {tookBack(refuse(codes.DataLoss, "y"), errors.New("x")), codes.Unavailable},
	} {
		t.Run(reason, func(t *testing.T) {
			if got := status.Code(statusOf(c.err)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestKeyLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l keyLock
		unlock, err := l.lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.lock(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()

		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() { _, err := l.lock(ctx, "a"); gaveUp <- err }()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Errorf("waiting under an ended context: %v, want context.Canceled", err)
		}

		held := false
		done := make(chan struct{})
		go func() {
			defer close(done)
			unlock, err := l.lock(context.Background(), "a")
			if err == nil {
				held = true
				unlock()
			}
		}()
		synctest.Wait()
		if held {
			t.Error("two hold one key")
		}
		unlock()
		<-done
		if !held || len(l.held) != 0 {
			t.Errorf("held %t, want true; %d keys remembered, want none", held, len(l.held))
		}
	})
}
