package oracle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-storage/berth/scheduler/plugin"
)

// disagreement is an answer that the model does not give, or that the extender gives
// and the plugin does not.
type disagreement struct {
	side string
	// what was asked: PreFilter, node, dry run, PreScore, score, writes, promise;
	// where is the node.
	what, where string
	model       []string
	said        string
}

func (d disagreement) String() string {
	standard := "model: "
	if d.side == besidePlugin {
		standard = "plugin:"
	}
	return fmt.Sprintf("%s, %s %s\n  said:  %s\n  %s %s", d.side, d.what, d.where, d.said, standard, strings.Join(d.model, "\n      or "))
}

// kindOf is the code of a text, for counting.
func kindOf(text string) string {
	if rest, scored := strings.CutPrefix(text, "Success "); scored && rest != "panic" {
		return "Success, with a score"
	}
	head, _, _ := strings.Cut(code(text), ";")
	return head
}

// like reports whether it is the same fault, be it of another node.
func (d disagreement) like(o disagreement) bool {
	return d.side == o.side && d.what == o.what && code(d.said) == code(o.said) && slices.Equal(codes(d.model), codes(o.model))
}

// code is what a text says, without what it says it of and how well it scores.
func code(text string) string {
	if rest, scored := strings.CutPrefix(text, "Success "); scored && rest != "panic" {
		return "Success"
	}
	head, _, _ := strings.Cut(text, ": ")
	return head
}

func codes(texts []string) []string {
	out := make([]string, 0, len(texts))
	for _, t := range texts {
		out = append(out, code(t))
	}
	return slices.Compact(out)
}

// side is one of the two that are compared, and the differences with which the
// model has to answer as it does.
type side struct {
	name        string
	make        maker
	differences []plugin.Difference
	// twin: the extender has to answer just as it does.
	twin bool
}

func sides() []side {
	return []side{{"upstream", upstream, nil, false}, {"berth", berth, plugin.Differences(), true}}
}

// compare asks the sides the world's question, and returns what the model does
// not explain. count counts the answers that were compared, by kind.
// settled is the world as it was asked about.
func compare(ctx context.Context, w *world, sides []side, count map[string]int) (out []disagreement, settled *world, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var rigs []*rig
	for _, s := range sides {
		r, err := newRig(ctx, w, s.make)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.name, err)
		}
		rigs = append(rigs, r)
	}
	was := w
	w = w.clone()
	agree(w, rigs)
	for i, s := range sides {
		p := modelOf(w, s.differences...).answers()
		got := rigs[i].ask(w, p.feasible()) //nolint:contextcheck // bind gives a context that is over
		out = append(out, unexplained(s.name, p, got, count)...)
		if !s.twin {
			continue
		}
		unlike, err := alike(ctx, was, w, got.exact, count)
		if err != nil {
			return nil, nil, fmt.Errorf("extender: %w", err)
		}
		out = append(out, unlike...)
	}
	return out, w, nil
}

// feasible is a node that every choice passes, to bind on; empty for none.
func (p possible) feasible() string {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(p.nodes))) {
		if !slices.ContainsFunc(p.nodes[name], func(s string) bool { return !strings.HasPrefix(s, "Success") }) {
			return name
		}
	}
	return ""
}

func unexplained(name string, p possible, a answer, count map[string]int) []disagreement {
	var out []disagreement
	check := func(what, where string, model []string, said string) {
		count[what+": "+kindOf(said)]++
		if !slices.Contains(model, said) {
			out = append(out, disagreement{name, what, where, model, said})
		}
	}
	check("PreFilter", "", []string{p.pre}, a.pre)
	for _, node := range slices.Sorted(maps.Keys(a.nodes)) {
		check("node", node, p.nodes[node], a.nodes[node])
	}
	for _, node := range slices.Sorted(maps.Keys(a.dry)) {
		check("dry run", node, p.dry[node], a.dry[node])
	}
	check("PreScore", "", []string{p.preScore}, a.preScore)
	if a.node != "" {
		check("writes", a.node, p.writes[a.node], a.writes)
	}
	return out
}

// agree gives the other pods their nodes on all sides, where both models say the
// same of them; a pod that a side refuses is none.
func agree(w *world, rigs []*rig) {
	asked := w.others
	w.others = nil
	for _, o := range asked {
		var ok bool
		if o.volume, ok = certain(w, o); !ok || !reservable(w, o) || !reserveAll(rigs, o) {
			continue
		}
		w.others = append(w.others, o)
		w.running = append(w.running, o.placed())
		for _, r := range rigs {
			r.assume(o)
		}
	}
	for _, o := range w.others {
		if o.touched {
			for _, r := range rigs {
				r.touch(w, o)
			}
		}
	}
}

// reserveAll gives a pod its node on all sides, or on none.
func reserveAll(rigs []*rig, o other) bool {
	var undo []func()
	for _, r := range rigs {
		if back, ok := r.reserve(o); ok {
			undo = append(undo, back)
		}
	}
	if len(undo) == len(rigs) {
		return true
	}
	for _, back := range undo {
		back()
	}
	return false
}

// reservable is false for an in-tree volume that its CSI driver does not have on the
// node. Filter and Reserve take it by its own affinity, and PreBind gives it back
// (upstream: findMatchingVolumes and checkBindings).
func reservable(w *world, o other) bool {
	pv := w.volume(o.volume)
	if pv == nil {
		return true
	}
	m := modelOf(w)
	for _, n := range w.nodes {
		if n.Name == o.node {
			affinity, err := m.affinityOn(pv, n)
			return err == nil && m.reaches(affinity, n)
		}
	}
	return false
}

// certain is the volume that a pod will hold, empty for one to be made, and false
// where that is not the same for everybody.
func certain(w *world, o other) (volume string, ok bool) {
	w = w.clone()
	w.pod = o.pod()
	c := w.claim(o.claim)
	if c == nil || !slices.ContainsFunc(w.nodes, func(n *corev1.Node) bool { return n.Name == o.node }) {
		return "", false
	}
	var seen []string
	for _, s := range sides() {
		m := modelOf(w, s.differences...)
		if m.preFilter(refsOf(w.pod)) != "Success" || !m.isDelayed(c) {
			return "", false
		}
		m.wary()
		for _, n := range w.nodes {
			if n.Name != o.node {
				continue
			}
			for _, v := range m.judge(n) {
				seen = append(seen, fmt.Sprint(v.refusals, v.binds))
				if len(v.binds) == 1 {
					volume = v.binds[0][1]
				}
			}
		}
	}
	same := len(slices.Compact(slices.Sorted(slices.Values(seen)))) == 1
	return volume, same && strings.HasPrefix(seen[0], "[] ")
}
