package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/berth-storage/berth/nodeagent/plan"
	"github.com/berth-storage/berth/volume"
)

// version is what encode writes. decode reads every version from 1 on; a newer
// one is refused, since what it adds may be what must be undone.
const version = 1

// fileV1 is the form on disk. Fields are only ever added to it; a change of
// meaning is a new version. testdata holds files that must always load.
type fileV1 struct {
	Version int              `json:"version"`
	Boot    string           `json:"boot"`
	Driver  string           `json:"driver"`
	Handle  string           `json:"handle"`
	PV      string           `json:"pv,omitempty"`
	Block   bool             `json:"block,omitempty"`
	Stage   effectV1         `json:"stage"`
	Grow    effectV1         `json:"grow"`
	GrownTo int64            `json:"grownTo,omitempty"`
	Pods    map[string]podV1 `json:"pods,omitempty"`
}

type effectV1 struct {
	State    string `json:"state"`
	Path     string `json:"path,omitempty"`
	SawMount bool   `json:"sawMount,omitempty"`
}

type podV1 struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Volume    string   `json:"volume,omitempty"`
	Publish   effectV1 `json:"publish"`
	ReadOnly  bool     `json:"readOnly,omitempty"`
	Custody   string   `json:"custody"`
}

func encode(r plan.Record, boot string) ([]byte, error) {
	f := fileV1{
		Version: version, Boot: boot,
		Driver: r.Key.Driver, Handle: r.Key.Handle, PV: r.PV, Block: r.Block,
		Stage: effectOut(r.Stage), Grow: effectOut(r.Grow), GrownTo: r.GrownTo,
		Pods: make(map[string]podV1, len(r.Pods)),
	}
	for uid, p := range r.Pods {
		f.Pods[uid] = podV1{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, Volume: p.Volume,
			Publish: effectOut(p.Publish), ReadOnly: p.ReadOnly, Custody: p.Custody.String(),
		}
	}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}

// decode reads a record and the boot that wrote it. Everything that would be
// needed to undo must be there and make sense.
func decode(data []byte) (plan.Record, string, error) {
	var f fileV1
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&f); err != nil {
		return plan.Record{}, "", fmt.Errorf("not a record: %w", err)
	}
	if dec.More() {
		return plan.Record{}, "", errors.New("not a record: text after its end")
	}
	if f.Version < 1 || f.Version > version {
		return plan.Record{}, "", fmt.Errorf("record version %d: this agent reads 1 to %d", f.Version, version)
	}
	if f.Driver == "" || f.Handle == "" {
		return plan.Record{}, "", errors.New("the record names no driver or no volume handle")
	}
	var errs []error
	r := plan.Record{
		Key: volume.Key{Driver: f.Driver, Handle: f.Handle}, PV: f.PV, Block: f.Block,
		Stage: effectIn(f.Stage, &errs), Grow: effectIn(f.Grow, &errs), GrownTo: f.GrownTo,
		Pods: make(map[string]plan.PodRecord, len(f.Pods)),
	}
	for uid, p := range f.Pods {
		custody, err := plan.ParseCustody(p.Custody)
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", uid, err))
		}
		r.Pods[uid] = plan.PodRecord{
			Pod: plan.Pod{Namespace: p.Namespace, Name: p.Name, UID: uid}, Volume: p.Volume,
			Publish: effectIn(p.Publish, &errs), ReadOnly: p.ReadOnly, Custody: custody,
		}
	}
	if err := errors.Join(errs...); err != nil {
		return plan.Record{}, "", err
	}
	return r, f.Boot, nil
}

func effectOut(e plan.Effect) effectV1 {
	return effectV1{State: e.State.String(), Path: e.Path, SawMount: e.SawMount}
}

func effectIn(e effectV1, errs *[]error) plan.Effect {
	state, err := plan.ParseCertainty(e.State)
	if err == nil && state != plan.Absent && e.Path == "" {
		err = fmt.Errorf("an effect that is %s has no path", state)
	}
	if err != nil {
		*errs = append(*errs, err)
	}
	return plan.Effect{State: state, Path: e.Path, SawMount: e.SawMount}
}
