package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-storage/berth/host/process"
)

// TestMain lets the test binary be a container, and be the parent that a test
// kills.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case InitCommand:
			os.Exit(Init())
		case "parent":
			os.Exit(parent(os.Args[2], os.Args[3]))
		}
	}
	os.Exit(m.Run())
}

// run runs a script to its end and returns its output and how it ended.
func run(t *testing.T, spec Spec, script string) (string, process.Exit) {
	t.Helper()
	p, log := start(t, spec, script)
	exit := p.Exit()
	out, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), exit
}

func start(t *testing.T, spec Spec, script string) (*process.Process, string) {
	t.Helper()
	dir := t.TempDir()
	spec.Scratch = t.TempDir()
	spec.Hostname = "box"
	if spec.Args == nil {
		spec.Args = []string{"sh", "-c", script}
	}
	log := filepath.Join(dir, "log")
	p, err := Start(t.Context(), Options{Name: t.Name(), Log: log}, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p, log
}

func TestWhatTheCommandSees(t *testing.T) {
	data := t.TempDir()
	// Outside of /tmp, which containers do not see anyway.
	secret, err := os.MkdirTemp("/var/tmp", "berth-hidden-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(secret); err != nil {
			t.Error(err)
		}
	})
	write(t, filepath.Join(data, "greeting"), "hello")
	write(t, filepath.Join(data, "sub/inner"), "deep")
	write(t, filepath.Join(secret, "key"), "do not show")

	mounts := []Mount{
		{Source: data, Target: "/data"},
		{Source: data, Target: "/var/run/fixed", ReadOnly: true},
		{Source: data, SubPath: "sub", Target: "/sub"},
		{Source: data, SubPath: "made/here", Target: "/made"},
		{Source: filepath.Join(data, "greeting"), Target: "/etc/greeting"},
		{Source: "/dev/null", Target: "/dev/xvda"},
		// A later and deeper target lies inside an earlier one, whatever the order.
		{Source: filepath.Join(data, "sub"), Target: "/outer/inner"},
		{Source: data, Target: "/outer"},
	}
	if err := os.Mkdir(filepath.Join(data, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason, script, want string
	}{
		"folder":         {"a volume is read at its mount path", "cat /data/greeting", "hello"},
		"behind a link":  {"/var/run is an absolute link, followed inside the container", "cat /run/fixed/greeting", "hello"},
		"subPath":        {"a part of a volume", "cat /sub/inner", "deep"},
		"missing part":   {"a missing subPath is made as a folder", "test -d /made && echo -n made", "made"},
		"file":           {"one file", "cat /etc/greeting", "hello"},
		"device":         {"a raw block volume is a device file", "test -c /dev/xvda && echo -n device", "device"},
		"nested":         {"the shorter target is mounted first", "cat /outer/greeting /outer/inner/inner", "hellodeep"},
		"read-only":      {"the kernel refuses to write", "touch /run/fixed/x 2>/dev/null || echo -n refused", "refused"},
		"hidden":         {"hidden folders are empty", "test -d " + secret + " && ls " + secret + " && echo -n empty", "empty"},
		"pid 1":          {"the command is the first process", "echo -n $$", "1"},
		"processes":      {"no other process is seen", "for p in /proc/[0-9]*; do echo -n $p; done", "/proc/1"},
		"host name":      {"its own host name", "uname -n", "box\n"},
		"environment":    {"only the given environment", "env | grep -v -e ^_ -e PWD -e SHLVL -e OLDPWD", "A=b\n"},
		"working folder": {"made when missing", "pwd", "/srv/here\n"},
		"no host mounts": {"only the container's own mounts are seen", "grep -c /dev/loop /proc/self/mountinfo", "0\n"},
		"user":           {"root, unless said otherwise", "id -u", "0\n"},
		"host's tmp":     {"the host's /tmp is not shown", "ls -A /tmp", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec := Spec{Env: []string{"A=b"}, Dir: "/srv/here", Mounts: mounts, Hide: []string{secret}}
			got, _ := run(t, spec, tc.script)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tc.reason, diff)
			}
		})
	}
}

func TestWritesAreThrownAwayOutsideVolumes(t *testing.T) {
	data := t.TempDir()
	mark := "/berth-container-test-mark"
	_, exit := run(t, Spec{Mounts: []Mount{{Source: data, Target: "/data"}}}, "echo kept > /data/file && echo lost > "+mark)
	if exit.Code != 0 {
		t.Fatalf("writing: %s", exit)
	}
	if got, err := os.ReadFile(filepath.Join(data, "file")); err != nil || string(got) != "kept\n" {
		t.Errorf("the volume holds %q, %v", got, err)
	}
	if _, err := os.Stat(mark); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the host's root has the container's file: %v", err)
	}
}

func TestUserAndReadOnlyRoot(t *testing.T) {
	spec := Spec{User: &User{UID: 1234, GID: 2345, Groups: []int{3456}}, ReadOnlyRoot: true}
	got, _ := run(t, spec, "id -u; id -g; id -G; touch /x 2>/dev/null || echo refused")
	if diff := cmp.Diff("1234\n2345\n2345 3456\nrefused\n", got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestExit(t *testing.T) {
	if _, exit := run(t, Spec{}, "exit 7"); exit.Code != 7 || exit.Signal != 0 {
		t.Errorf("exit 7: %+v", exit)
	}
	p, _ := start(t, Spec{}, "sleep 1000")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if exit := p.Exit(); exit.Signal != syscall.SIGKILL || exit.Code != 137 {
		t.Errorf("killed: %+v", exit)
	}
}

func TestSetupErrors(t *testing.T) {
	data := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(data, "out")); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		spec   Spec
		want   string
	}{
		"no command":      {"images are not known", Spec{}, "no command"},
		"unknown command": {"as a person would be told by a shell", Spec{Args: []string{"no-such-program"}}, "no-such-program"},
		"missing source":  {"names the target", Spec{Args: []string{"true"}, Mounts: []Mount{{Source: data + "/none", Target: "/data"}}}, "/data"},
		"leading out":     {"a subPath never leaves its volume", Spec{Args: []string{"true"}, Mounts: []Mount{{Source: data, SubPath: "out", Target: "/data"}}}, `subPath "out"`},
		"dots":            {"nor by its name", Spec{Args: []string{"true"}, Mounts: []Mount{{Source: data, SubPath: "../x", Target: "/data"}}}, `subPath "../x"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.spec.Scratch = t.TempDir()
			_, err := Start(t.Context(), Options{Name: "c"}, tc.spec)
			var setup *SetupError
			if !errors.As(err, &setup) || !strings.Contains(setup.Message, tc.want) {
				t.Errorf("%s: got %v, want a SetupError about %q", tc.reason, err, tc.want)
			}
		})
	}
}

// parent starts a container, notes that it did, and waits to be killed.
func parent(scratch, data string) int {
	_, err := Start(context.Background(), Options{Name: "child", Marker: "BERTH_CONTAINER_TEST=" + data}, Spec{
		Scratch: scratch, User: &User{UID: 1, GID: 1},
		Args:   []string{"sh", "-c", "sleep 1000 & touch /data/forked; sleep 1000"},
		Mounts: []Mount{{Source: data, Target: "/data"}},
	})
	if err != nil || os.WriteFile(filepath.Join(data, "started"), nil, 0o600) != nil {
		return 1
	}
	select {}
}

// TestDiesWithItsParent kills the parent: the command, which changed its user,
// and its child must be gone.
func TestDiesWithItsParent(t *testing.T) {
	data := t.TempDir()
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{Name: "parent", Path: "/proc/self/exe", Args: []string{"parent", t.TempDir(), data}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	awaitFile(t, filepath.Join(data, "started"))
	awaitFile(t, filepath.Join(data, "forked"))
	marker := "BERTH_CONTAINER_TEST=" + data
	children, err := process.Marked(marker)
	if err != nil || len(children) < 2 {
		t.Fatalf("the container has %d processes, %v", len(children), err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, id := range children {
		if err := id.Wait(ctx); err != nil {
			t.Errorf("process %s outlives its parent: %v", id, err)
		}
	}
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s did not appear", path)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
