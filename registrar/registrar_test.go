package registrar

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// call is what a handler was told.
type call struct {
	Op string
	Plugin
}

// handler hands each call to the test, which answers Register calls.
type handler struct {
	calls   chan call
	answers chan error
}

func newHandler() *handler {
	return &handler{calls: make(chan call), answers: make(chan error)}
}

func (h *handler) Register(ctx context.Context, p Plugin) error {
	select {
	case h.calls <- call{"register", p}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-h.answers:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *handler) Deregister(ctx context.Context, p Plugin) {
	select {
	case h.calls <- call{"deregister", p}:
	case <-ctx.Done():
	}
}

// plugin is a driver's registrar under test control.
type plugin struct {
	registerapi.UnimplementedRegistrationServer
	info   *registerapi.PluginInfo
	told   chan Status
	server *grpc.Server
}

func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	p.told <- Status{r.GetPluginRegistered(), r.GetError()}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func startPlugin(t *testing.T, socket string, info *registerapi.PluginInfo) *plugin {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	p := &plugin{info: info, told: make(chan Status, 16), server: grpc.NewServer()}
	registerapi.RegisterRegistrationServer(p.server, p)
	go p.server.Serve(l)
	t.Cleanup(p.server.Stop)
	return p
}

func csiInfo(name string) *registerapi.PluginInfo {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: name, Endpoint: "/drivers/" + name, SupportedVersions: []string{"1.0.0"},
	}
}

func wantPlugin(name, socket string) Plugin {
	return Plugin{Name: name, Endpoint: "/drivers/" + name, Version: "1.0.0", Socket: socket}
}

// start runs a watcher of a new folder and ends it with the test.
func start(t *testing.T, h Handler, clk clock.Clock) string {
	t.Helper()
	dir := filepath.Join(shortDir(t), "plugins_registry")
	startIn(t, dir, h, clk)
	return dir
}

func startIn(t *testing.T, dir string, h Handler, clk clock.Clock) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- NewWatcher(dir, h, clk).Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// shortDir is a folder whose path leaves room for a socket's name: a unix
// socket's path has at most 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-reg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func expect[T any](t *testing.T, from <-chan T, want T) {
	t.Helper()
	if diff := cmp.Diff(want, <-from); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

// awaitPath waits until something is there.
func awaitPath(t *testing.T, path string) {
	t.Helper()
	for {
		if _, err := os.Lstat(path); err == nil {
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("no %s", path)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason    string
		info      *registerapi.PluginInfo
		want      Plugin
		wantError string
	}{
		"HighestOfMajorOne": {
			reason: "a version of another major is passed over, as in the kubelet",
			info:   &registerapi.PluginInfo{Type: "CSIPlugin", Name: "a.b", Endpoint: "/e", SupportedVersions: []string{"1.2.0", "x", "1.10.0", "2.0.0", "0.3.0"}},
			want:   Plugin{Name: "a.b", Endpoint: "/e", Version: "1.10.0", Socket: "/reg"},
		},
		"EndpointDefaults": {
			reason: "an empty endpoint means the registration socket itself",
			info:   &registerapi.PluginInfo{Type: "CSIPlugin", Name: "a.b", SupportedVersions: []string{"1.0.0"}},
			want:   Plugin{Name: "a.b", Endpoint: "/reg", Version: "1.0.0", Socket: "/reg"},
		},
		"WrongType":        {reason: "devices are the kubelet's", info: &registerapi.PluginInfo{Type: "DevicePlugin"}, wantError: "plugin type"},
		"NoName":           {reason: "a name is needed", info: &registerapi.PluginInfo{Type: "CSIPlugin"}, wantError: "driver name"},
		"NameIsPath":       {reason: "the name becomes part of paths", info: &registerapi.PluginInfo{Type: "CSIPlugin", Name: "../../etc"}, wantError: "driver name"},
		"NameTooLong":      {reason: "CSI allows 63 bytes", info: &registerapi.PluginInfo{Type: "CSIPlugin", Name: strings.Repeat("a", 64)}, wantError: "longer than 63"},
		"NoVersions":       {reason: "nothing to agree on", info: &registerapi.PluginInfo{Type: "CSIPlugin", Name: "a"}, wantError: "supported_versions is empty"},
		"OtherMajor":       {reason: "CSI 2 is not spoken", info: &registerapi.PluginInfo{Type: "CSIPlugin", Name: "a", SupportedVersions: []string{"2.0.0"}}, wantError: "major version 1"},
		"RelativeEndpoint": {reason: "relative to what?", info: &registerapi.PluginInfo{Type: "CSIPlugin", Name: "a", Endpoint: "csi.sock", SupportedVersions: []string{"1.0.0"}}, wantError: "absolute path"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := validate("/reg", c.info)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if (err != nil) != (c.wantError != "") || err != nil && !strings.Contains(err.Error(), c.wantError) {
				t.Errorf("%s: error %v, want %q", c.reason, err, c.wantError)
			}
		})
	}
}

func TestRegisterAndLeave(t *testing.T) {
	h := newHandler()
	dir := start(t, h, clock.RealClock{})
	awaitPath(t, dir)
	socket := filepath.Join(dir, "a.sock")
	p := startPlugin(t, socket, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", socket)})
	h.answers <- nil
	expect(t, p.told, Status{Registered: true})
	p.server.Stop() // unlinks
	expect(t, h.calls, call{"deregister", wantPlugin("a.example", socket)})
}

func TestFoundAtStartAndInSubfolders(t *testing.T) {
	h := newHandler()
	dir := filepath.Join(shortDir(t), "reg")
	sub := filepath.Join(dir, "sub")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	startPlugin(t, filepath.Join(dir, ".hidden.sock"), csiInfo("hidden.example"))
	first := startPlugin(t, filepath.Join(sub, "a.sock"), csiInfo("a.example"))
	if err := os.Symlink(filepath.Join(dir, ".hidden.sock"), filepath.Join(dir, "link.sock")); err != nil {
		t.Fatal(err)
	}
	startIn(t, dir, h, clock.RealClock{})
	expect(t, h.calls, call{"register", wantPlugin("a.example", filepath.Join(sub, "a.sock"))})
	h.answers <- nil
	expect(t, first.told, Status{Registered: true})

	// A folder that appears with its socket already inside.
	deep := filepath.Join(dir, ".making", "x")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	l := startPlugin(t, filepath.Join(deep, "b.sock"), csiInfo("b.example"))
	if err := os.Rename(deep, filepath.Join(dir, "x")); err != nil {
		t.Fatal(err)
	}
	expect(t, h.calls, call{"register", wantPlugin("b.example", filepath.Join(dir, "x", "b.sock"))})
	h.answers <- nil
	expect(t, l.told, Status{Registered: true})
}

func TestRefusalIsToldAndRepeated(t *testing.T) {
	h := newHandler()
	clk := clocktesting.NewFakeClock(time.Now())
	dir := start(t, h, clk)
	awaitPath(t, dir)
	socket := filepath.Join(dir, "a.sock")
	p := startPlugin(t, socket, csiInfo("a.example"))
	want := call{"register", wantPlugin("a.example", socket)}
	for _, wait := range []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second} {
		expect(t, h.calls, want)
		h.answers <- errors.New("no node yet")
		expect(t, p.told, Status{Message: "no node yet"})
		awaitWaiter(t, clk)
		clk.Step(wait)
	}
	expect(t, h.calls, want)
	h.answers <- nil
	expect(t, p.told, Status{Registered: true})
}

func awaitWaiter(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	for !clk.HasWaiters() {
		select {
		case <-t.Context().Done():
			t.Fatal("nobody waits")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestRemadeSocketIsANewInstance(t *testing.T) {
	h := newHandler()
	dir := start(t, h, clock.RealClock{})
	awaitPath(t, dir)
	socket := filepath.Join(dir, "a.sock")
	want := wantPlugin("a.example", socket)
	p := startPlugin(t, socket, csiInfo("a.example"))
	for range 3 {
		expect(t, h.calls, call{"register", want})
		h.answers <- nil
		expect(t, p.told, Status{Registered: true})
		p.server.Stop()
		p = startPlugin(t, socket, csiInfo("a.example"))
		expect(t, h.calls, call{"deregister", want})
	}
	expect(t, h.calls, call{"register", want})
	h.answers <- nil
}

func TestSecondSocketOfOneNameTakesOver(t *testing.T) {
	h := newHandler()
	dir := start(t, h, clock.RealClock{})
	awaitPath(t, dir)
	oldPath, newPath := filepath.Join(dir, "old.sock"), filepath.Join(dir, "new.sock")
	older := startPlugin(t, oldPath, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", oldPath)})
	h.answers <- nil
	expect(t, older.told, Status{Registered: true})

	newer := startPlugin(t, newPath, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", newPath)})
	h.answers <- nil
	expect(t, newer.told, Status{Registered: true})

	// When the newer goes, the older is asked back.
	newer.server.Stop()
	expect(t, h.calls, call{"deregister", wantPlugin("a.example", newPath)})
	expect(t, h.calls, call{"register", wantPlugin("a.example", oldPath)})
	h.answers <- nil
	expect(t, older.told, Status{Registered: true})

	// And an older one that goes while a newer is in force takes nothing along.
	newer = startPlugin(t, newPath, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", newPath)})
	h.answers <- nil
	expect(t, newer.told, Status{Registered: true})
	older.server.Stop()
	probe := startPlugin(t, filepath.Join(dir, "probe.sock"), csiInfo("probe.example"))
	expect(t, h.calls, call{"register", wantPlugin("probe.example", filepath.Join(dir, "probe.sock"))})
	h.answers <- nil
	expect(t, probe.told, Status{Registered: true})
}

func TestFolderRemovedAndMadeAgain(t *testing.T) {
	h := newHandler()
	dir := start(t, h, clock.RealClock{})
	awaitPath(t, dir)
	socket := filepath.Join(dir, "a.sock")
	p := startPlugin(t, socket, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", socket)})
	h.answers <- nil
	expect(t, p.told, Status{Registered: true})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	expect(t, h.calls, call{"deregister", wantPlugin("a.example", socket)})
	awaitPath(t, dir)
	startPlugin(t, socket, csiInfo("a.example"))
	expect(t, h.calls, call{"register", wantPlugin("a.example", socket)})
	h.answers <- nil
}

func TestEndOfWatcherDeregistersNothing(t *testing.T) {
	h := newHandler()
	dir := filepath.Join(shortDir(t), "reg")
	stop := startIn(t, dir, h, clock.RealClock{})
	awaitPath(t, dir)
	p := startPlugin(t, filepath.Join(dir, "a.sock"), csiInfo("a.example"))
	<-h.calls
	h.answers <- nil
	expect(t, p.told, Status{Registered: true})
	stop() // would hang in Deregister: nobody listens
	select {
	case c := <-h.calls:
		t.Fatalf("unexpected %v", c)
	default:
	}
}

func TestServeTowardsWatcher(t *testing.T) {
	h := newHandler()
	dir := start(t, h, clock.RealClock{})
	awaitPath(t, dir)
	told := make(chan Status, 4)
	again := make(chan struct{})
	a := Announcement{
		Dir: dir, Driver: "a.example", Endpoint: "/drivers/a.example", Again: again,
		OnStatus: func(_ context.Context, s Status) { told <- s },
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, a) }()
	want := wantPlugin("a.example", filepath.Join(dir, "a.example-reg.sock"))
	expect(t, h.calls, call{"register", want})
	h.answers <- nil
	expect(t, told, Status{Registered: true})

	info, err := os.Lstat(a.SocketPath())
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("socket mode %v, want only root to connect", got)
	}

	// Somebody removes the socket: it comes back, as a new instance.
	if err := os.Remove(a.SocketPath()); err != nil {
		t.Fatal(err)
	}
	expect(t, h.calls, call{"deregister", want})
	expect(t, h.calls, call{"register", want})
	h.answers <- nil
	expect(t, told, Status{Registered: true})

	// The driver has something new to say of its node: it registers anew.
	again <- struct{}{}
	expect(t, h.calls, call{"deregister", want})
	expect(t, h.calls, call{"register", want})
	h.answers <- nil
	expect(t, told, Status{Registered: true})

	cancel()
	if err := <-ended; err != nil {
		t.Fatalf("Serve: %v", err)
	}
	expect(t, h.calls, call{"deregister", want})
	if _, err := os.Lstat(a.SocketPath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestServeAndWhatIsInItsWay(t *testing.T) {
	cases := map[string]struct {
		reason    string
		prepare   func(t *testing.T, path string)
		wantError string
		wantThere fs.FileMode
	}{
		"File": {
			reason:    "a file is not ours to remove",
			prepare:   func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("x"), 0o600)) },
			wantError: "not a socket", wantThere: 0,
		},
		"LiveSocket": {
			reason:    "another process serves the driver",
			prepare:   func(t *testing.T, path string) { startPlugin(t, path, csiInfo("a.example")) },
			wantError: "served by another process", wantThere: fs.ModeSocket,
		},
		"DeadSocket": {
			reason: "a socket of a process that is gone is replaced",
			prepare: func(t *testing.T, path string) {
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
				must(t, err)
				l.SetUnlinkOnClose(false)
				must(t, l.Close())
			},
			wantThere: fs.ModeSocket,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a := Announcement{Dir: shortDir(t), Driver: "a.example", Endpoint: "/e"}
			c.prepare(t, a.SocketPath())
			listener, _, err := ListenPrivate(t.Context(), a.SocketPath())
			if (err != nil) != (c.wantError != "") || err != nil && !strings.Contains(err.Error(), c.wantError) {
				t.Fatalf("%s: error %v, want %q", c.reason, err, c.wantError)
			}
			if listener != nil {
				defer listener.Close()
			}
			info, err := os.Lstat(a.SocketPath())
			if err != nil || info.Mode().Type() != c.wantThere {
				t.Errorf("%s: found %v %v, want type %v", c.reason, info, err, c.wantThere)
			}
		})
	}
}

func TestServeLeavesAnothersSocketAlone(t *testing.T) {
	a := Announcement{Dir: shortDir(t), Driver: "a.example", Endpoint: "/e"}
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), a) }()
	awaitPath(t, a.SocketPath())
	other := filepath.Join(a.Dir, ".other")
	startPlugin(t, other, csiInfo("a.example"))
	must(t, os.Rename(other, a.SocketPath()))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "replaced by another process") {
		t.Fatalf("Serve: %v, want a word about the other process", err)
	}
	if _, err := os.Lstat(a.SocketPath()); err != nil {
		t.Errorf("the other's socket was removed: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
