package sandbox

import (
	"fmt"
	"path/filepath"

	"github.com/berth-storage/berth/volume"
)

// layout names the paths of a data folder.
type layout struct{ dir string }

func (l layout) lock() string       { return filepath.Join(l.dir, "berth-sandbox.lock") }
func (l layout) state() string      { return filepath.Join(l.dir, "state.json") }
func (l layout) kubeconfig() string { return filepath.Join(l.dir, "kubeconfig") }
func (l layout) pki() string        { return filepath.Join(l.dir, "pki") }
func (l layout) etcd() string       { return filepath.Join(l.dir, "etcd") }
func (l layout) logs() string       { return filepath.Join(l.dir, "logs") }
func (l layout) config() string     { return filepath.Join(l.dir, "config") }
func (l layout) manifests() string  { return filepath.Join(l.dir, "manifests") }
func (l layout) nodes() string      { return filepath.Join(l.dir, "nodes") }

func (l layout) log(process string) string {
	return filepath.Join(l.logs(), process+".log")
}

// marker is what every process of the sandbox carries in its environment.
func (l layout) marker() string { return "BERTH_SANDBOX=" + l.dir }

// Node is one node of the sandbox.
type Node struct {
	Name string `json:"name"`
	Zone string `json:"zone"`
	// Dir holds everything of the node.
	Dir string `json:"dir"`
}

// nodeList is the nodes that Options ask for, zones given out in turn.
func (l layout) nodeList(nodes, zones int) []Node {
	list := make([]Node, 0, nodes)
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i+1)
		list = append(list, Node{
			Name: name,
			Zone: fmt.Sprintf("zone-%d", i%zones+1),
			Dir:  filepath.Join(l.nodes(), name),
		})
	}
	return list
}

// Root is the agent's root, in the place of /var/lib/kubelet.
func (n Node) Root() string { return filepath.Join(n.Dir, "root") }

// Pool is where the node's pool is mounted.
func (n Node) Pool() string { return filepath.Join(n.Dir, "pool") }

// PoolImage is the file that holds the pool.
func (n Node) PoolImage() string { return filepath.Join(n.Dir, "pool.img") }

// PodVolumesSocket is where the agent serves nodeagent/podvolumes.
func (n Node) PodVolumesSocket() string { return filepath.Join(n.Dir, "podvolumes.sock") }

// DriverSocket is the bundled driver's CSI socket.
func (n Node) DriverSocket() string {
	return filepath.Join(n.Root(), "plugins", volume.DriverName, "csi.sock")
}

// Runtime is the pod runtime's folder: logs and volumes of pods.
func (n Node) Runtime() string { return filepath.Join(n.Dir, "runtime") }

// AgentProcess is the name of the node's agent among the processes.
func (n Node) AgentProcess() string { return n.Name + "-agent" }

// RuntimeProcess is the name of the node's pod runtime among the processes.
func (n Node) RuntimeProcess() string { return n.Name + "-runtime" }
