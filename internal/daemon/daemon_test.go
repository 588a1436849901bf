package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-storage/berth/internal/program"
)

// daemon is a small program: its own flag --size, and what it runs.
func daemon(run func(context.Context, *Endpoints) error) Spec {
	size := "1Gi"
	return Spec{
		Name: "berth-test", Short: "A test", Long: "A test.", Common: NewCommon("127.0.0.1:0"),
		AddFlags: func(sets *cliflag.NamedFlagSets) {
			sets.FlagSet("own").StringVar(&size, "size", size, "A size.")
		},
		Validate: func(p *Problems) {
			if size == "" {
				p.Flag("size", "%q is no size; use 1Gi", size)
			}
		},
		Run: run,
	}
}

func never(t *testing.T) func(context.Context, *Endpoints) error {
	return func(context.Context, *Endpoints) error {
		t.Error("a program with a wrong configuration runs")
		return nil
	}
}

func execute(cmd *cobra.Command, args ...string) (string, error) {
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestHelpAndVersion(t *testing.T) {
	help, err := execute(Command(daemon(never(t))), "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Own flags:", "Cluster flags:", "Life flags:", "Logs flags:", "Global flags:",
		"--size", "--http-address", "--shutdown-grace-period", "--version", `"json"`, "Env: KUBECONFIG",
	} {
		if !strings.Contains(help, want) {
			t.Errorf("the help lacks %q:\n%s", want, help)
		}
	}
	if n := strings.Count(help, "--vmodule"); n != 1 {
		t.Errorf("--vmodule stands %d times in the help", n)
	}
	said, err := execute(Command(daemon(never(t))), "--version")
	if want := "berth-test version " + program.Version() + " (Kubernetes " + program.KubernetesVersion(); err != nil || !strings.HasPrefix(said, want) {
		t.Errorf("version: %q, %v; want %q first", said, err, want)
	}
}

func TestWrongConfiguration(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"own":       {"the program's own flags", []string{"--size="}, []string{"--size"}},
		"address":   {"names the flag, the value and an example", []string{"--http-address=9808"}, []string{`--http-address: "9808"`, ":9808"}},
		"port":      {"a port of a name cannot be probed", []string{"--http-address=:http-alt"}, []string{"--http-address"}},
		"grace":     {"without time nothing ends in order", []string{"--shutdown-grace-period=0s"}, []string{"--shutdown-grace-period"}},
		"qps":       {"no request a second would wait for ever", []string{"--kube-api-qps=0"}, []string{"--kube-api-qps"}},
		"burst":     {"as above", []string{"--kube-api-burst=-1"}, []string{"--kube-api-burst"}},
		"format":    {"names the flag, not Kubernetes' field", []string{"--logging-format=xml"}, []string{"--logging-format", "xml"}},
		"not known": {"a typing error starts nothing", []string{"--sizes=2"}, []string{"unknown flag: --sizes"}},
		"argument":  {"as above", []string{"2Gi"}, []string{"2Gi"}},
		"many":      {"all at once", []string{"--size=", "--kube-api-qps=0", "--logging-format=xml"}, []string{"--size", "--kube-api-qps", "--logging-format"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := execute(Command(daemon(never(t))), tc.args...)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: want %q in %v", tc.reason, want, err)
				}
			}
		})
	}
}

// TestEnd: what the program returns, and what when it is asked to end.
func TestEnd(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]struct {
		reason string
		run    func(context.Context, *Endpoints) error
		asked  bool
		want   string
	}{
		"asked":          {"ends in order", func(ctx context.Context, _ *Endpoints) error { <-ctx.Done(); return nil }, true, ""},
		"fails":          {"its error is the program's", func(context.Context, *Endpoints) error { return broken }, false, "broken"},
		"fails as asked": {"an error is told even then", func(ctx context.Context, _ *Endpoints) error { <-ctx.Done(); return broken }, true, "broken"},
		"hangs":          {"the grace is the limit", func(context.Context, *Endpoints) error { <-t.Context().Done(); return nil }, true, "--shutdown-grace-period"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := daemon(tc.run)
			s.Common.ShutdownGrace = 50 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.asked {
				cancel()
			}
			err := s.serve(ctx)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// asProgram makes the test binary run main in the way that it names.
const asProgram = "BERTH_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "":
		os.Exit(m.Run())
	case "panic":
		os.Exit(Main(daemon(func(context.Context, *Endpoints) error { panic("what is this") })))
	case "deaf":
		os.Exit(Main(daemon(func(context.Context, *Endpoints) error { select {} })))
	case "fails":
		os.Exit(Main(daemon(func(context.Context, *Endpoints) error { return errors.New("broken") })))
	default:
		os.Exit(Main(daemon(func(ctx context.Context, _ *Endpoints) error { <-ctx.Done(); return nil })))
	}
}

// TestProcess: exit statuses and last words of real processes.
func TestProcess(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason, berth string
		args          []string
		signals       []os.Signal
		status        int
		said          string
	}{
		"asked":  {"in order", "good", []string{"--logging-format=json"}, []os.Signal{os.Interrupt}, 0, `"msg":"program ended as asked"`},
		"config": {"plain words, and nothing started", "good", []string{"--size="}, nil, 1, "berth-test: the configuration is wrong:\n--size"},
		"fails":  {"in the log", "fails", nil, nil, 1, `"program failed" err="broken"`},
		"json":   {"in the log's format", "fails", []string{"--logging-format=json"}, nil, 1, `"err":"broken"`},
		"panic":  {"with its stack", "panic", nil, nil, 2, "panic: what is this"},
		"deaf":   {"a second signal needs no consent", "deaf", nil, []os.Signal{os.Interrupt, os.Interrupt}, 130, "a second signal"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], tc.args...)
			cmd.Env = append(os.Environ(), asProgram+"="+tc.berth)
			said := newWatched()
			cmd.Stdout, cmd.Stderr = said, said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if len(tc.signals) > 0 {
				said.await(t, "program starts")
			}
			for _, s := range tc.signals {
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				if len(tc.signals) > 1 {
					// Two signals of a kind that are not taken yet are one.
					said.await(t, "asked to end")
				}
			}
			err := cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tc.status || !strings.Contains(said.String(), tc.said) {
				t.Errorf("%s: exit %d (%v), want %d and %q\n%s", tc.reason, got, err, tc.status, tc.said, said)
			}
		})
	}
}
