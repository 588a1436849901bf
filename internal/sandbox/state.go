package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"github.com/berth-storage/berth/host/process"
)

// State is what a sandbox says of itself, in its data folder, to other
// processes.
type State struct {
	DataDir    string `json:"dataDir"`
	Kubeconfig string `json:"kubeconfig"`
	// Supervisor is the process that all others are children of.
	Supervisor process.ID     `json:"supervisor"`
	Ready      bool           `json:"ready"`
	Nodes      []Node         `json:"nodes,omitempty"`
	Processes  []ProcessState `json:"processes,omitempty"`
}

// ProcessState is one process of a State.
type ProcessState struct {
	Name string     `json:"name"`
	ID   process.ID `json:"id"`
	Log  string     `json:"log"`
}

// NoSandboxError says that a folder holds no sandbox. It is os.ErrNotExist.
type NoSandboxError struct{ Dir string }

func (e *NoSandboxError) Error() string {
	return fmt.Sprintf("no sandbox in %s; start one with: berth-sandbox up --data-dir %s", e.Dir, e.Dir)
}

// Is makes it os.ErrNotExist.
func (e *NoSandboxError) Is(target error) bool { return target == os.ErrNotExist }

// ReadState reads the state of the sandbox in dir; *NoSandboxError when there is
// none.
func ReadState(dir string) (State, error) {
	dir, err := CleanDataDir(dir)
	if err != nil {
		return State{}, err
	}
	raw, err := os.ReadFile(layout{dir}.state())
	if errors.Is(err, os.ErrNotExist) {
		return State{}, &NoSandboxError{Dir: dir}
	}
	if err != nil {
		return State{}, fmt.Errorf("reading the sandbox's state: %w", err)
	}
	var s State
	if err := json.Unmarshal(raw, &s); err != nil {
		return State{}, fmt.Errorf("reading the sandbox's state: %w", err)
	}
	return s, nil
}

// writeState replaces the state file whole, so that a reader never sees a part.
func (c *Cluster) writeState() error {
	c.stateMu.Lock()
	defer c.stateMu.Unlock()
	self, err := process.Identify(os.Getpid())
	if err != nil {
		return err
	}
	s := State{DataDir: c.dir.dir, Kubeconfig: c.dir.kubeconfig(), Supervisor: self, Nodes: c.nodes}
	c.mu.Lock()
	s.Ready = c.ready
	for _, p := range c.processes {
		s.Processes = append(s.Processes, ProcessState{Name: p.Name(), ID: p.ID(), Log: p.Log()})
	}
	c.mu.Unlock()
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the sandbox's state: %w", err)
	}
	temp := c.dir.state() + ".new"
	if err := os.WriteFile(temp, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the sandbox's state: %w", err)
	}
	if err := os.Rename(temp, c.dir.state()); err != nil {
		return fmt.Errorf("writing the sandbox's state: %w", err)
	}
	return nil
}

// noteChange follows a start of a process. A state that cannot be written is
// worth a line in the log, not the process.
func (c *Cluster) noteChange() {
	if err := c.writeState(); err != nil {
		klog.Background().Error(err, "noting the state of the sandbox failed")
	}
}

// SupervisorLog is where the process that holds the cluster may write its log.
func (c *Cluster) SupervisorLog() string { return c.dir.log("supervisor") }
