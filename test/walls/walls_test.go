// Package walls holds the house to its plan: which room may import which, and
// what a pure room may touch. Each failure says why the wall stands.
package walls

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berth-storage/berth/"

// pkg is one of our packages as `go list` describes it; tests are not part of
// it, since a test may cross walls to set a scene.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

// room is the package's path inside the module.
func (p pkg) room() string { return strings.TrimPrefix(p.ImportPath, module) }

func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

// under reports whether path is one of the roots or lies below one.
func under(path string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return path == root || strings.HasPrefix(path, root+"/")
	})
}

// pure are the rooms that take values and return values.
var pure = []string{"volume", "scheduler/binding", "nodeagent/plan"}

// importRules forbid imports. A package under `of` must not import (directly,
// or with deep through others) anything under `never`, unless it lies under
// `except`.
var importRules = []struct {
	of, except []string
	never      []string
	deep       bool
	why        string
}{
	{
		of:    pure,
		never: []string{"os", "io/fs", "net", "context", "syscall", "k8s.io/klog", "k8s.io/klog/v2"},
		why:   "a pure room decides; what it needs to know comes in as a value, what it decides goes out as one",
	},
	{
		of:    pure,
		never: []string{"k8s.io/client-go", "google.golang.org/grpc", "sigs.k8s.io/controller-runtime", "k8s.io/kubernetes"},
		deep:  true,
		why:   "a pure room must compile in a second and run anywhere; clients, wires and controllers are the shell's",
	},
	{
		of: []string{""}, except: []string{"host"},
		never: []string{"os/exec", "golang.org/x/sys/unix", "k8s.io/mount-utils", "github.com/moby/sys/mountinfo", "k8s.io/utils/exec"},
		why:   "only host touches the machine, so that its fake can fail every call and one room holds every mount",
	},
	{
		of: []string{""}, except: []string{"scheduler/plugin", "cmd/berth-scheduler", "internal/sandbox/multicall", "test/bench", "test/oracle"},
		never: []string{"k8s.io/kube-scheduler/framework", "k8s.io/kubernetes/pkg/scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
		why:   "only scheduler/plugin adapts to the scheduler framework; the extender uses the same decisions without it; the stock scheduler of the sandbox is upstream's whole program, and the tests that hold both side by side need it",
	},
	{
		of: []string{""}, except: []string{"scheduler/plugin", "cmd", "internal/sandbox/multicall", "internal/sandbox/podruntime", "test/bench", "test/oracle"},
		never: []string{"k8s.io/kubernetes"},
		why:   "k8s.io/kubernetes takes minutes to compile and promises no compatibility; it stays at the edge",
	},
	{
		of: []string{"cmd/berth-extender"}, never: []string{"k8s.io/kubernetes", "k8s.io/kube-scheduler/framework"},
		deep: true, why: "the extender serves schedulers of other versions than the one that Berth builds; it knows them by their API alone",
	},
	{
		of: []string{"scheduler"}, never: []string{module + "controller", module + "nodeagent", module + "driver", module + "registrar"},
		deep: true, why: "the sides meet in API objects, on the CSI socket, in volume, and in cmd",
	},
	{
		of: []string{"controller"}, never: []string{module + "scheduler", module + "nodeagent", module + "driver", module + "registrar"},
		deep: true, why: "the sides meet in API objects, on the CSI socket, in volume, and in cmd",
	},
	{
		of: []string{"nodeagent"}, never: []string{module + "scheduler", module + "controller", module + "driver"},
		deep: true, why: "the sides meet in API objects, on the CSI socket, in volume, and in cmd",
	},
	{
		of: []string{"driver", "registrar"}, never: []string{module + "scheduler", module + "controller", module + "nodeagent", module + "csiclient"},
		deep: true, why: "the sides meet in API objects, on the CSI socket, in volume, and in cmd; a driver is called, it calls nobody",
	},
	{
		of: []string{"host", "csiclient", "volume"}, never: []string{
			module + "scheduler", module + "controller", module + "nodeagent", module + "driver", module + "registrar", module + "internal", module + "cmd",
		},
		deep: true, why: "imports point down the list of architecture.md; these rooms are its floor",
	},
	{
		of: []string{""}, except: []string{"cmd", "test", "internal/sandbox"},
		never: []string{module + "internal/sandbox"},
		why:   "the sandbox is a user of the product, not a part of it",
	},
}

func TestImports(t *testing.T) {
	pkgs := load(t)
	for _, rule := range importRules {
		hit := false
		for _, p := range pkgs {
			if rule.of[0] != "" && !under(p.room(), rule.of...) || under(p.room(), rule.except...) {
				continue
			}
			hit = true
			imports := p.Imports
			if rule.deep {
				imports = p.Deps
			}
			for _, imp := range imports {
				if under(imp, rule.never...) {
					t.Errorf("%s imports %s: %s", p.room(), imp, rule.why)
				}
			}
		}
		if !hit {
			t.Errorf("no package is under %q: the rule (%s) guards an empty room; mend or delete it", rule.of, rule.why)
		}
	}
}

// callRules forbid a call by its written form.
var callRules = []struct {
	of, except []string
	calls      []string
	why        string
}{
	{
		of: pure, calls: []string{"time.Now", "time.Since", "time.Until", "time.After", "time.Sleep"},
		why: "time is an input of a decision",
	},
	{
		of: []string{""}, calls: []string{"time.Sleep"},
		why: "production code waits on events, with a context",
	},
	{
		of: []string{""}, except: []string{"csiclient"},
		calls: []string{"csi.NewControllerClient", "csi.NewNodeClient", "csi.NewIdentityClient"},
		why:   "csiclient is the only CSI client: it remembers capabilities and knows what a status means",
	},
	{
		of: []string{""}, except: []string{"host"},
		calls: []string{"syscall.Mount", "syscall.Unmount", "syscall.Exec", "syscall.ForkExec", "syscall.StartProcess", "os.StartProcess"},
		why:   "only host touches the machine",
	},
	{
		of: []string{"nodeagent", "driver", "controller"}, calls: []string{"os.RemoveAll"},
		why: "a recursive delete below a mount deletes a user's data; os.Remove fails on it",
	},
}

func TestCalls(t *testing.T) {
	for _, p := range load(t) {
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				left, ok := sel.X.(*ast.Ident)
				if !ok {
					return true
				}
				call := left.Name + "." + sel.Sel.Name
				for _, rule := range callRules {
					in := rule.of[0] == "" || under(p.room(), rule.of...)
					if in && !under(p.room(), rule.except...) && slices.Contains(rule.calls, call) {
						t.Errorf("%s: %s: %s", fset.Position(n.Pos()), call, rule.why)
					}
				}
				return true
			})
		}
	}
}

// TestOnePackageDoc wants one file of each package, and one alone, to say what
// the package is.
func TestOnePackageDoc(t *testing.T) {
	for _, p := range load(t) {
		var docs []string
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if file.Doc != nil && !ast.IsGenerated(file) {
				docs = append(docs, name)
			}
		}
		if len(docs) != 1 && len(p.GoFiles) > 0 {
			t.Errorf("%s: want one package doc, found %d %v", p.room(), len(docs), docs)
		}
	}
}
